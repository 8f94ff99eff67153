"""On a rank: examine the reader's answer after their cell. A rank that finds a fault raises it,
which releases the others, as with any error in a cell."""

from __future__ import annotations

import os
import traceback
from collections.abc import Mapping
from typing import Any

from rankroom.course.exercise import Learner, Wrong, find
from rankroom.rank.waiting import looks_released

# Raised when an exercise uses an answer of another type or shape than it asks for.
MISUSE_ERRORS = (TypeError, ValueError, AttributeError, LookupError, ArithmeticError)


class Right:
    """What the cell displays on each rank whose answer is right."""

    def __repr__(self) -> str:
        return "✓ right"


def examine(name: str, variables: Mapping[str, Any], seed: int) -> Right:
    """Run the exercise `name` on the reader's variables. Raises Wrong with what is wrong."""
    rank, size = int(os.environ["RANKROOM_RANK"]), int(os.environ["RANKROOM_SIZE"])
    # The reader's functions use these variables, and a loop may have overwritten one.
    for own, is_now, variable in (("rank", rank, "RANK"), ("size", size, "WORLD_SIZE")):
        found = variables.get(own)
        if str(found) != str(is_now):
            raise Wrong(
                OVERWRITTEN_VARIABLE.format(
                    name=own, found=repr(found)[:40], now=is_now, env=variable
                )
            )
    exercise = find(name)
    try:
        exercise.run(Learner(variables, rank, size, seed))
    except MISUSE_ERRORS as error:
        what = f"{type(error).__name__}: {error}"
        if _is_in_cells(error, variables) or looks_released(type(error).__name__, str(error)):
            raise
        raise Wrong(UNUSABLE_ANSWER.format(answer=exercise.answer, error=what[:300])) from error
    return Right()


def _is_in_cells(error: BaseException, variables: Mapping[str, Any]) -> bool:
    """Return whether an error was raised in the reader's code, or in what that called."""
    frames = (frame for frame, _ in traceback.walk_tb(error.__traceback__))
    return any(frame.f_globals is variables for frame in frames)


UNUSABLE_ANSWER = (
    "`{answer}` gives something else than is asked for, with which the check fails ({error})"
)
OVERWRITTEN_VARIABLE = (
    "`{name}` is {found} instead of {now}: use another name for your own variable, and restore "
    'this one with `import os; {name} = int(os.environ["{env}"])`'
)
