"""On a rank: examine the reader's answer after their cell. A rank that finds a fault raises it,
which releases the others, as with any error in a cell."""

from __future__ import annotations

import os
from collections.abc import Mapping
from typing import Any

from rankroom.course.exercise import Learner, Wrong, find


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
    find(name).run(Learner(variables, rank, size, seed))
    return Right()


OVERWRITTEN_VARIABLE = (
    "`{name}` is {found} instead of {now}: use another name for your own variable, and restore "
    'this one with `import os; {name} = int(os.environ["{env}"])`'
)
