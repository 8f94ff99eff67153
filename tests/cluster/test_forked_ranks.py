"""Ranks that are forked from a process that has imported what they need."""

from __future__ import annotations

import os
import signal
import time
from pathlib import Path

import ipyparallel
import psutil
import pytest

from rankroom.cluster.local import Cluster
from rankroom.system import process_tree

pytestmark = pytest.mark.cluster

IMPORTED = "import sys; [name in sys.modules for name in ('torch', 'slow_module')]"
OWN = """
import os, random, sys, threading, torch, numpy
(rank, os.getpid(), os.getsid(0), int(os.environ['RANK']), os.getcwd(), random.random(),
 numpy.random.rand(), torch.get_num_threads(), threading.active_count() > 0)"""


def values(cluster: Cluster, source: str) -> dict[int, object]:
    run = cluster.run(source)
    assert run.wait(120) and run.state == "done", run.info
    return {rank: eval(text) for rank, text in run.results.items()}


def fork_servers(cluster: Cluster) -> list[psutil.Process]:
    return [
        each
        for each in process_tree.marked(process_tree.CLUSTER, cluster.paths.folder)
        if "rankroom.agent.fork_server" in each.cmdline()
        and each.pid not in {rank.pid for rank in cluster.ranks}
    ]


@pytest.fixture
def beside(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A folder of modules that Python finds."""
    folder = tmp_path / "modules"
    folder.mkdir()
    monkeypatch.setenv("PYTHONPATH", f"{folder}:{os.environ.get('PYTHONPATH', '')}")
    return folder


def test_a_module_that_is_named_is_imported_once_for_all_ranks(home: Path, beside: Path):
    (beside / "slow_module.py").write_text("import os, time; time.sleep(1)\nby = os.getpid()")
    cluster = Cluster.local(ranks=3, preload="slow_module")
    try:
        assert cluster.info.notes == []
        assert values(cluster, IMPORTED) == {rank: [False, True] for rank in range(3)}
        found = values(cluster, "import os, slow_module; (slow_module.by, os.getpid())")
        importers, pids = zip(*found.values(), strict=True)
        assert len(set(importers)) == 1 and len({*importers, *pids}) == 4
        [server] = fork_servers(cluster)
        assert set(importers) == {server.pid}
        cluster.restart([1])
        assert values(cluster, IMPORTED)[1] == [False, True]
    finally:
        cluster.stop()


def test_the_next_cluster_begins_with_what_cells_of_this_one_imported(home: Path):
    for known in (False, True):
        cluster = Cluster.local(ranks=2)
        try:
            assert values(cluster, IMPORTED) == {rank: [known, False] for rank in range(2)}
            values(cluster, "import torch; float(torch.ones(2).sum())")
            time.sleep(0.5)  # for the supervisor to hear of it, and to write it down
        finally:
            cluster.stop()


def test_each_rank_is_its_own(home: Path):
    cluster = Cluster.local(ranks=2, preload="torch,numpy")
    try:
        one, other = values(cluster, OWN).values()
    finally:
        cluster.stop()
    assert isinstance(one, tuple) and isinstance(other, tuple)
    assert (one[0], one[3], other[0], other[3]) == (0, 0, 1, 1)
    assert one[1] == one[2] and other[1] == other[2]  # in a session of its own
    assert one[4] == other[4] == str(Path.cwd())
    assert one[5] != other[5] and one[6] != other[6]
    assert one[7] == other[7] == max(1, len(os.sched_getaffinity(0)) // 2)


def test_what_cannot_be_imported_is_said_and_left_out(home: Path, beside: Path):
    (beside / "broken_module.py").write_text("1 / 0")
    cluster = Cluster.local(ranks=1, preload="broken_module,no_such_module")
    try:
        assert cluster.info.notes == [
            "broken_module could not be preloaded: ZeroDivisionError: division by zero",
            "no_such_module could not be preloaded: ModuleNotFoundError: No module named "
            "'no_such_module'",
        ]
        assert values(cluster, "rank") == {0: 0}
    finally:
        cluster.stop()


def test_where_a_module_starts_threads_ranks_are_not_forked(home: Path, beside: Path):
    (beside / "threaded.py").write_text(
        "import threading, time\n"
        "threading.Thread(target=time.sleep, args=(1000,), daemon=True, name='mine').start()\n"
    )
    cluster = Cluster.local(ranks=2, preload="threaded")
    try:
        [note] = cluster.info.notes
        assert note.startswith("ranks are started one by one: with threaded imported")
        assert "it runs threads of Python (mine)" in note
        assert values(cluster, "import sys; 'threaded' in sys.modules") == {0: False, 1: False}
    finally:
        cluster.stop()


def test_ranks_that_are_not_to_be_forked_are_programs_of_their_own(home: Path):
    cluster = Cluster.local(ranks=2, preload="none")
    try:
        assert fork_servers(cluster) == []
        for rank in cluster.ranks:
            assert "rankroom.rank.engine" in psutil.Process(rank.pid).cmdline()
        assert values(cluster, "rank") == {0: 0, 1: 1}
    finally:
        cluster.stop()


def test_ranks_end_with_the_process_that_forked_them(home: Path):
    cluster = Cluster.local(ranks=2)
    try:
        pids = [rank.pid for rank in cluster.ranks]
        run = cluster.run("print('before', flush=True)\nimport time; time.sleep(1000)")
        assert not run.wait(1)
        [server] = fork_servers(cluster)
        os.kill(server.pid, signal.SIGKILL)
        assert run.wait(30) and run.state == "failed"
        assert [rank.state for rank in run.info.ranks] == ["lost", "lost"]
        log = [each["text"] for each in cluster.store.events(run.id) if each["kind"] == "log"]
        assert log == ["before\n", "before\n"]
        deadline = time.monotonic() + 10
        while any(psutil.pid_exists(pid) for pid in pids):
            assert time.monotonic() < deadline
            time.sleep(0.05)
    finally:
        cluster.stop()
    assert process_tree.marked(process_tree.CLUSTER, cluster.paths.folder) == set()


def test_a_client_of_ipyparallel_can_interrupt_a_forked_rank(home: Path):
    cluster = Cluster.local(ranks=1)
    try:
        client = ipyparallel.Client(str(cluster.paths.client_file))
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
