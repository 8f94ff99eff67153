"""Where each rank's time went: every moment of the wall is one of five things, for each rank."""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

from rankroom.analysis.collectives import Collectives
from rankroom.analysis.profile.intervals import (
    Intervals,
    both,
    joined,
    one,
    union,
    without,
)
from rankroom.analysis.timeline import Column, Timeline

PARTS = ("compute", "data", "waiting", "exposed", "idle")
# In graph mode the main thread's waits are not seen.
_BLOCKS_UNSEEN = "hvd.tensorflow"


class Times(NamedTuple):
    """The moments of one rank. `exposed` is communication that nothing overlaps; `waits` and
    `transfers` are its collectives, the main thread blocked or not."""

    compute: Intervals
    data: Intervals
    waiting: Intervals
    exposed: Intervals
    idle: Intervals
    waits: Intervals
    transfers: Intervals
    communication: Intervals


class Shares:
    """The moments of all ranks between `begin` and `end`, and the collectives they come from."""

    def __init__(self, timeline: Timeline, collectives: Collectives | None = None) -> None:
        self.begin, self.end = timeline.wall
        self.timeline = timeline
        self.collectives = Collectives(timeline) if collectives is None else collectives
        self._any_wait = any(len(timeline.lane(rank, "wait")) for rank in timeline.ranks)
        self.ranks = {rank: self._times(rank) for rank in timeline.ranks}

    @property
    def wall(self) -> int:
        return self.end - self.begin

    def within(self, begins: Column, ends: Column) -> Intervals:
        """The union of [begin, end), cut to the wall."""
        return both(union(begins, ends), one(self.begin, self.end))

    def _times(self, rank: int) -> Times:
        whole = one(self.begin, self.end)
        active = both(one(*self.timeline.active(rank, (self.begin, self.end))), whole)
        for begin, end in self.timeline.away.get(rank, ()):
            active = without(active, one(begin, max(begin, end)))
        blocked = both(self._blocks(rank), active)
        calls = self.collectives.calls[rank]
        waits = self.within(calls.start, calls.until)
        transfers = self.within(calls.until, calls.end)
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
        """When the rank's main thread was blocked in communication."""
        calls = self.collectives.calls[rank]
        if not self._any_wait:
            return union(calls.start, calls.end)
        named = self.timeline.named
        unseen = [
            number
            for number in np.unique(calls.numbers).tolist()
            if named(rank, number).get("library") == _BLOCKS_UNSEEN
        ]
        blind = np.isin(calls.numbers, unseen)
        return joined(self._union(rank, "wait"), union(calls.start[blind], calls.end[blind]))

    def _union(self, rank: int, cat: str) -> Intervals:
        _, start, end = self.timeline.lane(rank, cat).columns()
        return union(start, end)
