"""A rank is restarted, on request or after it died, and the others keep their state."""

import contextlib
import os
import signal
import threading
import time

import psutil
import pytest

from cells import failure, finish, log, states, values
from rankroom.cluster.local import Cluster
from rankroom.errors import NoClusterError, RankroomError, StartError, UsageError
from rankroom.system import process_tree

pytestmark = [
    pytest.mark.cluster,
    pytest.mark.fault("{id}", "the other ranks keep their state and are wired again"),
]

SETUP = """
import os, subprocess, sys, threading, time
import torch, torch.distributed as dist, horovod.torch as hvd
ones = torch.ones(2)
"""
BOTH = """
hvd.init(); dist.init_process_group("gloo")
[hvd.allreduce(ones, op=hvd.Sum).tolist(), dist.all_reduce(sent := ones.clone()) or sent.tolist()]
"""


def hold_starts(folder, patch):
    """Return the gate of clusters started from now on: while the file exists, no rank starts."""
    gate = folder / "gate"
    (folder / "sitecustomize.py").write_text(
        "import os, sys, time\n"
        f"while os.path.exists({str(gate)!r}) and 'rankroom.rank.engine' in sys.orig_argv:\n"
        "    time.sleep(0.02)\n"
    )
    path = os.pathsep.join([str(folder), os.environ.get("PYTHONPATH", "")])
    patch.setenv("PYTHONPATH", path)
    return gate


@pytest.fixture(scope="module")
def three(tmp_path_factory):
    """Three ranks with torch and Horovod, of which some will be restarted."""
    with pytest.MonkeyPatch.context() as patch:
        home = tmp_path_factory.mktemp("home")
        patch.setenv("RANKROOM_HOME", str(home))
        gate = hold_starts(home, patch)
        made = Cluster.local(ranks=3, preload="torch,horovod.torch")
        made.gate = gate
        try:
            finish(made, SETUP)
            yield made
        finally:
            made.stop()


@pytest.fixture
def wired(three):
    """The three ranks, connected by both libraries, each with a value of its own in `kept`."""
    finish(three, SETUP)
    assert values(three, f"kept = [rank]\n{BOTH}") == [[[3.0] * 2] * 2] * 3
    return three


def until(met, seconds=120):
    """Wait until a condition is met; AssertionError if it is not met in time."""
    deadline = time.monotonic() + seconds
    while not met():
        assert time.monotonic() < deadline
        time.sleep(0.02)


def lives(pid):
    """True if the process is running; a zombie is not."""
    try:
        return process_tree.running(psutil.Process(pid))
    except psutil.NoSuchProcess:
        return False


@pytest.mark.parametrize("rank", [2, 0])
def test_a_restarted_rank_rejoins_collectives_and_the_others_keep_their_state(wired, rank):
    before = {each.rank: each.pid for each in wired.ranks}
    wired.restart([rank])
    after = {each.rank: each.pid for each in wired.ranks}
    assert {r for r in before if before[r] != after[r]} == {rank}
    assert not lives(before[rank])
    # The names that every rank has are defined, but no variables of earlier cells.
    assert values(wired, "[rank, size, 'kept' in globals()]", ranks=[rank]) == [[rank, 3, False]]
    finish(wired, SETUP, ranks=[rank])
    kept = values(wired, "globals().get('kept', [])")
    assert kept == [[] if r == rank else [r] for r in range(3)]
    # No cell has initialized the libraries again: Rankroom has done so on all ranks.
    assert values(wired, "hvd.allreduce(ones, op=hvd.Sum).tolist()") == [[3.0] * 2] * 3
    source = "dist.all_reduce(sent := ones.clone()); sent.tolist()"
    assert values(wired, source) == [[3.0] * 2] * 3
    assert values(wired, BOTH) == [[[3.0] * 2] * 2] * 3


def test_restarting_a_rank_during_a_run_releases_the_other_ranks(wired):
    run = wired.run("print(1)\nif rank == 1: time.sleep(300)\nhvd.allreduce(ones)")
    until(lambda: all(log(run, rank) for rank in (0, 1, 2)))
    wired.restart([1])
    assert run.wait(60)
    # The peers may notice the broken connection before they are released.
    assert states(run)[1] == "lost"
    assert {states(run)[0], states(run)[2]} <= {"released", "error"}
    assert failure(run) == "rank 1: RankLost: rank 1 was restarted"
    finish(wired, SETUP, ranks=[1])
    assert values(wired, BOTH) == [[[3.0] * 2] * 2] * 3
    assert values(wired, "kept", ranks=[0, 2]) == [[0], [2]]


def test_child_processes_of_a_rank_end_with_it(three):
    source = """
    import subprocess, sys
    sleep = "import subprocess, sys, time; "
    child = subprocess.Popen([sys.executable, "-c", sleep + "print(subprocess.Popen("
        "[sys.executable, '-c', 'import time; time.sleep(600)'], start_new_session=True, "
        "stdout=2).pid, flush=True); time.sleep(600)"], start_new_session=True,
        stdout=subprocess.PIPE)
    [child.pid, int(child.stdout.readline())]
    """
    [pids] = values(three, source, ranks=[2])
    other = values(three, source, ranks=[1])[0]
    three.restart([2])
    assert [lives(pid) for pid in pids] == [False, False]
    assert [lives(pid) for pid in other] == [True, True]
    # The grandchild is orphaned, and ends with the rank all the same.
    os.kill(other[0], signal.SIGKILL)
    three.restart([1])
    assert not lives(other[1])


def test_a_killed_rank_is_reported_with_its_memory_use_and_restarted(three):
    hold = "import os, signal; held = bytearray(400 << 20); held[::4096] = b'1' * len(held[::4096])"
    finish(three, hold, ranks=[1])
    pid = three.ranks[1].pid
    assert psutil.Process(pid).memory_info().rss > 400 << 20
    # The node agent samples memory once a second, and the rank cannot tell when. So the rank lives
    # on for more than a second, and for 20 wakeups of the supervisor.
    source = f"""
    import psutil, time
    time.sleep(1.1)
    turns = lambda: psutil.Process({three.paths.read().supervisor}).num_ctx_switches().voluntary
    begun = turns()
    while turns() < begun + 20:
        time.sleep(0.1)
    os.kill(os.getpid(), signal.SIGKILL)
    """
    run = finish(three, source, ranks=[1])
    assert "rank 1 was killed by SIGKILL; it last used " in failure(run)
    words = three.how_ended(1)
    had, unit = words.split("it last used ")[1].split()[:2]
    assert unit == "GiB" or 400 < float(had) < 1000
    assert "the limit is " in words
    with pytest.raises(NoClusterError, match=r"`%cluster restart --ranks 1` restarts it"):
        three.run("1")
    three.restart([1])
    assert "1" not in three.info.exits
    assert values(three, "rank") == [0, 1, 2]


def test_an_attached_client_is_notified_once_of_a_restart(three):
    other = Cluster.attach(three.name)
    try:
        finish(other, "1")
        three.restart([2])
        assert other.ranks[2].pid == three.ranks[2].pid
        run = finish(other, "rank")
        assert run.results == {0: "0", 1: "1", 2: "2"}
        assert run.info.notes == ["rank 2 was restarted: its variables are gone"]
        assert finish(other, "rank").info.notes == []
        # No note: the command itself informed the client that asked for the restart.
        assert finish(three, "rank").info.notes == []
    finally:
        other.close()


def test_invalid_restart_requests_are_refused(three):
    with pytest.raises(UsageError, match=r"no rank 7 .*: this cluster has 0–2"):
        three.restart([7])
    with pytest.raises(UsageError, match="no ranks chosen"):
        three.restart([])
    other = Cluster.attach(three.name)
    try:
        three.gate.touch()
        first = threading.Thread(target=three.restart, args=([1],))
        first.start()
        until(lambda: 1 in other.refresh().starting)
        with pytest.raises(UsageError, match=r"rank 1 is already being restarted: wait"):
            other.restart([1])
        three.gate.unlink()
        # A cell waits for a rank that is starting.
        assert values(other, "rank") == [0, 1, 2]
        first.join()
    finally:
        three.gate.unlink(missing_ok=True)
        other.close()


def test_a_failed_restart_reports_the_cause_and_can_be_retried(home, monkeypatch, tmp_path):
    switch = tmp_path / "switch"
    (tmp_path / "sitecustomize.py").write_text(
        "import os, sys\n"
        f"if os.path.exists({str(switch)!r}) and 'rankroom.rank.engine' in sys.orig_argv:\n"
        "    sys.exit('no more ranks today')\n"
    )
    path = os.pathsep.join([str(tmp_path), os.environ.get("PYTHONPATH", "")])
    monkeypatch.setenv("PYTHONPATH", path)
    cluster = Cluster.local(ranks=2, preload="none")
    try:
        switch.touch()
        with pytest.raises(StartError, match="rank 1 ended with status 1 while starting") as error:
            cluster.restart([1])
        assert str(error.value).endswith("no more ranks today")
        switch.unlink()
        cluster.restart([1])
        assert values(cluster, "rank") == [0, 1]
        cluster.stop()
        with pytest.raises(
            NoClusterError, match="has been stopped: `%cluster start` starts a new one"
        ):
            cluster.restart([1])
    finally:
        with contextlib.suppress(RankroomError):
            cluster.stop()


def test_a_rank_is_restarted_automatically_at_most_three_times_a_minute(home):
    cluster = Cluster.local(ranks=2, auto_restart=True)
    try:
        finish(cluster, "kept = rank")
        die = "import os, signal\nif rank == 1: os.kill(os.getpid(), signal.SIGKILL)"
        for _ in range(3):
            run = finish(cluster, die)
            assert states(run) == {0: "ok", 1: "lost"}
            assert "rank 1 was killed by SIGKILL" in failure(run)
            after = finish(cluster, "print(globals().get('kept'))")
            assert log(after, 0) == "0\n"
            assert log(after, 1) == "None\n"
            [note] = after.info.notes
            assert note.startswith("rank 1 was restarted after it was killed by SIGKILL")
            assert note.endswith(": its variables are gone")
        with pytest.raises(NoClusterError, match=r"3 times within 60 s, so it stays down"):
            # Several times, in case the first restarts took longer than a minute.
            for _ in range(5):
                finish(cluster, die)
                finish(cluster, "1")
        cluster.restart([1])
        assert values(cluster, "rank") == [0, 1]
    finally:
        cluster.stop()


def test_a_rank_that_is_starting_is_not_restarted(home, monkeypatch, tmp_path):
    gate = hold_starts(tmp_path, monkeypatch)
    cluster = Cluster.local(ranks=2, auto_restart=True)
    try:
        gate.touch()
        os.kill(cluster.ranks[1].pid, signal.SIGKILL)
        until(lambda: cluster.refresh().restarts.get("1"))
        assert cluster.info.starting == [1]
        with pytest.raises(UsageError, match="rank 1 is already being restarted"):
            cluster.restart([1])
        gate.unlink()
        assert values(cluster, "rank") == [0, 1]
    finally:
        gate.unlink(missing_ok=True)
        cluster.stop()
