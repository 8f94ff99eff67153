"""One sentence on what held a run up; docs/profile-rules.md has the rules.

It names ranks only if they cost enough, and a cause only if it explains half of the cost. A span of
the user's own is preferred as the cause to Rankroom's categories.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Collection, Mapping, Sequence
from typing import NamedTuple, Protocol

CAUSES: dict[str, tuple[str, str, str]] = {
    "data": ("data loading takes", "loads data", "load data"),
    "compute": ("own computing takes", "computes", "compute"),
}


MIN_WALL_US = 100_000  # µs; a shorter run or loop gets no diagnosis
MIN_COST_US = 10_000  # µs that a rank must cost to be named

UserSpans = Callable[[list[int], int], Mapping[str, Mapping[int, int]]]


class Row(Protocol):
    """The times of a rank, in microseconds."""

    rank: int
    compute: int
    data: int
    waiting: int
    exposed: int


class Straggling(Protocol):
    """A rank that came last in `last` of `of` collectives; `cost` in microseconds."""

    rank: int
    last: int
    of: int
    cost: int


def diagnosis(
    wall: int,
    rows: Sequence[Row],
    stragglers: Sequence[Straggling],
    shared: int,
    ops: Collection[str],
    user_spans: UserSpans = lambda who, cost: {},
    given_up: bool = False,
    steps: int = 0,
) -> str:
    """Return the sentence, or "" if there is nothing to say.

    `stragglers` are sorted by cost, the highest first. `shared` is the number of collectives with
    two or more ranks, `ops` are their operations. `user_spans(who, cost)` returns how long each
    rank spent in those of the user's spans that may explain this cost on the ranks `who`.
    `given_up` says that ranks waited for ranks that never arrived. With `steps`, the sentence is
    about this many steps of a loop, which take `wall` together.
    """
    if len(rows) < 2 or not shared or wall < MIN_WALL_US:
        return ""
    named = named_of(wall, len(rows), stragglers)
    if not named:
        return _no_straggler(wall, rows, given_up, steps)
    who = sorted(late.rank for late in named)
    cost = min(sum(late.cost for late in named), wall)
    last = sum(late.last for late in named)
    one = len(who) == 1
    names = f"rank {who[0]}" if one else f"ranks {', '.join(map(str, who[:-1]))} and {who[-1]}"
    arrive, costs = ("arrives", "costs") if one else ("arrive", "cost")
    where = _of(last, shared, ops)
    found = f"{names} {arrive} last in {where} and {costs} {percent(cost, wall)} of {whole(steps)}"
    said = _StepTime(wall, steps)
    return found + (
        _user_cause(cost, who, user_spans(who, cost), said) or _cause(cost, who, rows, said)
    )


def named_of(wall: int, ranks: int, stragglers: Sequence[Straggling]) -> Sequence[Straggling]:
    """Return the stragglers to name: those that cost enough, if few among `ranks`."""
    top = stragglers[0].cost if stragglers else 0
    named = [late for late in stragglers if 2 * late.cost >= top]
    dear = top >= MIN_COST_US and 100 * top >= 3 * wall
    return named if dear and 2 * len(named) <= ranks else []


def percent(part: float, whole: float) -> str:
    """Return `31 %`."""
    return f"{math.floor(100 * part / whole + 0.5) if whole else 0} %"


def whole(steps: int) -> str:
    """Return what the percentages refer to."""
    return "a step" if steps else "the run"


class _StepTime(NamedTuple):
    """Formats a time as a part of a step, if there are steps."""

    wall: int
    steps: int

    def part(self, time: int) -> str:
        """Return `15.2 of 21.0 ms`; "" if there are no steps."""
        if not self.steps:
            return ""
        step = self.wall / self.steps
        unit, scale = ("s", 1_000_000) if step >= 10_000_000 else ("ms", 1_000)
        digits = 0 if 100_000 <= step < 10_000_000 else 1
        mine, whole_step = (
            _rounded(each, self.steps * scale, digits) for each in (time, self.wall)
        )
        return f"{mine} of {whole_step} {unit}"


def _rounded(part: int, of: int, digits: int) -> str:
    return f"{math.floor(10**digits * part / of + 0.5) / 10**digits:.{digits}f}"


def _no_straggler(wall: int, rows: Sequence[Row], given_up: bool, steps: int) -> str:
    waiting = sum(row.waiting for row in rows) / len(rows)
    exposed = sum(row.exposed for row in rows) / len(rows)
    if waiting >= 0.1 * wall and waiting >= exposed:
        what = "ranks that never arrive" if given_up else "each other in turn"
        return f"{NO_STRAGGLER}; they wait for {what}, {percent(waiting, wall)} of {whole(steps)}"
    if exposed >= 0.2 * wall:
        share = percent(exposed, wall)
        what = "exposed communication (nothing overlaps it)"
        return f"{NO_STRAGGLER}; {share} of {whole(steps)} is {what}"
    return NO_STRAGGLER


def _of(last: int, shared: int, ops: Collection[str]) -> str:
    """Return in how many of which collectives, in words."""
    op = next(iter(ops)) if len(ops) == 1 and not {"", "?"} & set(ops) else "collective"
    if shared == 1:
        return f"the only {op}"
    many = op + ("es" if op.endswith(("s", "x", "ch", "sh")) else "s")
    return f"{percent(last, shared)} of {shared:,} {many}"


def _user_cause(
    cost: int, who: list[int], spans: Mapping[str, Mapping[int, int]], said: _StepTime
) -> str:
    """Return a clause on the user's span that takes the named ranks longer than the others."""
    found = []
    for name, times in spans.items():
        mine, rest = _compared(times, who)
        if _explains(mine, rest, len(who), cost):
            share = mine / rest if rest else math.inf
            found.append((-share, rest - mine, name, mine, rest))
    if not found:
        return ""
    _, _, name, mine, rest = min(found)
    spend = "it spends" if len(who) == 1 else "they spend"
    part = said.part(mine)
    if not rest:
        return f"; only {spend} time in {name}" + (f", {part}" if part else "")
    if part:
        return f"; {spend} {part} in {name}, {_times(mine, rest)} × the others' time"
    return f"; {spend} {_times(mine, rest)} × the others' time in {name}"


def _compared(times: Mapping[int, int], who: list[int]) -> tuple[int, int]:
    """Return the mean of the named ranks' times, and the median of the others'."""
    mine = sum(time for rank, time in times.items() if rank in who) // len(who)
    return mine, _median([time for rank, time in times.items() if rank not in who])


def _explains(mine: int, rest: int, count: int, cost: int) -> bool:
    return 5 * mine >= 6 * rest and 2 * (mine - rest) * count >= cost


def _times(mine: int, rest: int) -> str:
    return _rounded(mine, rest, 1 if mine < 10 * rest else 0)


def _cause(cost: int, who: list[int], rows: Sequence[Row], said: _StepTime) -> str:
    """Return a clause on what those ranks spend more time on, if it is half of their cost."""
    found = []
    for name in CAUSES:
        mine, rest = _compared({row.rank: getattr(row, name) for row in rows}, who)
        if _explains(mine, rest, len(who), cost):
            found.append((mine - rest, name == "data", mine, rest, CAUSES[name]))
    if not found:
        return ""
    _, _, mine, rest, (takes, does, do) = max(found)
    one = len(who) == 1
    part = said.part(mine)
    if not rest:
        return (f"; only it {does}" if one else f"; only they {do}") + (f", {part}" if part else "")
    often = f"{part}, {_times(mine, rest)}" if part else _times(mine, rest)
    return f"; {'its' if one else 'their'} {takes} {often} × the others'"


def _median(values: list[int]) -> int:
    ordered = sorted(values)
    return (ordered[len(ordered) // 2] + ordered[(len(ordered) - 1) // 2]) // 2


NO_STRAGGLER = "no rank stands out"
