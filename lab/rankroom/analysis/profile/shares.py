"""Where each rank's time went: every moment of the wall is one of five things, for each rank."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field

from rankroom.analysis.collectives import CATEGORY, Collective, match
from rankroom.analysis.profile.intervals import Interval, both, union, without
from rankroom.analysis.timeline import Timeline

PARTS = ("compute", "data", "waiting", "exposed", "idle")
# In graph mode nobody sees the main thread wait.
_BLOCKS_UNSEEN = "hvd.tensorflow"


@dataclass
class Times:
    """The moments of one rank. `exposed` is communication that nothing overlaps; `waits` and
    `transfers` are its collectives, the main thread blocked or not."""

    compute: list[Interval] = field(default_factory=list)
    data: list[Interval] = field(default_factory=list)
    waiting: list[Interval] = field(default_factory=list)
    exposed: list[Interval] = field(default_factory=list)
    idle: list[Interval] = field(default_factory=list)
    waits: list[Interval] = field(default_factory=list)
    transfers: list[Interval] = field(default_factory=list)
    communication: list[Interval] = field(default_factory=list)


class Shares:
    """The moments of all ranks between `begin` and `end`, and the collectives they come from."""

    def __init__(self, timeline: Timeline) -> None:
        self.begin, self.end = timeline.wall
        self.timeline = timeline
        self.collectives = match(timeline)
        self.ranks: dict[int, Times] = {}
        self._any_wait = any(timeline.lane(rank, "wait").start for rank in timeline.ranks)
        waits: dict[int, list[Interval]] = {rank: [] for rank in timeline.ranks}
        transfers: dict[int, list[Interval]] = {rank: [] for rank in timeline.ranks}
        for collective in self.collectives:
            for place, rank in enumerate(collective.ranks):
                until = collective.until(place)
                waits[rank].append((collective.arrivals[place], until))
                transfers[rank].append((until, collective.ends[place]))
        for rank in timeline.ranks:
            self.ranks[rank] = self._times(rank, waits[rank], transfers[rank])

    @property
    def wall(self) -> int:
        return self.end - self.begin

    @property
    def shared(self) -> list[Collective]:
        """The collectives in which more than one rank took part."""
        return [c for c in self.collectives if len(c.ranks) > 1]

    def within(self, intervals: Iterable[Interval]) -> list[Interval]:
        """Their union, cut to the wall."""
        return both(union(intervals), [(self.begin, self.end)])

    def _times(self, rank: int, waits: list[Interval], transfers: list[Interval]) -> Times:
        whole = [(self.begin, self.end)] if self.wall else []
        begin, end = self.timeline.active(rank, (self.begin, self.end))
        active = both([(begin, end)], whole) if begin < end else []
        blocked = both(union(self._blocks(rank)), active)
        out = Times(waits=self.within(waits), transfers=self.within(transfers))
        out.idle = without(whole, active)
        out.waiting = both(blocked, out.waits)
        out.exposed = without(blocked, out.waits)
        free = without(active, blocked)
        out.data = both(free, union(self.timeline.intervals(rank, "data")))
        out.compute = without(free, out.data)
        out.communication = union([*both(out.transfers, active), *out.exposed])
        return out

    def _blocks(self, rank: int) -> Iterable[Interval]:
        """When the rank's main thread was blocked in communication."""
        if not self._any_wait:
            return self.timeline.intervals(rank, CATEGORY)
        lane = self.timeline.lane(rank, CATEGORY)
        unseen = {
            number
            for number in set(lane.name)
            if self.timeline.named(rank, number).get("library") == _BLOCKS_UNSEEN
        }
        found = list(self.timeline.intervals(rank, "wait"))
        if unseen:
            found += [
                (start, end)
                for number, start, end in zip(lane.name, lane.start, lane.end, strict=True)
                if number in unseen
            ]
        return found
