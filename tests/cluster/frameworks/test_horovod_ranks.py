"""The installed Horovod on a few real ranks. `make test` builds it first.

The checks are in tests/support/horovod_scripts, many in each script, as importing TensorFlow takes
seconds.
"""

from __future__ import annotations

import contextlib
import dataclasses
import socket
import subprocess
import sys
import threading
import time
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner

from horovod_ranks import SCRIPTS, on_ranks
from rankroom.cli.horovod_command import horovod
from rankroom.horovod_build import check, features
from rankroom.horovod_build.ranks import run_ranks

pytestmark = pytest.mark.cluster

LISTENS = ("0100007F", "0A")  # in /proc/net/tcp: 127.0.0.1, state LISTEN


def thorough(case: Any) -> Any:
    values = case if isinstance(case, tuple) else (case,)
    return pytest.param(*values, marks=pytest.mark.thorough)


def all_of(script: str) -> set[str]:
    """Return the checks listed at the end of a script, so that a missing one is noticed."""
    lines = SCRIPTS.joinpath(script).read_text().splitlines()
    start = lines.index("for check in [")
    return {line.strip(" ,") for line in lines[start + 1 : lines.index("]:")]}


@pytest.mark.thorough
def test_horovod_trains_correctly_with_keras_3_fit(tmp_path: Path) -> None:
    script = "keras3_fit.py"
    env = {"FOLDER": str(tmp_path), "MODULE": "horovod.tensorflow.keras"}
    for findings in on_ranks(script, env=env):
        assert set(findings) == all_of(script)


@pytest.mark.thorough
def test_the_module_horovod_keras_works_with_keras_3(tmp_path: Path) -> None:
    only = {"broadcast_gives_everyone_the_roots", "metrics_are_averaged", "saved_models_go_on"}
    env = {"FOLDER": str(tmp_path), "MODULE": "horovod.keras", "ONLY": " ".join(only)}
    for findings in on_ranks("keras3_fit.py", env=env):
        assert set(findings) == only


@pytest.mark.parametrize("script", [thorough("tensorflow_loop.py"), "torch_loop.py"])
def test_horovod_works_in_custom_training_loops(script: str) -> None:
    for findings in on_ranks(script, worlds=4):
        assert set(findings) == all_of(script)


@pytest.mark.thorough
@pytest.mark.parametrize(
    "settings",
    [
        {"SECONDS": "2"},
        thorough({"SECONDS": "40"}),  # Gloo's own timeout is 30 s
        thorough({"HOROVOD_CYCLE_TIME": "0"}),
        thorough({"HOROVOD_CYCLE_TIME": "20", "HOROVOD_FUSION_THRESHOLD": "0"}),
        thorough({"HOROVOD_CACHE_CAPACITY": "0"}),
        thorough({"HOROVOD_CACHE_CAPACITY": "3"}),
        thorough({"HOROVOD_AUTOTUNE": "1", "HOROVOD_AUTOTUNE_WARMUP_SAMPLES": "1"}),
        thorough({"HOROVOD_DYNAMIC_PROCESS_SETS": "1"}),
    ],
    ids=lambda settings: " ".join(f"{name}={value}" for name, value in settings.items()),
)
def test_sleeping_horovod_threads_miss_no_operation(settings: dict[str, str]) -> None:
    for findings in on_ranks("pace.py", size=3, env=settings):
        assert set(findings) == all_of("pace.py")


@pytest.mark.parametrize(("size", "times"), [(2, 4), thorough((2, 200)), thorough((4, 200))])
def test_horovod_restarts_many_times_on_a_busy_machine(size: int, times: int) -> None:
    loops = [subprocess.Popen([sys.executable, "-c", "while True: pass"]) for _ in range(2)]
    try:
        ranks = on_ranks("start_again.py", size=size, env={"TIMES": str(times)})
    finally:
        for loop in loops:
            loop.kill()
            loop.wait()
    assert ranks == [{"started": times}] * size


@pytest.mark.thorough
@pytest.mark.alone  # it connects to every new port of this machine
@pytest.mark.parametrize(
    "says",
    [b"", b"\xff\0\0\0\0\0\0\0\1\x7f", bytes(64)],
    ids=["nothing", "ZeroMQ's greeting", "zeros"],
)
def test_horovod_starts_although_strangers_connect_to_its_ports(says: bytes) -> None:
    """For example, port scanners, or clients of a server that is gone (ZeroMQ retries for days)."""
    over = threading.Event()
    reached: list[socket.socket] = []
    intruder = threading.Thread(target=intrude, args=(says, reached, over))
    intruder.start()
    try:
        ranks = on_ranks("start_again.py", size=3, env={"TIMES": "20"})
    finally:
        over.set()
        intruder.join()
        for each in reached:
            each.close()
    assert ranks == [{"started": 20}] * 3
    assert reached


def intrude(says: bytes, reached: list[socket.socket], over: threading.Event) -> None:
    """Connect to each new listening port before its peer does, and keep the connection."""
    known = listening()
    while not over.is_set():
        now = listening()
        for port in now - known:
            with contextlib.suppress(OSError):
                reached.append(socket.create_connection(("127.0.0.1", port), 1))
                reached[-1].sendall(says)
        known = now


def listening() -> set[int]:
    """Return the ports with a listener on loopback."""
    lines = Path("/proc/net/tcp").read_text().splitlines()[1:]
    ends = [(*line.split()[1].split(":"), line.split()[3]) for line in lines]
    return {int(port, 16) for address, port, state in ends if (address, state) == LISTENS}


@pytest.mark.thorough
@pytest.mark.parametrize("framework", ["torch", "tensorflow"])
def test_horovod_restarts_after_each_kind_of_failure(framework: str, tmp_path: Path) -> None:
    script = "again.py"
    env = {"FRAMEWORK": framework, "FOLDER": str(tmp_path)}
    for findings in on_ranks(script, worlds=29, env=env):
        assert set(findings) == all_of(script)


@pytest.mark.parametrize("framework", ["torch", thorough("tensorflow")])
def test_every_rank_writes_a_timeline(framework: str, tmp_path: Path) -> None:
    env = {"FOLDER": str(tmp_path), "FRAMEWORK": framework}
    ranks = on_ranks("timelines.py", worlds=7, env=env)
    assert [each["rank"] for each in ranks] == [0, 1]
    # The rank's number replaces `{rank}`; without `{rank}`, rank 0 keeps the name as it is.
    files = ("a.0.json", "a.1.json", "one.json", "one.json.rank1", "env.json", "env.json.rank1")
    assert not [file for file in files if not (tmp_path / framework / file).exists()]


def test_the_horovod_libraries_export_only_their_c_functions() -> None:
    """C++ symbols of one would be used by the library loaded second, whose layout differs."""
    here = features.features()
    libraries = [library for name in here.frameworks for library in (here.path / name).glob("*.so")]
    assert len(libraries) == 2
    for library in libraries:
        told = subprocess.run(
            ["nm", "--dynamic", "--defined-only", "--format=just-symbols", library],
            capture_output=True, text=True, check=True,
        )  # fmt: skip
        names = told.stdout.split()
        assert "horovod_init" in names
        assert not [name for name in names if not name.startswith(("horovod_", "PyInit_"))]


def test_a_horovod_for_the_cpu_refuses_a_gpus_tensor_with_the_remedy() -> None:
    source = (
        "import types, horovod.torch.mpi_ops as ops\n"
        "gpu = types.SimpleNamespace(device=types.SimpleNamespace(type='cuda'))\n"
        "try: ops._check_function(lambda tensor: 'no_such_function', gpu)\n"
        "except ValueError as error: print(error)"
    )
    (ended,) = run_ranks(["-c", source], 1)
    assert "built for the CPU" in ended.output and "horovod build --gpu" in ended.output


@pytest.mark.parametrize("settings", [{}, thorough({"PROCESS_SETS": "1"})])
def test_every_rank_notices_within_seconds_that_another_has_exited(
    settings: dict[str, str],
) -> None:
    """Of four ranks, not every pair communicates: a rank that gives up closes its connections."""
    *found, _ = on_ranks("gave_up.py", size=4, env=settings)
    assert all(each["waited"] < 5 for each in found), found
    assert all(each["turns"] > 20 for each in found), found  # another thread kept running


def test_an_interrupted_adasum_optimizer_gets_its_weights_back() -> None:
    [found] = on_ranks("adasum_left.py", size=1)
    assert found == {
        "after backward": True, "tensors kept": 0, "within a hook": True, "parameters": 2,
        "within step": True, "of them": 2,
    }  # fmt: skip


def test_the_stall_check_ends_a_stalled_collective() -> None:
    """Without Rankroom's edit, it writes missing ranks past the end of an empty list."""
    script = (
        "import time, torch, horovod.torch as hvd\n"
        "hvd.init()\n"
        "if hvd.rank() == 1: time.sleep(8)\n"
        "else: hvd.allreduce(torch.ones(3), name='x')\n"
    )
    limits = {"CHECK_TIME_SECONDS": "1", "SHUTDOWN_TIME_SECONDS": "2"}
    env = {f"HOROVOD_STALL_{name}": value for name, value in limits.items()}
    first, second = run_ranks(["-c", script], 2, timeout=120, env=env)
    assert first.returncode == 1 and "HorovodInternalError" in first.output
    assert "1: [allreduce.x]" in first.output and "Will shutdown" in first.output
    assert second.returncode == 0


@pytest.mark.thorough
def test_horovod_check_verifies_the_installed_build() -> None:
    result = CliRunner().invoke(horovod, ["check"])
    assert result.exit_code == 0, result.output
    features_there = (
        "a native timeline on every rank, every rank's collectives in the timeline, Keras"
    )
    assert features_there in result.output
    for framework in features.features().frameworks:
        assert f"{framework:12}allreduce on 2 ranks is right (Gloo" in result.output


def test_check_accepts_a_horovod_of_the_site_and_lists_what_it_lacks(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    here = features.features()
    site = dataclasses.replace(
        here,
        version="0.28.1",
        key="",
        edits=frozenset(),
        frameworks={"torch": here.frameworks["torch"]},
    )
    monkeypatch.setattr(check, "features", lambda: site)
    said: list[str] = []
    assert check.check(said.append)
    text = "\n".join(said)
    assert "not built by Rankroom" in text
    assert "lacks       a native timeline on other ranks than 0" in text
    assert "allreduce on 2 ranks is right" in text
    assert "tensorflow  not built in" in text


def test_a_failed_check_is_reported_with_its_output(monkeypatch: pytest.MonkeyPatch) -> None:
    here = dataclasses.replace(features.features(), frameworks={"torch": "unknown"})
    monkeypatch.setattr(check, "features", lambda: here)
    real = run_ranks

    def broken(argv: list[str], size: int, **options: object) -> object:
        source = "import os, sys, time; print('what went wrong'); "
        source += "sys.exit(3) if os.environ['HOROVOD_RANK'] == '1' else time.sleep(600)"
        return real(["-c", source], size, **options)

    monkeypatch.setattr(check, "run_ranks", broken)
    monkeypatch.setattr("rankroom.horovod_build.ranks.FAILURE_GRACE_S", 0.5)
    start = time.monotonic()
    result = CliRunner().invoke(horovod, ["check"])
    assert result.exit_code == 1
    assert "torch       FAILED on rank 1 (ended with status 3); it printed:" in result.output
    assert "what went wrong" in result.output
    assert time.monotonic() - start < 300


@pytest.mark.thorough
def test_a_rank_that_hangs_runs_into_the_timeout() -> None:
    # Long enough for both ranks to begin on a busy machine.
    ended = run_ranks(
        ["-c", "import time; print('here', flush=True); time.sleep(600)"], timeout=20.0
    )
    assert [end.timed_out for end in ended] == [True, True]
    assert [end.output for end in ended] == ["here\n", "here\n"]


def test_features_import_no_framework() -> None:
    source = (
        "import sys; from rankroom.horovod_build.features import features; print(features().key);"
        "assert not {'torch', 'tensorflow', 'horovod', 'numpy'} & set(sys.modules)"
    )
    (ended,) = run_ranks(["-c", source], 1, env={"PYTHONPATH": str(Path(sys.path[0]))})
    assert ended.ok, ended.output
