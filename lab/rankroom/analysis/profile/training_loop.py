"""The part of a run that repeats: the training loop, step by step.

A step ends with an optimizer's or Keras's step on a rank, or with a collective that recurs;
docs/profile-rules.md has the rules. What comes before the loop, its first steps, and what all ranks
do between its steps do not count, so that percentages refer to one step.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterable, Iterator
from typing import NamedTuple

import numpy as np
import numpy.typing as npt

from rankroom.analysis.collectives import key_of
from rankroom.analysis.profile.intervals import Intervals, union
from rankroom.analysis.profile.shares import Shares
from rankroom.analysis.timeline import Column, Timeline, whole
from rankroom.record.model import Json

MIN_STEPS = 5  # steps of a loop
MIN_LOOP_US = 100_000  # of a loop; a shorter one is ignored
WARM_UP_FACTOR = 1.5  # times the median: the first steps that take longer are warm-up
APART_FACTOR = 2  # times the median: a step in which every rank works longer is apart
_NOT_TRAINING = {"evaluate", "predict", "test batch", "predict batch"}  # Keras's
_NUMBERED = re.compile(r"(after )?#\d*$")  # what unnamed tensors are called

Marks = dict[int, Column]  # by rank: when its steps ended, ascending


class StepMark(NamedTuple):
    """What marks the ends of steps: the lower the order, the more credible."""

    order: int
    name: str
    line: int | None  # of the cell


class LoopSteps(NamedTuple):
    """A loop, as seen on the rank with the most steps: step `i`, from 1, lasts from `ends[i - 2]`
    to `ends[i - 1]`.

    Steps up to `warm` are warm-up. For each later step, `apart` says whether all ranks did
    something else as well, and `unrecorded` whether spans of it were left out.
    """

    what: StepMark
    rank: int
    ends: Column
    warm: int
    apart: npt.NDArray[np.bool_]
    unrecorded: npt.NDArray[np.bool_]
    counts: list[int]  # numbers of steps, of the ranks that have any

    @property
    def counted(self) -> int:
        return int(self._count.sum())

    @property
    def window(self) -> Intervals:
        """The moments of all the steps that count."""
        ends = self.ends[self.warm - 1 :]
        return union(ends[:-1][self._count], ends[1:][self._count])

    @property
    def time(self) -> int:
        lengths = np.diff(self.ends[self.warm - 1 :])
        return int(lengths[self._count].sum())

    @property
    def _count(self) -> npt.NDArray[np.bool_]:
        return ~(self.apart | self.unrecorded)


def find_loops(shares: Shares) -> list[LoopSteps]:
    """Return the loops of a run, none within another; the one that takes longest first."""
    marked: dict[StepMark, Marks] = {}
    for rank in shares.timeline.ranks:
        for what, ends in (*_steps(shares.timeline, rank), *_patterns(shares, rank)):
            inside = ends[(ends >= shares.begin) & (ends <= shares.end)]
            if len(inside) >= MIN_STEPS:
                marked.setdefault(what, {})[rank] = inside
    found: list[LoopSteps] = []
    for what, marks in sorted(marked.items(), key=_credibility):
        rank = max(marks, key=lambda each: (len(marks[each]), -each))
        ends = marks[rank]
        if not any(_is_within(ends, other.ends) for other in found):
            steps = _measured(shares, what, rank, marks)
            if steps.counted >= MIN_STEPS - 2 and steps.time >= MIN_LOOP_US:
                found.append(steps)
    return sorted(found, key=lambda steps: -steps.time)


def begin_of(timeline: Timeline, steps: LoopSteps) -> int:
    """Return when the loop's first step began, as far as is known: with its statement, or when the
    statement before that ended."""
    _, start, end = timeline.lane(steps.rank, "cell").columns()
    first = int(steps.ends[0])
    begun = start[(start < first) & (end >= first)]
    over = end[end < first].max(initial=timeline.wall[0])
    return int(max([over, *begun.tolist()[-1:]]))


def _credibility(entry: tuple[StepMark, Marks]) -> tuple[int, int, str, int]:
    """Return the sort key: training first, then what recurs most often."""
    what, marks = entry
    return what.order, -max(map(len, marks.values())), what.name, what.line or 0


def _steps(timeline: Timeline, rank: int) -> Iterator[tuple[StepMark, Column]]:
    """Yield the ends of the steps that a framework reported."""
    number, start, end = timeline.lane(rank, "step").columns()
    names = [timeline.named(rank, each)["name"] for each in _unique(number)]
    for (name, line), at in _grouped(timeline, rank, number, start, names):
        yield StepMark(int(name in _NOT_TRAINING), name, line), np.sort(end[at])


def _patterns(shares: Shares, rank: int) -> Iterator[tuple[StepMark, Column]]:
    """Yield, for each line of the cell, the ends of one of the collectives that recur in it.

    It is one of those that occur equally often: of the group that has the most calls in all.
    """
    calls = shares.collectives.calls[rank]
    several = shares.collectives.shared[calls.collective]
    number, start, end = calls.numbers[several], calls.start[several], calls.end[several]
    named = [_pattern(shares.timeline.named(rank, each)) for each in _unique(number)]
    groups: dict[int | None, list[tuple[str, npt.NDArray[np.intp]]]] = {}
    for (name, line), at in _grouped(shares.timeline, rank, number, start, named):
        groups.setdefault(line, []).append((name, at))
    for line, found in groups.items():
        many: Counter[int] = Counter()
        for _, at in found:
            many[len(at)] += len(at)
        often = max(many, key=lambda count: (many[count], count))
        # Of these collectives, the last one of a step: what follows it belongs to the next step.
        _, at = max((each for each in found if len(each[1]) == often), key=lambda each: each[1][0])
        yield (
            StepMark(2, _title(shares.timeline.named(rank, int(number[at[0]]))), line),
            np.sort(end[at]),
        )


def _pattern(named: Json) -> str:
    """Return what distinguishes the collectives of a step."""
    key = key_of(named)
    return repr((*key[:3], _NUMBERED.sub("", key.tensor), named.get("bytes")))


def _title(named: Json) -> str:
    key = key_of(named)
    return f"{key.op} {_NUMBERED.sub('', key.tensor)}".rstrip()


def _grouped(
    timeline: Timeline, rank: int, number: Column, start: Column, names: list[str]
) -> Iterable[tuple[tuple[str, int | None], npt.NDArray[np.intp]]]:
    """Yield the indices of the spans of each name in each line of the cell.

    `names` are the names of the distinct numbers, in ascending order of the numbers.
    """
    line_of, lines = _lines(timeline, rank, start)
    place = {name: i for i, name in enumerate(dict.fromkeys(names))}
    of = np.array([place[name] for name in names], np.int64)
    _, which = np.unique(number, return_inverse=True)
    both = (of[which] if len(number) else number) * len(lines) + line_of
    order = np.argsort(both, kind="stable")
    heads = np.flatnonzero(np.diff(both[order], prepend=-1))
    titles = list(place)
    for at in np.split(order, heads[1:]):
        if len(at):
            name, line = divmod(int(both[at[0]]), len(lines))
            yield (titles[name], lines[line]), at


def _lines(timeline: Timeline, rank: int, start: Column) -> tuple[Column, list[int | None]]:
    """Return for each moment the index of its line, and the lines; None is an unknown line."""
    number, begin, end = timeline.lane(rank, "cell").columns()
    lines: list[int | None] = [None]
    if not len(number):
        return np.zeros(len(start), np.int64), lines
    places = {}
    for each in _unique(number):
        line = timeline.named(rank, each).get("line")
        if whole(line):
            if int(line) not in lines:
                lines.append(int(line))
            places[each] = lines.index(int(line))
    at = np.searchsorted(begin, start, "right") - 1
    inside = (at >= 0) & (start < end[at])
    of = np.array([places.get(each, 0) for each in number.tolist()], np.int64)
    return np.where(inside, of[at], 0), lines


def _unique(number: Column) -> list[int]:
    found: list[int] = np.unique(number).tolist()
    return found


def _is_within(ends: Column, others: Column) -> bool:
    """True if most of the steps end while the other loop is running."""
    inside = (ends >= others[0]) & (ends <= others[-1])
    return 2 * int(inside.sum()) > len(ends)


def _measured(shares: Shares, what: StepMark, rank: int, marks: Marks) -> LoopSteps:
    """Find which of the steps are warm-up, apart or unrecorded."""
    ends = marks[rank]
    lengths = np.diff(ends)
    median = int(np.sort(lengths)[(len(lengths) - 1) // 2])
    warm = 1
    while warm < len(ends) // 2 and lengths[warm - 1] > WARM_UP_FACTOR * median:
        warm += 1
    worked = np.full(len(lengths), np.iinfo(np.int64).max)
    for each in marks:
        times = shares.ranks[each]
        mine = lengths - np.diff(_until(times.waiting, ends))
        gone = np.diff(_until(times.idle, ends)) > 0  # an idle rank says nothing about others
        worked = np.minimum(worked, np.where(gone, worked, mine))
    worked = np.minimum(worked, lengths)
    unrecorded = (np.diff(_until(shares.unrecorded, ends)) > 0)[warm - 1 :]
    apart = (worked[warm - 1 :] > APART_FACTOR * median) & ~unrecorded
    return LoopSteps(what, rank, ends, warm, apart, unrecorded, sorted(map(len, marks.values())))


def _until(intervals: Intervals, moments: Column) -> Column:
    """Return how much of the intervals is before each of the moments."""
    if not len(intervals):
        return np.zeros_like(moments)
    begin, end = intervals[:, 0], intervals[:, 1]
    before = np.concatenate(([0], (end - begin).cumsum()))
    at = np.searchsorted(begin, moments, "right")
    last = np.maximum(at - 1, 0)
    inside = np.clip(moments - begin[last], 0, end[last] - begin[last])
    found: Column = np.where(at > 0, before[last] + inside, 0)
    return found
