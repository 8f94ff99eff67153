"""A rank is killed while it prints: its output is in the record, up to the last line."""

import os
import signal

import pytest

from cells import failure, finish, states
from numbered import assert_numbered, written
from rankroom.cluster.local import Cluster

pytestmark = pytest.mark.cluster

COUNTING = """
import mmap
if rank == 1:
    told = open({told!r}, "wb+")
    told.truncate(8)
    count = memoryview(mmap.mmap(told.fileno(), 8)).cast("Q")
    for i in range(3_000_000):
        print("line", i)
        count[0] = i + 1
"""


@pytest.fixture
def ranks(home):
    """Two ranks of which one will be killed."""
    made = Cluster.local(ranks=2)
    yield made
    made.stop()


@pytest.mark.fault(
    "a rank kills itself while it {how}", "its last line is in the record", racy=True
)
@pytest.mark.parametrize(
    ("how", "pause"), [("floods", "0"), ("prints now and then", "0.0005 * (i % 7 == 0)")]
)
def test_output_of_a_rank_that_kills_itself_is_recorded_completely(ranks, how, pause):
    run = finish(
        ranks,
        f"""
        import os, signal, time
        for i in range(1000 + 500 * rank):
            print("line", i)
            time.sleep({pause})
        if rank == 1:
            os.kill(os.getpid(), signal.SIGKILL)
        """,
    )
    assert failure(run).startswith("rank 1: RankLost: rank 1 was killed by SIGKILL")
    assert states(run) == {0: "ok", 1: "lost"}
    assert_numbered(ranks.store, run.id, 0, 1000)
    assert_numbered(ranks.store, run.id, 1, 1500)


@pytest.mark.fault(
    "a rank is killed from outside while it floods",
    "every line up to the last is in the record, none twice",
    racy=True,
)
def test_output_of_a_rank_killed_from_outside_is_recorded_completely(ranks, tmp_path):
    # The rank counts the lines that it has printed in a file of its own.
    told = tmp_path / "told"
    run = ranks.run(COUNTING.format(told=str(told)))
    while not told.exists() or int.from_bytes(told.read_bytes()[:8], "little") < 20_000:
        assert not run.wait(0.005)
    os.kill(ranks.ranks[1].pid, signal.SIGKILL)
    assert run.wait(60)
    printed = int.from_bytes(told.read_bytes()[:8], "little")
    # One more line may have been written completely, but not counted.
    lines = written(ranks.store, run.id, 1).split("\n")
    assert lines[:printed] == [f"line {i}" for i in range(printed)]
    assert "\n".join(lines[printed:]) in ("", f"line {printed}\n")


@pytest.mark.fault(
    "a rank is killed after output of C, os.write, and a child process",
    "each of their lines is in the record, in order",
)
def test_output_of_c_code_and_child_processes_is_recorded_in_order(ranks):
    run = finish(
        ranks,
        """
        import ctypes, os, signal, subprocess
        libc = ctypes.CDLL(None)
        for i in range(0, 400, 4):
            print("line", i)
            os.write(1, f"line {i + 1}\\n".encode())
            libc.puts(f"line {i + 2}".encode())
            if i % 40 == 0:
                subprocess.run(["echo", "line", str(i + 3)])
            else:
                print("line", i + 3)
        if rank == 1:
            os.kill(os.getpid(), signal.SIGKILL)
        """,
    )
    assert states(run) == {0: "ok", 1: "lost"}
    for rank in (0, 1):
        assert_numbered(ranks.store, run.id, rank, 400)
