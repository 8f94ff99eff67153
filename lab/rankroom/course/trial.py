"""Check an answer: run it on all ranks, followed by its exercise, with a time limit."""

from __future__ import annotations

import ast
import contextlib
import inspect
import re
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

POLL_INTERVAL_S = 0.2
PERMANENT_HANG_S = 2.0  # a hang that lasts longer than this will not resolve by itself
INTERRUPT_TIMEOUT_S = 20.0  # for ranks to stop after an interrupt
# States in which a rank enters no other collective by itself. One that computes, sleeps, is in C
# code or in a debugger may still enter the collective that others wait in.
STATES_NEVER_ENTERING = {"waits", "ended"}
# Ranks that all wait in such a call wait for different calls of each other.
POINT_TO_POINT = re.compile(r"send|recv|wait\(")


def check(name: str, answer: Any) -> Verdict:
    """Try `answer`, a value or a function, on all ranks of this process's cluster.

    `%%check NAME` above a cell does the same with the cell. Raises UsageError for an unknown
    exercise and for a function without a `def`, NoClusterError without a cluster.
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
    """Return the source of a function. Raises UsageError without a `def` that ranks could run."""
    if inspect.isfunction(function) and function.__name__ != "<lambda>":
        with contextlib.suppress(OSError):  # typed where the source is not kept
            return textwrap.dedent(inspect.getsource(function))
    raise UsageError(NO_DEF)


def ranks() -> AnyCluster:
    """Return the cluster that answers are tried on. Raises NoClusterError."""
    if AnyCluster.current is None:
        raise NoClusterError(NO_CLUSTER)
    return AnyCluster.current


def start(
    exercise: Exercise,
    source: str,
    count: int | None = None,
    code: str = "",
    is_cancelled: Callable[[], bool] = lambda: False,
) -> Run:
    """Start a run of the reader's cell, followed by the exercise; a script's text is assigned to a
    variable instead of being run. `code` is the cell as plain Python, if it is not that already.

    Raises UsageError if there are too few ranks, or if the cell does not define the answer: what an
    earlier cell has defined would be examined.
    """
    cluster = ranks()
    if cluster.size < exercise.ranks:
        raise UsageError(
            f"{exercise.name} needs at least {exercise.ranks} ranks, and the cluster has "
            f"{cluster.size}: `%cluster resize {exercise.ranks}`"
        )
    if exercise.script and source:
        source = f"{exercise.answer} = {source!r}"
    elif source.lstrip().startswith("%%"):
        raise UsageError(CELL_MAGIC.format(magic=source.split()[0]))
    elif source and not defines(code or source, exercise.answer):
        raise UsageError(NOT_DEFINED.format(answer=exercise.answer, name=exercise.name))
    whole = f"{source.rstrip()}\n\n{examination(exercise)}"
    return cluster.run(whole, count=count, is_cancelled=is_cancelled)


def defines(code: str, name: str) -> bool:
    """Return whether a cell sets the variable `name`, or may do so in a way that is not seen."""
    try:
        parts = list(ast.walk(ast.parse(code)))
    except (SyntaxError, ValueError):  # the ranks may have another Python
        return True
    for part in parts:
        match part:
            case ast.FunctionDef(name=found) | ast.AsyncFunctionDef(name=found):
                pass
            case ast.ClassDef(name=found) | ast.ExceptHandler(name=found):
                pass
            case ast.Name(id=found, ctx=ast.Store()) | ast.MatchAs(name=found):
                pass
            case ast.alias(name="*") | ast.Call(func=ast.Name(id="exec" | "globals" | "locals")):
                return True
            case ast.Call(func=ast.Attribute(attr="run_line_magic" | "run_cell_magic")):
                return True  # as %time does
            case ast.alias(name=imported, asname=renamed):
                found = renamed or imported.partition(".")[0]
            case _:
                continue
        if found == name:
            return True
    return False


def examination(exercise: Exercise) -> str:
    """Return the lines that follow the reader's cell, and examine it."""
    seed = secrets.randbelow(1 << 30)
    return (
        "from rankroom.course.examine import examine as _examine\n"
        f"_examine({exercise.name!r}, globals(), {seed})\n"
    )


def follow(
    exercise: Exercise,
    run: Run,
    show: Callable[[Run], None] = lambda run: None,
    is_interrupted: bool = False,
) -> Verdict:
    """Wait for the run, interrupt it if it is stuck for good or takes too long, or if it already
    `is_interrupted` here, and judge it.

    While a rank waits for input or is held by a debugger, its time limit is suspended.
    """
    left, looked = exercise.limit, time.monotonic()
    since = 0.0  # when the run was first seen to be stuck for good
    hang = stood = ""
    try:
        if is_interrupted:
            raise KeyboardInterrupt
        while not run.wait(POLL_INTERVAL_S):
            now, found = time.monotonic(), run.info.hang
            if not run.prompts and not (found and found.is_held):
                left -= now - looked
            looked = now
            since = (since or now) if found and _is_for_good(found) else 0.0
            if found and since and now - since > PERMANENT_HANG_S:
                hang = found.text
            if hang or left < 0:
                stood = found.text if found else ""
                run.interrupt()
                run.wait(INTERRUPT_TIMEOUT_S)
                break
    except KeyboardInterrupt:
        with contextlib.suppress(KeyboardInterrupt):  # pressed again: wait no longer
            run.interrupt()
            run.wait(INTERRUPT_TIMEOUT_S)
    show(run)
    limit = exercise.limit if left < 0 else None
    verdict = judge(exercise.name, run.info, hang, limit, stood)
    progress.note(exercise.name, verdict.passed)
    return verdict


def _is_for_good(hang: Hang) -> bool:
    """Return whether ranks wait in collectives that no other rank will enter. One that all of them
    have entered may only be slow; if they all receive, no rank sends."""
    states = {place.state for place in hang.places}
    if "waits" not in states or not states <= STATES_NEVER_ENTERING:
        return False
    calls = {place.what for place in hang.places}
    return len(calls) > 1 or len(states) > 1 or bool(POINT_TO_POINT.search(calls.pop() or ""))


NOT_DEFINED = "this cell does not define `{answer}`, which is the answer that {name} checks"
CELL_MAGIC = "a cell with {magic} cannot be checked: write only your answer below %%check"
NO_DEF = "ranks need the source of a function: write it as a `def`, or use %%check above the cell"
