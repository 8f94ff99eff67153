"""Output that real ranks buffer during a flood is never lost, however they end."""

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
def test_output_of_an_earlier_cells_child_is_recorded_after_a_flood(cluster):
    """The flood is large enough that the disk space of what was read is freed afterwards."""
    flood = finish(
        cluster,
        """
        import subprocess, sys
        code = '''if True:
            import sys
            for _ in range(70):
                sys.stdout.write(("y" * 1023 + chr(10)) * 1024)
            sys.stdout.flush()
            print("flooded", file=sys.stderr, flush=True)
            for line in sys.stdin:
                print(line, end="", flush=True)
        '''
        if rank == 0:
            argv = [sys.executable, "-c", code]
            pipe = subprocess.PIPE
            child = subprocess.Popen(argv, stdin=pipe, stderr=pipe, text=True)
            child.stderr.readline()
        """,
    )
    assert flood.state == "done", failure(flood)
    assert len(log(flood, 0)) == 70 << 20
    finish(cluster, "pass")
    run = finish(
        cluster,
        """
        if rank == 0:
            child.stdin.write("late\\nlater\\n")
            child.stdin.close()
            child.wait()
        """,
    )
    assert log(run, 0) == "late\nlater\n"


@pytest.mark.cluster
def test_every_line_of_a_rank_killed_after_a_flood_is_recorded(cluster):
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
