"""Output after a cell's end is in the next cell's record or, if there is none, in its own."""

from __future__ import annotations

import contextlib
import time
from collections.abc import Iterator

import pytest

from cells import finish, log, values
from rankroom.cluster.local import Cluster
from rankroom.record.store import Store
from rankroom.run.run import Run

pytestmark = pytest.mark.cluster
# A child process prints 0.5 s later, when the cell is over.
CHILD = """
import subprocess
print("cell {cell}")
child = subprocess.Popen(["sh", "-c", "sleep 0.5; echo {cell}: rank $RANK; sleep 600"])
"""


@contextlib.contextmanager
def ranks(number: int) -> Iterator[Cluster]:
    cluster = Cluster.local(ranks=number)
    try:
        yield cluster
    finally:
        cluster.stop()


def wait_for(cluster: Cluster, rank: int, words: str) -> None:
    """Wait until `words` are in the file of a rank's stdout, the only place that shows them."""
    until = time.monotonic() + 60
    while words not in (cluster.paths.spool(rank) / "stdout").read_text():
        assert time.monotonic() < until
        time.sleep(0.05)


def lines(run: Run) -> int:
    return Store().load(run.id).lines


ENCODED = """
import io, sys
sys.stdout = io.TextIOWrapper(sys.stdout.buffer, encoding="utf-8", write_through=False)
print("printed")
"""


def test_what_a_cell_has_put_in_place_of_stdout_is_flushed_at_its_end(cluster):
    try:
        assert [log(finish(cluster, ENCODED), rank) for rank in (0, 1)] == ["printed\n"] * 2
        assert log(finish(cluster, "print('again')"), 0) == "again\n"
    finally:
        finish(cluster, "sys.stdout.detach(); sys.stdout = sys.__stdout__")
    assert log(finish(cluster, "print('plain')"), 1) == "plain\n"


def test_lines_between_cells_are_in_the_last_cells_record_if_the_cluster_is_stopped(home):
    with ranks(3) as cluster:
        first = finish(cluster, CHILD.format(cell="first"))
        for rank in range(3):
            wait_for(cluster, rank, f"first: rank {rank}")
        second = finish(cluster, CHILD.format(cell="second"), ranks=[0, 2])
        finish(cluster, "import atexit\natexit.register(print, 'of its end')", ranks=[1])
        for rank in (0, 2):
            wait_for(cluster, rank, f"second: rank {rank}")
        assert log(second, 0) == "first: rank 0\ncell second\n"
        last = cluster.latest
    assert log(first, 1) == "cell first\n"
    errors = [log(run, rank, "stderr") for run in (first, second, last) for rank in range(3)]
    assert not any(errors), errors
    assert log(second, 0) == "first: rank 0\ncell second\nsecond: rank 0\n"
    assert log(second, 2) == "first: rank 2\ncell second\nsecond: rank 2\n"
    assert log(last, 1) == "first: rank 1\n"
    assert (lines(first), lines(second), lines(last)) == (3, 6, 1)
    assert {Store().load(each.id).state for each in (first, second, last)} == {"done"}


def test_lines_of_a_rank_that_is_restarted_or_killed_between_cells_are_kept(home):
    with ranks(2) as cluster:
        run = finish(cluster, CHILD.format(cell="cell"))
        for rank in range(2):
            wait_for(cluster, rank, f"cell: rank {rank}")
        cluster.restart([1])
        assert values(cluster, "rank") == [0, 1]  # this record takes rank 0's line
        assert log(run, 1) == "cell cell\ncell: rank 1\n"
        assert log(run, 0) == "cell cell\n"
        last = finish(
            cluster,
            "import os, threading\n"
            "def end():\n    print('last words')\n    os.kill(os.getpid(), 9)\n"
            "if rank == 0:\n    threading.Timer(0.5, end).start()",
        )
        until = time.monotonic() + 60
        while log(last, 0) != "last words\n":
            assert time.monotonic() < until
            time.sleep(0.05)
    # The end of the cluster records nothing twice.
    assert log(last, 0) == "last words\n" and log(last, 1) == ""


def test_a_rank_that_ends_while_others_run_on_loses_nothing_that_it_has_printed(home):
    with ranks(2) as cluster:
        run = cluster.run(
            "import time\nprint('cell')\n"
            + CHILD.format(cell="cell")
            + "if rank == 0:\n    time.sleep(600)"
        )
        wait_for(cluster, 1, "cell: rank 1")
        cluster.restart([1])
        run.interrupt()
        assert run.wait(60)
        assert log(run, 1) == "cell\ncell cell\ncell: rank 1\n"
        assert run.info.lines == 6


def test_a_flood_after_the_last_cell_is_truncated_with_a_note(home):
    with ranks(1) as cluster:
        run = finish(
            cluster,
            "import subprocess\nchild = subprocess.Popen("
            "'sleep 0.5; yes | head -c 100000000; echo; echo over', shell=True)",
        )
        until = time.monotonic() + 60
        while (cluster.paths.spool(0) / "stdout").stat().st_size < 100_000_006:
            assert time.monotonic() < until
            time.sleep(0.05)
    info = Store().load(run.id)
    assert 32_000_000 <= info.lines < 35_000_000
    note = "rank 0 printed more than 64 MB after its last cell: the rest was not recorded"
    assert note in info.notes
