"""Two kernels on one cluster: interrupts at the same time, or too late, break nothing."""

import threading

import pytest

from cells import finish, log, states, values
from rankroom.cluster.local import Cluster
from rankroom.errors import NoClusterError, RankroomError
from served import serve

pytestmark = [
    pytest.mark.cluster,
    pytest.mark.fault("{id}", "nothing breaks, and who is refused gets one line"),
]


@pytest.fixture
def other(cluster, monkeypatch):
    """A second client of the same cluster, as in another kernel."""
    monkeypatch.setattr(Cluster, "current", None)
    monkeypatch.setenv("RANKROOM_HOME", str(cluster.store.root))
    made = Cluster.attach(cluster.name)
    yield made
    made.close()


def begin(cluster, source):
    """Start a run, and wait until both ranks execute it, so that an interrupt is meant for it."""
    run = cluster.run(f"print('here', flush=True)\n{source}")
    while not all(log(run, rank) for rank in (0, 1)):
        assert not run.wait(0.05)
    return run


def test_two_kernels_interrupt_a_run_at_once(cluster, other):
    values(cluster, "import time\nkept = rank\n1")
    for _ in range(5):
        run = begin(cluster, "time.sleep(300)")
        threads = [threading.Thread(target=each.interrupt) for each in (cluster, other)]
        for thread in threads:
            thread.start()
        assert run.wait(60), run
        for thread in threads:
            thread.join()
        assert states(run) == {0: "interrupted", 1: "interrupted"}
        assert values(cluster, "kept") == [0, 1]


def test_two_kernels_and_a_browser_interrupt_a_run_at_once(cluster, other, tmp_path):
    values(cluster, "import time\nkept = rank\n1")
    home = str(cluster.store.root)
    with serve(tmp_path, "noting_server.py", RANKROOM_HOME=home) as server:
        for _ in range(5):
            run = begin(cluster, "time.sleep(300)")
            together, told = threading.Barrier(4), []

            def press(run=run, together=together, told=told):
                together.wait()
                told.append(server.post(f"rankroom/runs/{run.id}/interrupt"))

            def interrupt(one, together=together):
                together.wait()
                one.interrupt()

            threads = [threading.Thread(target=interrupt, args=(one,)) for one in (cluster, other)]
            threads += [threading.Thread(target=press) for _ in range(2)]
            for thread in threads:
                thread.start()
            assert run.wait(60), run
            for thread in threads:
                thread.join()
            assert states(run) == {0: "interrupted", 1: "interrupted"}
            # A request that came too late is refused in one line.
            for reply in told:
                assert reply.status == 200 or "is over" in reply.json["message"], reply
                assert "\n" not in reply.json["message"]
            assert values(cluster, "kept") == [0, 1]


def test_interrupts_of_idle_ranks_do_not_affect_the_next_cell(cluster, other):
    for _ in range(50):
        cluster.interrupt()
        other.interrupt()
        assert values(cluster, "kept") == [0, 1]


def test_a_kernel_may_interrupt_a_run_that_another_kernel_started(cluster, other):
    run = begin(cluster, "while True: pass")
    other.interrupt()
    assert run.wait(60)
    assert run.state == "interrupted" and states(run) == {0: "interrupted", 1: "interrupted"}


def test_a_second_kernel_is_refused_while_a_run_is_in_progress(cluster, other, tmp_path):
    gate = tmp_path / "gate"
    run = cluster.run(f"import os\nwhile not os.path.exists({str(gate)!r}): time.sleep(0.01)")
    with pytest.raises(RankroomError, match="busy with a run of this notebook"):
        other.run("1")
    gate.touch()
    assert run.wait(60)
    assert finish(other, "kept").results == {0: "0", 1: "1"}


def test_one_of_two_cells_submitted_at_once_is_refused(cluster, other, tmp_path):
    for turn in range(10):
        gate = tmp_path / f"gate-{turn}"
        source = f"import os\nwhile not os.path.exists({str(gate)!r}): time.sleep(0.01)"
        together, runs, refused = threading.Barrier(2), [], []

        def begin_with(one, together=together, source=source, runs=runs, refused=refused):
            together.wait()
            try:
                runs.append(one.run(source))
            except RankroomError as error:
                refused.append(str(error))

        threads = [threading.Thread(target=begin_with, args=(one,)) for one in (cluster, other)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        gate.touch()
        [run], [words] = runs, refused
        assert "is busy with a run of" in words and "\n" not in words
        assert run.wait(60) and run.state == "done"


def test_a_kernel_follows_a_run_that_another_kernel_started(cluster, home, monkeypatch, tmp_path):
    gate = tmp_path / "gate"
    run = cluster.run(f"import os\nwhile not os.path.exists({str(gate)!r}): time.sleep(0.01)\n7")
    monkeypatch.setenv("RANKROOM_HOME", str(cluster.store.root))
    monkeypatch.setattr(Cluster, "current", None)
    following = Cluster.attach(cluster.name)
    try:
        assert following.latest is not None and following.latest.id == run.id
        assert following.busy
        gate.touch()
        assert following.latest.wait(60)
        assert following.latest.results == {0: "7", 1: "7"}
    finally:
        following.close()


def test_running_and_attaching_are_refused_once_the_cluster_is_stopped(home):
    gone = Cluster.local(ranks=1)
    other = Cluster.attach(gone.name)
    other.stop()
    with pytest.raises(NoClusterError, match="has been stopped") as told:
        gone.run("1")
    assert "\n" not in str(told.value)
    with pytest.raises(NoClusterError, match="no cluster"):
        Cluster.attach(gone.name)
    gone.close()
