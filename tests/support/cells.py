"""Run cells in tests, and read their results."""

import ast
import os
from collections.abc import Sequence
from textwrap import dedent
from typing import Any

from rankroom.cluster.local import Cluster
from rankroom.run.run import Run


def allowed(seconds: float) -> float:
    """Return a limit of so many seconds, or a longer one while other tests run beside this one."""
    return seconds * (2 if "PYTEST_XDIST_WORKER" in os.environ else 1)


def finish(
    cluster: Cluster, source: str, seconds: float = 120, ranks: Sequence[int] | None = None
) -> Run:
    """Run a cell to its end; one that hangs fails the test and leaves the ranks usable."""
    run = cluster.run(dedent(source), ranks=ranks)
    if not run.wait(seconds):
        waiting = run.running
        run.interrupt()
        run.wait(60)
        raise AssertionError(f"ranks {waiting} still ran after {seconds} s: {run.source!r}")
    return run


def values(
    cluster: Cluster, source: str, seconds: float = 120, ranks: Sequence[int] | None = None
) -> list[Any]:
    """The last expression's value on each rank of a cell that must succeed; plain data only."""
    run = finish(cluster, source, seconds, ranks)
    assert run.state == "done", failure(run)
    return [ast.literal_eval(run.results[rank]) for rank in sorted(run.results)]


def log(run: Run, rank: int, stream: str = "stdout") -> str:
    """What a rank wrote to a stream."""
    return "".join(
        event["text"]
        for event in run._store.events(run.id)
        if (event["kind"], event["rank"], event.get("stream")) == ("log", rank, stream)
    )


def states(run: Run) -> dict[int, str | None]:
    """How each rank ended."""
    return {rank.rank: rank.state for rank in run.info.ranks}


def failure(run: Run) -> str:
    """The first failure as text, or the run's state if there is none."""
    first = run.info.failure
    return f"rank {first.rank}: {first.ename}: {first.evalue}" if first else run.state
