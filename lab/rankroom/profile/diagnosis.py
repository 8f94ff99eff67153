"""One sentence on what held a run up; tests/traces/README.md has the rules, shared with the view.

It names ranks only if they cost enough, and a cause only if that explains half of the cost.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Protocol

CAUSES: dict[str, tuple[str, str, str]] = {
    "data": ("data loading takes", "loads data", "load data"),
    "compute": ("own computing takes", "computes", "compute"),
}


class Row(Protocol):
    """The times of a rank, in microseconds."""

    rank: int
    compute: int
    data: int
    waiting: int
    exposed: int


class Late(Protocol):
    """A rank that was `last` in some of `of` collectives; `cost` in microseconds."""

    rank: int
    last: int
    of: int
    cost: int


def diagnosis(
    wall: int, rows: Sequence[Row], stragglers: Sequence[Late], ops: Sequence[str]
) -> str:
    """The sentence, or "" if there is nothing to say.

    `stragglers` come with the costliest first; `ops` are those of the collectives in which two or
    more ranks took part.
    """
    if len(rows) < 2 or not ops or not wall:
        return ""
    top = stragglers[0].cost if stragglers else 0
    named = [late for late in stragglers if 2 * late.cost >= top]
    if 100 * top < 3 * wall or 2 * len(named) > len(rows):
        return _nobody(wall, rows)
    who = sorted(late.rank for late in named)
    cost = min(sum(late.cost for late in named), wall)
    last = sum(late.last for late in named)
    one = len(who) == 1
    names = f"rank {who[0]}" if one else f"ranks {', '.join(map(str, who[:-1]))} and {who[-1]}"
    arrive, costs = ("arrives", "costs") if one else ("arrive", "cost")
    found = (
        f"{names} {arrive} last in {_of(last, ops)} and {costs} {percent(cost, wall)} of the cell"
    )
    return found + _cause(cost, who, rows)


def percent(part: float, whole: float) -> str:
    """`31 %`."""
    return f"{math.floor(100 * part / whole + 0.5) if whole else 0} %"


def _nobody(wall: int, rows: Sequence[Row]) -> str:
    waiting = sum(row.waiting for row in rows) / len(rows)
    exposed = sum(row.exposed for row in rows) / len(rows)
    if waiting >= 0.1 * wall and waiting >= exposed:
        return f"{NOBODY}; they wait for each other in turn, {percent(waiting, wall)} of the cell"
    if exposed >= 0.2 * wall:
        share = percent(exposed, wall)
        return f"{NOBODY}; {share} of the cell is communication that nothing overlaps"
    return NOBODY


def _of(last: int, ops: Sequence[str]) -> str:
    """In how many of which collectives."""
    op = ops[0] if len(set(ops)) == 1 and ops[0] not in ("", "?") else "collective"
    if len(ops) == 1:
        return f"the only {op}"
    many = op + ("es" if op.endswith(("s", "x", "ch", "sh")) else "s")
    return f"{percent(last, len(ops))} of {len(ops):,} {many}"


def _cause(cost: int, who: list[int], rows: Sequence[Row]) -> str:
    """What those ranks spend more time on than the others, if that makes up half of their cost."""
    found = []
    for name in CAUSES:
        mine = sum(getattr(row, name) for row in rows if row.rank in who) // len(who)
        rest = _median([getattr(row, name) for row in rows if row.rank not in who])
        if 5 * mine >= 6 * rest and 2 * (mine - rest) * len(who) >= cost:
            found.append((mine - rest, name == "data", mine, rest, CAUSES[name]))
    if not found:
        return ""
    _, _, mine, rest, (takes, does, do) = max(found)
    one = len(who) == 1
    if not rest:
        return f"; only it {does}" if one else f"; only they {do}"
    if mine < 10 * rest:
        times = f"{math.floor(10 * mine / rest + 0.5) / 10:.1f}"
    else:
        times = f"{math.floor(mine / rest + 0.5)}"
    return f"; {'its' if one else 'their'} {takes} {times} × the others'"


def _median(values: list[int]) -> int:
    ordered = sorted(values)
    return (ordered[len(ordered) // 2] + ordered[(len(ordered) - 1) // 2]) // 2


NOBODY = "no rank stands out"
