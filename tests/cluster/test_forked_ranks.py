"""Ranks forked from a node agent that has preloaded modules."""

from __future__ import annotations

import os
import re
import signal
import time
from collections import defaultdict
from pathlib import Path
from statistics import median
from textwrap import dedent

import ipyparallel
import psutil
import pytest

from cells import allowed
from rankroom.cluster.local import Cluster
from rankroom.errors import StartError
from rankroom.system import process_tree

pytestmark = pytest.mark.cluster

AT_ONCE_S = allowed(2.0)  # from the restart of a rank until it has the preloaded module

IMPORTED = "import sys; [name in sys.modules for name in ('torch', 'slow_module')]"
OWN = """
import os, random, sys, threading, torch, numpy
(rank, os.getpid(), os.getsid(0), int(os.environ['RANK']), os.getcwd(), random.random(),
 numpy.random.rand(), torch.get_num_threads(), threading.active_count() > 0,
 torch.rand(1).item(), torch.initial_seed())"""


def values(cluster: Cluster, source: str) -> dict[int, object]:
    run = cluster.run(source)
    assert run.wait(120) and run.state == "done", run.info
    return {rank: eval(text) for rank, text in run.results.items()}


def agents(cluster: Cluster) -> list[psutil.Process]:
    return [
        each
        for each in process_tree.marked(process_tree.CLUSTER_MARK, cluster.paths.folder)
        if "rankroom.agent.node_agent" in each.cmdline()
        and each.pid not in {rank.pid for rank in cluster.ranks}
    ]


@pytest.fixture
def beside(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A folder on PYTHONPATH."""
    folder = tmp_path / "modules"
    folder.mkdir()
    monkeypatch.setenv("PYTHONPATH", f"{folder}:{os.environ.get('PYTHONPATH', '')}")
    return folder


def test_the_agent_survives_slurms_warning_signals_and_ranks_can_handle_them(cluster: Cluster):
    ask = "import os, signal; (os.getppid(), signal.getsignal(signal.SIGUSR1) is signal.SIG_DFL)"
    [(agent, is_default), *others] = values(cluster, ask).values()
    assert is_default and others == [(agent, True)]
    for number in (signal.SIGUSR1, signal.SIGUSR2):
        os.kill(int(str(agent)), number)
    heard = """
        import os, signal
        heard = []
        signal.signal(signal.SIGUSR1, lambda number, frame: heard.append(number))
        os.kill(os.getpid(), signal.SIGUSR1)
        len(heard)
    """
    assert values(cluster, dedent(heard)) == {0: 1, 1: 1}
    cluster.restart([0, 1])  # by the same agent
    assert values(cluster, ask) == {0: (agent, True), 1: (agent, True)}


def test_a_preloaded_module_is_imported_once_for_all_ranks(home: Path, beside: Path):
    (beside / "slow_module.py").write_text("import os, time; time.sleep(1)\nby = os.getpid()")
    cluster = Cluster.local(ranks=3, preload="slow_module")
    try:
        assert cluster.info.notes == []
        assert values(cluster, IMPORTED) == {rank: [False, True] for rank in range(3)}
        found = values(cluster, "import os, slow_module; (slow_module.by, os.getpid())")
        importers, pids = zip(*found.values(), strict=True)
        assert len(set(importers)) == 1 and len({*importers, *pids}) == 4
        [agent] = agents(cluster)
        assert set(importers) == {agent.pid}
        cluster.restart([1])
        assert values(cluster, IMPORTED)[1] == [False, True]
    finally:
        cluster.stop()


def imports(cluster: Cluster, run: str) -> list[str]:
    """Return the imports of all ranks in the timeline of a run."""
    found, names = [], defaultdict[int, list[str]](list)
    for event in cluster.store.events(run):
        if event["kind"] == "spans":
            names[event["rank"]] += [each["name"] for each in event.get("define", ())]
            if event["cat"] == "import":
                assert all(dur > 0 for dur in event["dur"])
                found += [names[event["rank"]][number] for number in event["name"]]
    return found


@pytest.mark.thorough
def test_only_imports_that_were_not_preloaded_are_in_the_timeline(home: Path):
    load = "def load():\n    import numpy, torch\nload()"
    for preload, shown in (("numpy", ["import torch"] * 2), ("numpy,torch", [])):
        cluster = Cluster.local(ranks=2, preload=preload)
        try:
            run = cluster.run(load)
            assert run.wait(120) and run.state == "done", run.info
            assert imports(cluster, run.id) == shown
        finally:
            cluster.stop()


def test_modules_imported_by_cells_are_preloaded_in_the_next_cluster(home: Path):
    for known in (False, True):
        cluster = Cluster.local(ranks=2)
        try:
            assert values(cluster, IMPORTED) == {rank: [known, False] for rank in range(2)}
            values(cluster, "import torch; float(torch.ones(2).sum())")
            time.sleep(0.5)  # until the supervisor has saved what was imported
        finally:
            cluster.stop()


def test_forked_ranks_have_their_own_process_session_and_random_state(home: Path):
    cluster = Cluster.local(ranks=2, preload="torch,numpy")
    try:
        one, other = values(cluster, OWN).values()
    finally:
        cluster.stop()
    assert isinstance(one, tuple) and isinstance(other, tuple)
    assert (one[0], one[3], other[0], other[3]) == (0, 0, 1, 1)
    assert one[1] == one[2] and other[1] == other[2]  # each leads a session of its own
    assert one[4] == other[4] == str(Path.cwd())
    assert one[5] != other[5] and one[6] != other[6]
    assert one[9] != other[9] and one[10] != other[10]
    assert one[7] == other[7] == max(1, len(os.sched_getaffinity(0)) // 2)


def test_a_module_that_cannot_be_imported_is_noted_and_left_out(home: Path, beside: Path):
    (beside / "broken_module.py").write_text("1 / 0")
    (beside / "ending_module.py").write_text("import sys\nsys.exit(3)")
    cluster = Cluster.local(ranks=1, preload="broken_module,no_such_module,ending_module")
    try:
        assert cluster.info.notes == [
            "broken_module could not be preloaded: ZeroDivisionError: division by zero",
            "no_such_module could not be preloaded: ModuleNotFoundError: No module named "
            "'no_such_module'",
            "ending_module could not be preloaded: SystemExit: 3",
        ]
        assert values(cluster, "rank") == {0: 0}
    finally:
        cluster.stop()


THREADED = """
import threading, time
threading.Thread(target=time.sleep, args=(1000,), daemon=True, name='mine').start()
"""
ON_GPU = """
import torch
torch.cuda.is_initialized = lambda: True
"""


def test_a_module_that_makes_forking_unsafe_is_not_preloaded(home: Path, beside: Path):
    (beside / "threaded.py").write_text(THREADED)
    (beside / "on_gpu.py").write_text(ON_GPU)
    (beside / "slow_module.py").write_text("import os; by = os.getpid()")
    cluster = Cluster.local(ranks=2, preload="threaded,slow_module,on_gpu")
    try:
        words = "is not preloaded, as a process that has imported it cannot be forked safely: it"
        assert cluster.info.notes == [
            f"threaded {words} runs threads of Python (mine)",
            f"on_gpu {words} has opened a GPU",
        ]
        [agent] = agents(cluster)
        seen = "import sys, slow_module; ('threaded' in sys.modules, slow_module.by)"
        assert values(cluster, seen) == {0: (False, agent.pid), 1: (False, agent.pid)}
        before = values(cluster, "import os; kept = True; os.getpid()")
        cluster.restart([0])
        after = values(cluster, "import os; os.getpid() if 'kept' in globals() else 0")
        assert after == {0: 0, 1: before[1]}, "all that began with the first rank's environment"
        assert agents(cluster) == [agent]
    finally:
        cluster.stop()


def test_ranks_can_restart_and_fork_while_user_threads_run(home: Path):
    cluster = Cluster.local(ranks=2, preload="numpy")
    try:
        values(
            cluster,
            """
import multiprocessing, os, threading, time, numpy
counts = [0]
def count():
    while True:
        counts[0] += float(numpy.ones(10).sum()) > 0
        time.sleep(0.001)
threading.Thread(target=count, daemon=True).start()
def forked(queue):
    queue.put((os.getppid(), float(numpy.ones(3).sum()), threading.active_count()))""",
        )
        cluster.restart([1])
        fork = """
context = multiprocessing.get_context("fork")
queue = context.SimpleQueue()
child = context.Process(target=forked, args=(queue,))
child.start()
child.join()
before = counts[0]
while counts[0] == before: time.sleep(0.01)
(child.exitcode, queue.get() == (os.getpid(), 3.0, 1))"""
        run = cluster.run(fork, ranks=[0])
        assert run.wait(60) and run.results == {0: "(0, True)"}, run.info
        assert values(cluster, "'counts' in globals()") == {0: True, 1: False}
    finally:
        cluster.stop()


@pytest.mark.timed
def test_a_restarted_rank_does_not_import_preloaded_modules_again(home: Path, beside: Path):
    """It is ready before it could have imported the preloaded module again."""
    (beside / "slow_module.py").write_text(f"import time; time.sleep({2 * AT_ONCE_S})")
    cluster = Cluster.local(ranks=2, preload="slow_module")
    try:
        taken = []
        for _ in range(3):
            begun = time.monotonic()
            cluster.restart([1])
            values(cluster, "import slow_module")
            taken.append(time.monotonic() - begun)
        assert median(taken) < AT_ONCE_S, taken
    finally:
        cluster.stop()


def test_more_ranks_than_memory_has_room_for_are_refused_in_a_line(home: Path, beside: Path):
    (beside / "sitecustomize.py").write_text(
        "import sys\n"
        "if 'rankroom.agent.node_agent' in sys.orig_argv:\n"
        "    import psutil, types\n"
        "    few = types.SimpleNamespace(total=1 << 30, available=100 << 20)\n"
        "    psutil.virtual_memory = lambda: few\n"
    )
    Cluster.local(ranks=4).stop()
    with pytest.raises(StartError) as caught:
        Cluster.local(ranks=5)
    assert re.fullmatch(
        r"5 ranks do not fit on \S+: each needs 24 MiB of memory before it does anything, and "
        r"100 MiB are free",
        str(caught.value),
    )


def test_ranks_that_are_not_to_be_forked_are_programs_of_their_own(home: Path):
    cluster = Cluster.local(ranks=2, preload="none")
    try:
        [agent] = agents(cluster)
        assert "rankroom.rank.engine" not in agent.cmdline()
        for rank in cluster.ranks:
            assert "rankroom.rank.engine" in psutil.Process(rank.pid).cmdline()
        assert values(cluster, "rank") == {0: 0, 1: 1}
    finally:
        cluster.stop()


@pytest.mark.parametrize("preload", ["", pytest.param("none", marks=pytest.mark.thorough)])
def test_a_rank_calls_its_atexit_functions_when_it_ends(home: Path, tmp_path: Path, preload: str):
    """Libraries register functions with atexit that remove files or complete logs."""
    cluster = Cluster.local(ranks=2, preload=preload)
    register = f"""
import atexit, pathlib
atexit.register(pathlib.Path("{tmp_path}", f"tidied-{{rank}}").touch)
"""
    try:
        assert cluster.run(register).wait(60)
    finally:
        cluster.stop()
    assert {path.name for path in tmp_path.glob("tidied-*")} == {"tidied-0", "tidied-1"}


def test_ranks_end_with_their_node_agent(home: Path):
    cluster = Cluster.local(ranks=2)
    try:
        pids = [rank.pid for rank in cluster.ranks]
        run = cluster.run("print('before', flush=True)\nimport time; time.sleep(1000)")
        assert not run.wait(1)
        [agent] = agents(cluster)
        os.kill(agent.pid, signal.SIGKILL)
        assert run.wait(30) and run.state == "failed"
        assert [rank.state for rank in run.info.ranks] == ["lost", "lost"]
        log = [each["text"] for each in cluster.store.events(run.id) if each["kind"] == "log"]
        assert log == ["before\n", "before\n"]
        how = "ended with its node's agent, which was killed by SIGKILL"
        assert cluster.how_ended(0).startswith(how), cluster.how_ended(0)
        deadline = time.monotonic() + 10
        while any(psutil.pid_exists(pid) for pid in pids):
            assert time.monotonic() < deadline
            time.sleep(0.05)
    finally:
        cluster.stop()
    assert process_tree.marked(process_tree.CLUSTER_MARK, cluster.paths.folder) == set()


@pytest.mark.parametrize("preload", ["", pytest.param("none", marks=pytest.mark.thorough)])
def test_auto_restarted_ranks_get_a_new_node_agent(home: Path, beside: Path, preload: str):
    cluster = Cluster.local(ranks=2, auto_restart=True, preload=preload)
    try:
        values(cluster, "import subprocess; child = subprocess.Popen(['sleep', '1000'])")
        children = list(values(cluster, "child.pid").values())
        [agent] = agents(cluster)
        agent.kill()
        deadline = time.monotonic() + 60
        while cluster.refresh().restarts != {"0": 1, "1": 1} or cluster.alive != [0, 1]:
            assert time.monotonic() < deadline, cluster.info
            time.sleep(0.05)
        [other] = agents(cluster)
        assert other.pid != agent.pid
        assert values(cluster, "rank, 'child' in globals()") == {0: (0, False), 1: (1, False)}
        assert not any(map(process_tree.lives, children))
    finally:
        cluster.stop()


def test_a_client_of_ipyparallel_can_interrupt_a_forked_rank(home: Path):
    cluster = Cluster.local(ranks=1)
    try:
        with ipyparallel.Client(str(cluster.paths.client_file)) as client:
            client.wait_for_engines(1, timeout=20)
            view = client[:]
            begun = time.monotonic()
            sleeping = view.execute("import time; time.sleep(60)", block=False)
            time.sleep(0.5)
            view.client.send_signal("SIGINT", targets=0, block=True)
            with pytest.raises(Exception, match="KeyboardInterrupt"):
                sleeping.get(timeout=20)
            assert time.monotonic() - begun < 20
    finally:
        cluster.stop()


LEFT = """
import subprocess
line = "{words} sleep 1000 </dev/null >/dev/null 2>&1 & echo $!"
int(subprocess.run(["sh", "-c", line], stdout=subprocess.PIPE).stdout)
"""


@pytest.mark.parametrize("preload", ["", pytest.param("none", marks=pytest.mark.thorough)])
@pytest.mark.parametrize(
    ("words", "is_known"),
    [
        pytest.param("setsid nohup", True, id="its session", marks=pytest.mark.thorough),
        pytest.param("env -i", True, id="its environment"),
        pytest.param("env -i setsid nohup", False, id="both"),
    ],
)
def test_detached_processes_end_with_their_rank_or_with_the_last_rank(
    home: Path, preload: str, words: str, is_known: bool
):
    """For example, a server that a cell starts in the background of a shell that ends at once."""
    cluster = Cluster.local(ranks=2, preload=preload)
    try:
        before = {rank.rank: rank.pid for rank in cluster.ranks}

        def begin() -> dict[int, psutil.Process]:
            found = values(cluster, LEFT.format(words=words))
            return {rank: psutil.Process(int(str(pid))) for rank, pid in found.items()}

        left = begin()
        cluster.restart([1])
        # A process with neither the session nor the mark may belong to the rank that is alive.
        assert {rank: process_tree.running(each) for rank, each in left.items()} == {
            0: True, 1: not is_known,
        }  # fmt: skip
        os.kill(before[0], signal.SIGKILL)
        deadline = time.monotonic() + 60
        while "0" not in cluster.refresh().exits:
            assert time.monotonic() < deadline, cluster.info
            time.sleep(0.05)
        cluster.restart([0, 1])
        assert not any(map(process_tree.running, left.values()))
        last = begin()
    finally:
        cluster.stop()
    assert not any(map(process_tree.running, last.values()))


def test_orphaned_processes_are_reaped_and_are_not_children_of_the_rank(home: Path):
    cluster = Cluster.local(ranks=1)
    try:
        found = values(
            cluster,
            """
import os, subprocess, time
pids = [int(subprocess.run(["sh", "-c", "sleep 0.2 >/dev/null & echo $!"],
                           stdout=subprocess.PIPE).stdout) for _ in range(5)]
def is_there(pid):
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return False
    return True
until = time.monotonic() + 20
while any(map(is_there, pids)) and time.monotonic() < until:
    time.sleep(0.05)
if not (child := os.fork()):
    os._exit(7)
ended, status = os.wait()
(sum(map(is_there, pids)), ended == child, os.waitstatus_to_exitcode(status))""",
        )
    finally:
        cluster.stop()
    assert found == {0: (0, True, 7)}
