"""What real ranks hold back of a flood is never lost, however they end."""

import pytest

from cells import failure, finish, log


@pytest.mark.cluster
def test_a_child_prints_after_what_was_printed_before_it(cluster):
    run = finish(
        cluster,
        """
        import os, subprocess
        for i in range(1000):
            print(i)
        subprocess.run(["echo", "child"])
        for i in range(1000):
            print(i)
        os.system("echo shell")
        """,
    )
    lines = log(run, 0).splitlines()
    first = [str(i) for i in range(1000)]
    assert lines == [*first, "child", *first, "shell"]


@pytest.mark.cluster
def test_at_last_a_rank_that_floods_and_is_killed_has_every_line_in_the_record(cluster):
    run = finish(
        cluster,
        """
        import os, signal
        if rank == 1:
            for i in range(50_000):
                print("line", i)
            os.kill(os.getpid(), signal.SIGKILL)
        """,
    )
    assert failure(run).startswith("rank 1: RankLost: rank 1 was killed by SIGKILL")
    assert log(run, 1).splitlines() == [f"line {i}" for i in range(50_000)]
