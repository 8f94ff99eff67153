"""Horovod is initialized again if it shut down by itself between two cells, or if init failed."""

import pytest

from cells import failure, finish, log, states, values
from rankroom.cluster.local import Cluster

pytestmark = pytest.mark.cluster

START = """
import os
os.environ["HOROVOD_GLOO_TIMEOUT_SECONDS"] = "2"
import horovod.torch as hvd, torch
from rankroom.rank.frameworks.horovod import horovod_adapter as adapter
hvd.init()
ones = torch.ones(2)
"""
ADD = "hvd.allreduce(ones, op=hvd.Sum).tolist()"
# Rank 1 is stopped for longer than Gloo's timeout on rank 0. When it continues, it may already have
# been released, as rank 0 may have failed by then.
STOPPED = """
if rank == 1:
    import signal, subprocess
    waker = subprocess.Popen(["sh", "-c", f"sleep 5; kill -CONT {os.getpid()}"])
    os.kill(os.getpid(), signal.SIGSTOP)
    waker.wait()
import time
library = adapter._libraries["torch"]
while not (library.gave_up or library.released):
    time.sleep(0.05)
"""


@pytest.fixture
def ranks(home):
    made = Cluster.local(ranks=2, preload="torch,horovod.torch")
    try:
        finish(made, START)
        yield made
    finally:
        made.stop()


@pytest.mark.thorough
def test_a_shutdown_between_cells_is_reported_and_horovod_reinitialized(ranks):
    assert finish(ranks, STOPPED).state == "done"
    run = finish(ranks, ADD)
    assert run.results == {0: "[2.0, 2.0]", 1: "[2.0, 2.0]"}
    for rank in (0, 1):
        assert "Horovod shut down by itself between two cells and is initialized again" in log(
            run, rank, "stderr"
        )
        assert "Timed out" in log(run, rank, "stderr")
    assert log(finish(ranks, ADD), 0, "stderr") == ""


def test_a_cell_in_which_horovod_shuts_down_fails_and_the_next_one_works(ranks):
    run = finish(ranks, STOPPED + ADD)
    assert run.state == "failed", run
    assert "HorovodInternalError" in failure(run)
    assert finish(ranks, ADD).results == {0: "[2.0, 2.0]", 1: "[2.0, 2.0]"}


@pytest.mark.thorough
def test_a_failed_horovod_init_is_retried_on_all_ranks(ranks):
    """For example, a connection breaks while it is made: all ranks try again together."""
    source = """
    hvd.shutdown()
    library = adapter._libraries["torch"]
    whole, tried = library._original_init, []
    def broken(*args):
        tried.append(rank)
        if len(tried) == 1 and rank == 1:
            raise ValueError("Horovod initialization failed. Please check log messages above.")
        whole(*args)
    library._original_init = broken
    try:
        hvd.init()
    finally:
        library._original_init = whole
    len(tried)
    """
    assert values(ranks, source) == [2, 2]
    assert values(ranks, ADD) == [[2.0, 2.0]] * 2


def test_using_horovod_without_init_fails_the_cell(home):
    cluster = Cluster.local(ranks=2, preload="torch,horovod.torch")
    try:
        run = finish(cluster, "import horovod.torch as hvd\nhvd.rank()")
        assert run.state == "failed"
        assert "has not been initialized" in failure(run)
        assert set(states(run).values()) == {"error"}
    finally:
        cluster.stop()
