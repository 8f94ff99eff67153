"""How a cluster is started: its folder, its Python, its environment; and starts that fail."""

from __future__ import annotations

import errno
import os
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from functools import partial
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from rankroom import config
from rankroom.cluster import actions, launch, lookup, repair
from rankroom.cluster.local import Cluster
from rankroom.errors import NoClusterError, StartError, UsageError
from rankroom.record.cluster_file import Allocation, ClusterInfo, ClusterPaths, Node, Remote
from rankroom.record.owner import this_process
from rankroom.record.store import Store
from rankroom.supervisor.processes import port_guard
from rankroom.system import process_tree


@pytest.fixture
def begun(home: Path, monkeypatch: pytest.MonkeyPatch) -> list[tuple[list[str], dict[str, str]]]:
    """The command line and environment of each supervisor that would have been started."""
    found = []

    def start(words: list[str], **more: Any) -> SimpleNamespace:
        found.append((words, more["env"]))
        return SimpleNamespace(pid=0)

    monkeypatch.setattr(launch, "subprocess", SimpleNamespace(
        Popen=start, DEVNULL=subprocess.DEVNULL, STDOUT=subprocess.STDOUT
    ))  # fmt: skip
    monkeypatch.setattr(port_guard, "environment", lambda own: {})  # compiles nothing
    for name in ("SLURM_JOB_ID", "PBS_JOBID"):
        monkeypatch.delenv(name, raising=False)
    return found


@pytest.fixture
def elsewhere() -> Iterator[subprocess.Popen[bytes]]:
    """Stands in for a supervisor; it was started with another environment."""
    code = "import sys; print(flush=True); sys.stdin.read()"
    process = subprocess.Popen(
        [sys.executable, "-c", code], stdin=subprocess.PIPE, stdout=subprocess.PIPE,
        env={"PATH": os.environ["PATH"], "OF_THE_KERNEL": "1"},
    )  # fmt: skip
    assert process.stdout is not None
    process.stdout.readline()
    yield process
    process.communicate()


@pytest.mark.parametrize("cwd", [None, ".", "", Path()])
def test_the_working_folder_is_recorded_as_an_absolute_path(
    begun: list[Any], tmp_path: Path, monkeypatch: pytest.MonkeyPatch, cwd: Any
):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "data").mkdir()
    for given, meant in ((cwd, tmp_path), ("data", tmp_path / "data")):
        paths, _ = launch.launch(1, None, given)
        info = paths.read()
        assert info is not None
        assert Path(info.cwd).is_absolute() and Path(info.cwd).samefile(meant)


def test_a_missing_working_folder_is_refused(begun: list[Any], home: Path):
    with pytest.raises(UsageError, match="no such folder"):
        launch.launch(1, "x", "nowhere")
    assert not begun and not (home / "clusters").exists()


def test_a_number_of_ranks_of_the_wrong_type_leaves_no_folder(begun: list[Any], home: Path):
    with pytest.raises(TypeError):
        launch.launch(2.0, "x", None)  # type: ignore[arg-type]
    assert list((home / "clusters").iterdir()) == []


def test_an_invalid_cluster_name_is_refused_with_the_rules_for_names(begun: list[Any], home: Path):
    for name in ("a b", "../runs", "x" * 64):
        with pytest.raises(UsageError, match=r"invalid cluster name .*, at most 63 characters"):
            launch.launch(1, name, None)
    assert begun == []


def test_a_cluster_is_restarted_with_its_own_python_and_environment(
    begun: list[Any], tmp_path: Path, elsewhere: subprocess.Popen[bytes]
):
    python = tmp_path / "python"
    python.symlink_to(sys.executable)
    info = ClusterInfo(
        "x", 1, "running", supervisor=elsewhere.pid, began=process_tree.began(elsewhere.pid) or 0,
        python=str(python), cwd=str(tmp_path),
    )  # fmt: skip
    actions.prepare_restart(ClusterPaths("x"), info, {}, actions._environment(info))()
    words, env = begun[-1]
    again = ClusterPaths("x").read()
    assert words[0] == str(python)
    assert env["OF_THE_KERNEL"] == "1" and "HOME" not in env
    assert again is not None and again.python == str(python)


def test_a_restart_with_a_missing_python_is_refused(begun: list[Any], tmp_path: Path):
    info = ClusterInfo("x", 1, python=str(tmp_path / "gone"), cwd=str(tmp_path))
    with pytest.raises(UsageError, match="is no longer there"):
        actions.prepare_restart(ClusterPaths("x"), info, {})


@pytest.fixture
def granted(monkeypatch: pytest.MonkeyPatch) -> list[int | None]:
    """The numbers of ranks requested from a job of two unequal nodes."""
    asked: list[int | None] = []

    def room_for(ranks: int | None, env: Any) -> tuple[Allocation, int, int]:
        asked.append(ranks)
        nodes = (Node("c1", 4, 4), Node("c2", 2, 2))
        return Allocation("7", nodes), 0, 6 if ranks is None else ranks

    monkeypatch.setattr(launch, "room_for", room_for)
    return asked


def of_job(size: int) -> ClusterInfo:
    return ClusterInfo("x", size, allocation=Allocation("7", (Node("c1", size),)))


def test_a_cluster_of_a_job_is_not_restarted_outside_the_job(begun: list[Any]):
    """Otherwise its ranks would run outside of the job, such as on the login node."""
    for asked in ({}, {"ranks": "4"}):
        with pytest.raises(UsageError, match="cluster x belongs to job 7, and this process is"):
            actions.prepare_restart(ClusterPaths("x"), of_job(2), asked)
    assert begun == []


@pytest.mark.parametrize(("size", "asked", "passed"), [
    (6, {}, None),  # the default, one rank per GPU, as at the start
    (3, {}, 3),
    (6, {"ranks": "4"}, 4),
    (6, {"ranks": "0"}, 0),  # which `room_for` refuses
])  # fmt: skip
def test_a_restart_in_a_job_requests_as_many_ranks_as_the_start(
    begun: list[Any], granted: list[int | None], size: int, asked: Any, passed: int | None
):
    actions.prepare_restart(ClusterPaths("x"), of_job(size), asked)()
    assert granted[-1] == passed


def test_a_remote_cluster_stopped_in_the_meantime_is_not_restarted(begun: list[Any]):
    info = ClusterInfo("x", 1, remote=Remote("far", "login"))
    with pytest.raises(NoClusterError, match="cluster x has been stopped"):
        actions.prepare_restart(ClusterPaths("x"), info, {"ranks": "4"})


def test_an_interrupt_between_stop_and_restart_is_reported(begun: list[Any], tmp_path: Path):
    paths = ClusterPaths("x")
    info = ClusterInfo("x", 1, cwd=str(tmp_path))

    def stop() -> str:
        raise KeyboardInterrupt

    with pytest.raises(StartError, match="x is still being stopped, so it was not started again"):
        actions.start_again(paths, info, {}, stop)
    assert begun == []


def test_a_spool_that_cannot_be_moved_is_not_deleted(home: Path, monkeypatch: pytest.MonkeyPatch):
    paths = ClusterPaths("x")
    paths.make(1)
    paths.write(ClusterInfo("x", 1, "failed"))
    spool = paths.spool(0) / "20260101-000000-000000.jsonl"
    spool.write_text("{}\n")

    def full(self: Path, target: Path) -> None:
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    monkeypatch.setattr(Path, "rename", full)
    with pytest.raises(StartError, match="No space left"):
        launch.remove_ended(paths)
    assert spool.exists()


def test_a_start_timeout_is_reported_even_if_no_rank_is_missing(home: Path):
    paths = ClusterPaths("x")
    paths.make(1)
    assert str(launch.timed_out(paths, [])).startswith("the cluster was not ready after ")


def test_a_cluster_whose_supervisor_is_starting_is_not_reported_as_gone(
    home: Path, monkeypatch: pytest.MonkeyPatch
):
    """Another notebook has just restarted it; another restart would end that one."""
    paths = ClusterPaths("mine")
    paths.make(1)
    paths.write(ClusterInfo("mine", 1, "starting"))
    with pytest.raises(NoClusterError, match="`%cluster restart` starts it again"):
        lookup.read_supervised(paths)
    command = ["python", "-m", launch.SUPERVISOR, str(paths.folder)]
    shown = [SimpleNamespace(pid=7, info={"cmdline": command})]
    monkeypatch.setattr(launch.psutil, "process_iter", lambda fields: shown)
    monkeypatch.setattr(launch.path_views, "is_same", lambda *about: True)
    with pytest.raises(NoClusterError, match="cluster mine is being started: wait until it is"):
        lookup.read_supervised(paths)


def test_of_two_simultaneous_starts_of_a_name_the_second_is_refused(
    begun: list[Any], monkeypatch: pytest.MonkeyPatch
):
    spawn, refused = launch.spawn, []

    def slow(*about: Any, **more: Any) -> Any:
        time.sleep(0.3)
        return spawn(*about, **more)

    def seen(fields: list[str]) -> list[SimpleNamespace]:
        return [SimpleNamespace(pid=7, info={"cmdline": words}) for words, _ in begun]

    def start() -> None:
        try:
            launch.launch(1, "x", None)
        except launch.InUseError as error:
            refused.append(str(error))

    monkeypatch.setattr(launch, "spawn", slow)
    monkeypatch.setattr(launch.psutil, "process_iter", seen)
    monkeypatch.setattr(launch.path_views, "is_same", lambda *about: True)
    threads = [threading.Thread(target=start) for _ in range(2)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert not (config.home() / "start.lock").exists()
    assert len(begun) == 1
    assert refused == [
        "a cluster named x is being started: `%cluster attach x` once it is ready, or choose "
        "another --name"
    ]
    assert ClusterPaths("x").read() is not None


def test_a_cluster_starting_on_another_node_is_not_removed(home: Path):
    paths = ClusterPaths("x")
    paths.make(1)
    granted = Allocation("7", (Node("c2", 1),))
    paths.write(ClusterInfo("x", 1, created=time.time(), host="c2", allocation=granted))
    with pytest.raises(launch.InUseError, match="is being started"):
        launch.remove_ended(paths)
    assert paths.folder.exists()


def test_stopping_a_cluster_spares_a_new_one_of_the_same_name(
    home: Path, monkeypatch: pytest.MonkeyPatch
):
    paths, me = ClusterPaths("x"), this_process()
    stopped = ClusterInfo("x", 1, "running", supervisor=2**22, began=1, created=1.0)
    paths.make(1)
    paths.write(ClusterInfo("x", 2, "running", supervisor=me.pid, began=me.began, created=2.0))
    monkeypatch.setattr(actions, "END_TIMEOUT_S", 0.1)
    actions._wait_over(paths, "", stopped)
    paths.write(ClusterInfo("x", 2, created=2.0))  # without a supervisor yet
    lookup.end(paths, stopped)
    assert actions.end(paths, stopped) == ""
    launch.wait_end(paths, 0.1, stopped)
    assert paths.folder.exists()
    launch.wait_end(paths, 0.1, paths.read())
    assert not paths.folder.exists()


@pytest.mark.parametrize("how", ["end", "complete"])
def test_a_cluster_that_starts_while_its_predecessor_is_removed_keeps_its_folder(
    home: Path, how: str
):
    paths = ClusterPaths("x")
    paths.make(1)
    before = ClusterInfo("x", 1, "stopped", created=1.0)
    paths.write(before)
    remove = (
        partial(launch.wait_end, paths, 0.1, before)
        if how == "end"
        else partial(repair.complete_all, Store())
    )
    thread = threading.Thread(target=remove)
    with launch.one_at_a_time():
        thread.start()
        thread.join(0.3)
        assert thread.is_alive() and paths.folder.exists()
        launch.remove_ended(paths)
        paths.make(2)
        paths.write(ClusterInfo("x", 2, created=2.0))
    thread.join()
    now = paths.read()
    assert now is not None and now.size == 2


def test_a_failed_start_spares_a_newer_cluster(home: Path, monkeypatch: pytest.MonkeyPatch):
    paths = ClusterPaths("x")
    paths.make(1)
    paths.write(ClusterInfo("x", 1, created=1.0))

    def fail(paths: ClusterPaths, *about: object) -> None:
        paths.write(ClusterInfo("x", 1, created=2.0))
        raise StartError("its supervisor has ended")

    monkeypatch.setattr(launch, "wait_ready", fail)
    with pytest.raises(StartError, match="has ended"):
        Cluster.ready(paths, SimpleNamespace())  # type: ignore[arg-type]
    assert paths.folder.exists()


def test_a_failed_cluster_is_restarted_once_its_supervisor_has_ended(
    begun: list[Any], elsewhere: subprocess.Popen[bytes]
):
    paths = ClusterPaths("x")
    paths.make(1)
    began = process_tree.began(elsewhere.pid) or 0
    paths.write(ClusterInfo("x", 1, "failed", supervisor=elsewhere.pid, began=began))
    closing = threading.Timer(0.3, elsewhere.kill)
    closing.start()
    launch.launch(1, "x", None)
    assert not process_tree.lives(elsewhere.pid, began) and len(begun) == 1
    closing.join()
