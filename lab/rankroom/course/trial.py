"""Check an answer: run it on all ranks with its exercise behind it, for a limited time."""

from __future__ import annotations

import contextlib
import inspect
import secrets
import textwrap
import time
from collections.abc import Callable
from typing import Any

from rankroom.cluster.base import AnyCluster
from rankroom.course import progress
from rankroom.course.exercise import Exercise, find
from rankroom.course.verdict import Verdict, judge
from rankroom.errors import NO_CLUSTER, NoClusterError, UsageError
from rankroom.record.model import Hang
from rankroom.run.run import Run

LOOK_S = 0.2
STAYS_S = 2.0  # a hang that does not pass by itself within this stays
TIDY_S = 20.0  # for ranks to let go after they were interrupted
# Ranks that come to no collective any more by themselves. One that computes, sleeps, is in C code
# or in a debugger may still come to the one that others wait in.
_COMES_NO_MORE = {"waits", "ended"}


def check(name: str, answer: Any) -> Verdict:
    """Try `answer`, a value or a function, on all ranks of this process's cluster.

    `%%check NAME` above a cell does the same with the cell. Raises UsageError for exercises that
    there are not and for functions without a `def`, NoClusterError without ranks.
    """
    exercise = find(name)
    if callable(answer):
        source = _source(answer)
        if answer.__name__ != exercise.answer:
            source += f"\n{exercise.answer} = {answer.__name__}\n"
        return follow(exercise, start(exercise, source))
    ranks().push({exercise.answer: answer}, list(range(ranks().size)))
    return follow(exercise, start(exercise, ""))


def _source(function: Any) -> str:
    """The `def` of a function. Raises UsageError where it has none that ranks could run."""
    if inspect.isfunction(function) and function.__name__ != "<lambda>":
        with contextlib.suppress(OSError):  # typed where nothing keeps the lines
            return textwrap.dedent(inspect.getsource(function))
    raise UsageError(NO_DEF)


def ranks() -> AnyCluster:
    """The cluster that answers are tried on. Raises NoClusterError."""
    if AnyCluster.current is None:
        raise NoClusterError(NO_CLUSTER)
    return AnyCluster.current


def start(exercise: Exercise, source: str, count: int | None = None) -> Run:
    """Send the reader's cell with the exercise behind it; of a script, its text."""
    cluster = ranks()
    if cluster.size < exercise.ranks:
        raise UsageError(
            f"{exercise.name} needs {exercise.ranks} ranks at least, and there "
            f"{'is' if cluster.size == 1 else 'are'} {cluster.size}: "
            f"`%cluster resize {exercise.ranks}`"
        )
    if exercise.script and source:
        source = f"{exercise.answer} = {source!r}"
    return cluster.run(f"{source.rstrip()}\n\n{examination(exercise)}", count=count)


def examination(exercise: Exercise) -> str:
    """The lines that follow the reader's cell."""
    seed = secrets.randbelow(1 << 30)
    return (
        "from rankroom.course.examine import examine as _examine\n"
        f"_examine({exercise.name!r}, globals(), {seed})\n"
    )


def follow(exercise: Exercise, run: Run, show: Callable[[Run], None] = lambda run: None) -> Verdict:
    """Wait for the run, end it if it hangs for good or takes too long, and judge it.

    While a rank is held by a debugger, the exercise's time stands still.
    """
    left, looked = exercise.limit, time.monotonic()
    since = 0.0  # when a hang for good was first seen
    hang = stood = ""
    try:
        while not run.wait(LOOK_S):
            now, found = time.monotonic(), run.info.hang
            if not run.prompts and not (found and found.is_held):
                left -= now - looked
            looked = now
            since = (since or now) if found and _is_for_good(found) else 0.0
            if found and since and now - since > STAYS_S:
                hang = found.text
            if hang or left < 0:
                stood = found.text if found else ""
                run.interrupt()
                run.wait(TIDY_S)
                break
    except KeyboardInterrupt:
        with contextlib.suppress(KeyboardInterrupt):  # pressed again: it is not waited for
            run.interrupt()
            run.wait(TIDY_S)
    show(run)
    limit = exercise.limit if left < 0 else None
    verdict = judge(exercise.name, run.info, hang, limit, stood)
    progress.note(exercise.name, verdict.passed)
    return verdict


def _is_for_good(hang: Hang) -> bool:
    """Whether ranks wait in collectives that no other rank will come to."""
    states = {place.state for place in hang.places}
    return "waits" in states and states <= _COMES_NO_MORE


NO_DEF = "ranks need the source of a function: write it as a `def`, or use %%check above the cell"
