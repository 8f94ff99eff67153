"""ipyparallel's own client on a cluster: `%%px` and views work as with any other engines."""

import os
import signal
import time
from collections.abc import Iterator
from pathlib import Path

import ipyparallel
import psutil
import pytest

from cells import finish, log
from rankroom.cluster.local import Cluster
from rankroom.system.polling import poll_until

pytestmark = pytest.mark.cluster


@pytest.fixture
def cluster(home: Path) -> Iterator[Cluster]:
    cluster = Cluster.local(ranks=2, auto_restart=True)
    yield cluster
    cluster.stop()


@pytest.fixture
def client(cluster: Cluster) -> Iterator[ipyparallel.Client]:
    with ipyparallel.Client(str(cluster.paths.client_file), timeout=30) as client:
        client.wait_for_engines(2, timeout=90)
        yield client


def test_a_client_receives_the_output_of_what_it_runs(client: ipyparallel.Client):
    source = (
        "import sys\nfrom IPython.display import HTML, display\n"
        "print('out', rank)\nprint('err', file=sys.stderr)\ndisplay(HTML('<b>'))\nrank + 10"
    )
    shown = client[:].execute(source, silent=False, block=True)
    shown.wait_for_output(30)
    assert shown.stdout == ["out 0\n", "out 1\n"]
    assert shown.stderr == ["err\n", "err\n"]
    assert [each[0]["data"]["text/html"] for each in shown.outputs] == ["<b>", "<b>"]
    results = [each["data"]["text/plain"] for each in shown.execute_result]
    assert results == ["10", "11"]
    failed = client[:].execute("1 / (rank - rank)", silent=False)
    with pytest.raises(ipyparallel.CompositeError, match="ZeroDivisionError"):
        failed.get(30)
    failed.wait_for_output(30)
    assert [each["error"].ename for each in failed.metadata] == ["ZeroDivisionError"] * 2


def test_a_run_records_its_output_despite_a_client(cluster: Cluster, client: ipyparallel.Client):
    """Including that of a logger that a client's request configured: it keeps that stream."""
    setup = "import logging, sys\nlogging.basicConfig(level='INFO', format='%(message)s')"
    client[:].execute(setup, block=True)
    run = finish(cluster, "print('mine', rank)\nlogging.info('logged')\nrank")
    assert run.results == {0: "0", 1: "1"}
    assert log(run, 1) == "mine 1\n"
    assert log(run, 1, "stderr") == "logged\n"
    shown = client[:].execute("logging.info('again')", silent=False, block=True)
    shown.wait_for_output(30)
    assert shown.stderr == ["again\n", "again\n"]
    assert log(finish(cluster, "pass"), 0) == ""


def test_a_client_can_kill_a_rank_and_get_a_reply(cluster: Cluster, client: ipyparallel.Client):
    before = client[:].apply_sync(os.getpid)
    client.send_signal(signal.SIGKILL, targets=[1], block=True)
    assert poll_until(lambda: [rank.pid for rank in cluster.ranks] != before, 60)
    assert poll_until(lambda: len(cluster.alive) == 2, 60)
    after = finish(cluster, "import os; os.getpid()").results
    assert after[0] == str(before[0]) and after[1] != str(before[1])


@pytest.mark.thorough  # ipyparallel's engines give up earlier
def test_ranks_survive_a_pause_of_the_controllers_heartbeats(home: Path):
    cluster = Cluster.local(ranks=2)
    try:
        assert finish(cluster, "kept = rank").state == "done"
        pids = [rank.pid for rank in cluster.ranks]
        supervisor = psutil.Process(cluster.info.supervisor)
        is_controller = "rankroom.supervisor.processes.controller"
        [controller] = [each for each in supervisor.children() if is_controller in each.cmdline()]
        hearts = controller.children()  # one of them sends the heartbeats
        for process in hearts:
            process.suspend()
        time.sleep(43)
        for process in hearts:
            process.resume()
        time.sleep(3)
        assert cluster.refresh().exits == {} and [rank.pid for rank in cluster.ranks] == pids
        assert finish(cluster, "assert kept == rank").state == "done"
        assert "heartbeat" not in cluster.paths.rank_log(0).read_text()
    finally:
        cluster.stop()


def test_a_load_balanced_view_is_refused_where_it_is_used(client: ipyparallel.Client):
    """There is no task queue, so a request to it would never be answered."""
    view = client.load_balanced_view()
    with pytest.raises(ipyparallel.RemoteError, match="load-balanced views do not work"):
        view.apply(os.getpid).get(30)
    with pytest.raises(ipyparallel.CompositeError, match="this cluster has no task queue"):
        view.map_async(abs, range(4)).get(30)
    assert len(client[:].apply_sync(os.getpid)) == 2
