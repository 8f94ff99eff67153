"""Where each rank's time went: on each rank, a moment of the wall belongs to one of five parts."""

from __future__ import annotations

import copy
from collections.abc import Callable
from typing import NamedTuple

import numpy as np
import numpy.typing as npt

from rankroom.analysis.collectives import Collectives
from rankroom.analysis.profile.intervals import (
    Intervals,
    both,
    joined,
    length,
    one,
    union,
    without,
)
from rankroom.analysis.profile.rows import RankTimes
from rankroom.analysis.timeline import Column, Timeline
from rankroom.record.model import Json

SETUP_CATEGORY = "setup"  # category of Rankroom's own work before a rank's cell begins
UNRECORDED = "unrecorded"  # category of the stretches whose spans were left out
PARTS = ("compute", "data", "waiting", "exposed", "idle")
# In graph mode the main thread's waits are not recorded: its collectives count as blocking.
_UNSEEN_WAITS_LIBRARY = "hvd.tensorflow"


class Times(NamedTuple):
    """The moments of one rank. `exposed` is communication that nothing overlaps; `waits` and
    `transfers` are those of its collectives, whether or not they block the main thread."""

    compute: Intervals
    data: Intervals
    waiting: Intervals
    exposed: Intervals
    idle: Intervals
    waits: Intervals
    transfers: Intervals
    communication: Intervals


class Shares:
    """The moments of all ranks between `begin` and `end`, and the collectives they result from.

    `window` holds the moments that count, and `chosen` selects the collectives whose last rank
    arrived in it: everything, unless it was cut. Stretches that ranks left out of the record, as it
    would have been too long, are in `unrecorded` and do not count.
    """

    def __init__(self, timeline: Timeline, collectives: Collectives | None = None) -> None:
        self.begin, self.end = timeline.wall
        self.timeline = timeline
        self.collectives = Collectives(timeline) if collectives is None else collectives
        self.window = one(self.begin, self.end)
        self.unrecorded = joined(*(self._union(rank, UNRECORDED) for rank in timeline.ranks))
        self.chosen = np.ones(len(self.collectives), np.bool_)
        if len(recorded := without(self.window, self.unrecorded)) and len(self.unrecorded):
            self.window = recorded
            self.chosen = self.in_window(self.collectives.last)
        self._any_wait = any(len(timeline.lane(rank, "wait")) for rank in timeline.ranks)
        self.ranks = {rank: self._times(rank) for rank in timeline.ranks}

    @property
    def wall(self) -> int:
        return length(self.window)

    def restricted_to(self, window: Intervals) -> Shares:
        """Return the shares of the moments in `window` only."""
        part = copy.copy(self)
        part.window = both(window, self.window)
        part.chosen = self.chosen & part.in_window(self.collectives.last)
        part.ranks = {
            rank: Times(*(both(each, part.window) for each in times))
            for rank, times in self.ranks.items()
        }
        return part

    def in_window(self, moments: Column) -> npt.NDArray[np.bool_]:
        """For each of the moments, whether it is in the window."""
        at = np.searchsorted(self.window.ravel(), moments, "right")
        inside: npt.NDArray[np.bool_] = at % 2 == 1
        return inside

    def cut_to_window(self, begins: Column, ends: Column) -> Intervals:
        """Return the union of [begin, end), cut to the window."""
        if len(self.window):
            near = (ends > self.window[0, 0]) & (begins < self.window[-1, 1])
            begins, ends = begins[near], ends[near]
        return both(union(begins, ends), self.window)

    def rows(self) -> list[RankTimes]:
        """Return the length of each part of each rank's time."""
        names = (*PARTS, "communication")
        return [
            RankTimes(rank, **{name: length(getattr(times, name)) for name in names})
            for rank, times in self.ranks.items()
        ]

    def _times(self, rank: int) -> Times:
        whole = self.window
        active = both(one(*self.timeline.active(rank, (self.begin, self.end))), whole)
        for begin, end in self.timeline.absences(rank):
            active = without(active, one(begin, max(begin, end)))
        active = without(active, self._union(rank, SETUP_CATEGORY))
        blocked = both(self._blocks(rank), active)
        calls = self.collectives.calls[rank]
        waits = self.cut_to_window(calls.start, calls.wait_end)
        transfers = self.cut_to_window(calls.wait_end, calls.end)
        exposed = without(blocked, waits)
        free = without(active, blocked)
        data = both(free, self._union(rank, "data"))
        return Times(
            compute=without(free, data),
            data=data,
            waiting=both(blocked, waits),
            exposed=exposed,
            idle=without(whole, active),
            waits=waits,
            transfers=transfers,
            communication=joined(both(transfers, active), exposed),
        )

    def _blocks(self, rank: int) -> Intervals:
        """Return when the rank's main thread was blocked in communication."""
        if self._any_wait:
            blind, _ = self._calls(
                rank, lambda named: named.get("library") == _UNSEEN_WAITS_LIBRARY
            )
            return joined(self._union(rank, "wait"), blind)
        # No waits were recorded, and a GPU may compute while it communicates.
        on_gpu, others = self._calls(rank, lambda named: isinstance(named.get("kernel"), str))
        return joined(others, without(on_gpu, self._union(rank, "kernel")))

    def _calls(self, rank: int, is_one: Callable[[Json], bool]) -> tuple[Intervals, Intervals]:
        """Return when the rank was in collectives that `is_one` accepts, and when in others."""
        calls = self.collectives.calls[rank]
        numbers = np.unique(calls.numbers).tolist()
        chosen = [each for each in numbers if is_one(self.timeline.named(rank, each))]
        mine = np.isin(calls.numbers, chosen)
        return (
            union(calls.start[mine], calls.end[mine]),
            union(calls.start[~mine], calls.end[~mine]),
        )

    def _union(self, rank: int, cat: str) -> Intervals:
        _, start, end = self.timeline.lane(rank, cat).columns()
        return union(start, end)
