"""A cluster loses its supervisor, controller or clients: errors, records, and no orphans."""

import os
import signal
import subprocess
import sys
import time

import psutil
import pytest

from cells import failure, finish, states
from rankroom.cluster import actions
from rankroom.cluster.launch import own_processes
from rankroom.cluster.local import Cluster
from rankroom.errors import NoClusterError
from rankroom.record.cluster_file import ClusterPaths, clusters_folder
from rankroom.record.store import Store
from rankroom.system import process_tree

pytestmark = [
    pytest.mark.cluster,
    pytest.mark.fault("{id}", "every line is in the record, nothing is left running"),
]

COUNT = """
import itertools, time
for i in itertools.count():
    print(i)
    time.sleep(0.01)
"""


def until(met, seconds=120):
    """Wait until a condition is met; AssertionError if it is not met in time."""
    deadline = time.monotonic() + seconds
    while not met():
        assert time.monotonic() < deadline
        time.sleep(0.02)


@pytest.fixture
def two(home):
    """Two ranks whose supervisor or controller will be killed."""
    made = Cluster.local(ranks=2)
    yield made
    made.stop()
    assert own_processes(made.paths) == []


def controller_of(cluster):
    supervisor = psutil.Process(cluster.paths.read().supervisor)
    [found] = [
        p
        for p in supervisor.children()
        if "rankroom.supervisor.processes.controller" in p.cmdline()
    ]
    return found


def printed(cluster, run, rank):
    """The numbers that `rank` printed, according to the record."""
    text = "".join(
        event["text"]
        for event in cluster.store.events(run.id)
        if (event["kind"], event["rank"]) == ("log", rank)
    )
    return [int(line) for line in text.splitlines()]


@pytest.mark.parametrize(
    ("who", "words"),
    [
        ("controller", "the ipyparallel controller was killed by SIGKILL"),
        ("supervisor", "its supervisor was killed"),
    ],
)
def test_a_run_whose_cluster_dies_fails_with_the_cause_and_all_its_lines(two, who, words):
    run = two.run(COUNT)
    until(lambda: all(len(printed(two, run, rank)) > 10 for rank in (0, 1)))
    spool = two.paths.spool(1) / "stdout"
    victim = controller_of(two).pid if who == "controller" else two.paths.read().supervisor
    os.kill(victim, signal.SIGKILL)
    assert run.wait(60)
    assert run.state == "failed"
    assert states(run) == {0: "lost", 1: "lost"}
    assert failure(run) in [
        f"rank {rank}: RankLost: rank {rank} ended with its cluster: {words}" for rank in (0, 1)
    ]
    # No process of the cluster is left, nor any child of its ranks or its controller.
    until(lambda: own_processes(two.paths) == [])
    whole = spool.read_text().splitlines()
    assert printed(two, run, 1) == [int(line) for line in whole] == list(range(len(whole)))
    with pytest.raises(NoClusterError, match=rf"is gone: {words}; `%cluster restart` starts it"):
        two.run("1")
    assert two.paths.unfinished() == []
    two.stop()
    again = Cluster.local(ranks=1, name=two.name)
    try:
        assert finish(again, "rank").results == {0: "0"}
    finally:
        again.stop()


def test_a_rank_stuck_in_c_code_and_its_children_end_with_the_supervisor(two):
    source = """
    import ctypes, os, subprocess, sys
    child = subprocess.Popen([sys.executable, "-c", "import time; time.sleep(600)"],
                             start_new_session=True)
    print(child.pid)
    # Keeps Python's lock for ever: no thread of this rank runs any more.
    ctypes.PyDLL(None).pause()
    """
    run = two.run("\n".join(line.strip() for line in source.splitlines()), ranks=[0])
    until(lambda: (two.paths.spool(0) / "stdout").read_text().strip())
    child = int((two.paths.spool(0) / "stdout").read_text())
    rank, beside = psutil.Process(two.ranks[0].pid), psutil.Process(child)
    os.kill(two.paths.read().supervisor, signal.SIGKILL)
    until(lambda: not process_tree.running(rank) and not process_tree.running(beside))
    assert run.wait(60)


def test_stopping_a_cluster_during_a_run_leaves_no_gap_in_its_record(home):
    cluster = Cluster.local(ranks=2)
    run = cluster.run(COUNT)
    until(lambda: len(printed(cluster, run, 0)) > 10)
    cluster.stop()
    assert run.state == "failed"
    numbers = printed(cluster, run, 0)
    assert len(numbers) > 10
    assert numbers == list(range(len(numbers)))
    until(lambda: not cluster.paths.folder.exists())


def test_spools_of_an_unfinished_run_survive_reuse_of_the_cluster_name(home):
    """No client is left when the supervisor is killed; then the cluster's name is used again."""
    kernel = subprocess.Popen(
        [
            sys.executable,
            "-c",
            "from rankroom.cluster.local import Cluster; import time\n"
            f"c = Cluster.local(ranks=1, name='kept'); c.run({COUNT!r}); time.sleep(600)",
        ]
    )
    spools = ClusterPaths("kept").spool(0)
    until(lambda: list(spools.glob("*.jsonl")))
    kernel.kill()
    kernel.wait()
    paths = ClusterPaths("kept")
    os.kill(paths.read().supervisor, signal.SIGKILL)
    until(lambda: own_processes(paths) == [])
    [run] = paths.unfinished()
    assert Store().load(run).state == "lost"
    again = Cluster.local(ranks=1, name="kept")
    try:
        assert again.paths.unfinished() == []
        # The record is completed from the spool files that were set aside.
        until(lambda: again.store.load(run).state == "failed")
        until(lambda: [each.name for each in clusters_folder().iterdir()] == ["kept"])
    finally:
        again.stop()


def test_a_run_of_a_dead_kernel_fails_when_its_cluster_is_stopped(home):
    kernel = subprocess.Popen(
        [
            sys.executable,
            "-c",
            "from rankroom.cluster.local import Cluster; import time\n"
            f"c = Cluster.local(ranks=1, name='kept'); c.run({COUNT!r}); time.sleep(600)",
        ]
    )
    until(lambda: list(ClusterPaths("kept").spool(0).glob("*.jsonl")))
    kernel.kill()
    kernel.wait()
    [run] = Store().newest()
    assert run.state == "running"
    actions.stop("kept")
    found = Store().load(run.id)
    assert (found.state, found.failure.evalue) == (
        "failed", "rank 0 ended with its cluster: it was stopped",
    )  # fmt: skip
    assert not ClusterPaths("kept").folder.exists()


def test_a_cluster_without_clients_or_a_run_ends_after_its_lease(home, monkeypatch, tmp_path):
    monkeypatch.setenv("RANKROOM_LEASE_HOURS", str(2 / 3600))
    cluster = Cluster.local(ranks=1)
    supervisor = psutil.Process(cluster.paths.read().supervisor)
    other = Cluster.attach(cluster.name)
    cluster.close()
    assert cluster.paths.read().lease == pytest.approx(2 / 3600)
    # `other` still holds the cluster, which therefore outlives its lease.
    with pytest.raises(psutil.TimeoutExpired):
        supervisor.wait(4)
    assert cluster.paths.read().state == "running"
    gate = tmp_path / "gate"
    run = other.run(f"import os, time\nwhile not os.path.exists({str(gate)!r}): time.sleep(0.1)")
    # The run's spool file shows that the rank has begun the cell.
    until(lambda: (other.paths.spool(0) / f"{run.id}.jsonl").exists())
    other.close()
    # A run in progress keeps the cluster alive, too.
    with pytest.raises(psutil.TimeoutExpired):
        supervisor.wait(4)
    assert cluster.paths.read().state == "running"
    gate.touch()
    supervisor.wait(120)
    assert Store().load(run.id).state == "done"
    assert own_processes(cluster.paths) == []


def test_a_crashed_rank_is_reported_with_its_signal_and_can_be_restarted(two):
    os.kill(two.ranks[1].pid, signal.SIGSEGV)
    until(lambda: "1" in two.refresh().exits)
    assert two.how_ended(1).startswith("was killed by SIGSEGV: it crashed in ")
    two.restart([1])
    assert finish(two, "rank").results == {0: "0", 1: "1"}
