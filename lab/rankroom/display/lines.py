"""From log events to lines, and lines that several ranks wrote alike to one.

The view collapses by the same rule: a line joins the earliest group of the same text and stream
that stands after its rank's last group. So no rank's lines ever change their order.
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Iterable, Iterator
from typing import NamedTuple

from rankroom.display.text import overprint
from rankroom.record.model import Json

# A line longer than this goes on as another line, so that none fills the memory.
_LONG = 1 << 20


class Line(NamedTuple):
    """One line of one rank, carriage returns resolved, colours kept."""

    rank: int
    stream: str
    text: str


class Group(NamedTuple):
    """A line and all ranks that wrote it."""

    ranks: list[int]
    stream: str
    text: str


class Assembly:
    """Puts the pieces of text that a rank reports together to lines."""

    def __init__(self) -> None:
        self.clear()

    def clear(self) -> None:
        """Forget unfinished lines."""
        self._half: dict[tuple[int, str], list[str]] = {}
        self._held: dict[tuple[int, str], int] = {}

    def add(self, event: Json) -> Iterator[Line]:
        """The lines that this event completes."""
        if event["kind"] != "log":
            return
        source = rank, stream = event["rank"], event["stream"]
        *whole, rest = event["text"].split("\n")
        if whole:
            if source in self._half:
                whole[0] = self._take(source) + whole[0]
            for text in whole:
                yield Line(rank, stream, overprint(text))
        if rest:
            self._half.setdefault(source, []).append(rest)
            self._held[source] = self._held.get(source, 0) + len(rest)
            if self._held[source] > _LONG:
                yield Line(rank, stream, overprint(self._take(source)))

    def rest(self) -> Iterator[Line]:
        """What stands in unfinished lines."""
        for rank, stream in list(self._half):
            yield Line(rank, stream, overprint(self._take((rank, stream))))

    def _take(self, source: tuple[int, str]) -> str:
        del self._held[source]
        return "".join(self._half.pop(source))


def lines_of(events: Iterable[Json]) -> Iterator[Line]:
    """The lines of all log events in the order in which they were completed."""
    assembly = Assembly()
    for event in events:
        yield from assembly.add(event)
    yield from assembly.rest()


def collapse(lines: Iterable[Line], window: int = 10_000) -> Iterator[Group]:
    """Groups of equal lines, in order; a group stays open for `window` later ones."""
    groups: list[Group] = []
    base = 0
    where: dict[tuple[str, str], list[int]] = {}
    last: dict[int, int] = {}
    for rank, stream, text in lines:
        places = where.setdefault((stream, text), [])
        next_place = bisect_right(places, last.get(rank, -1))
        if next_place < len(places):
            place = places[next_place]
            groups[place - base].ranks.append(rank)
        else:
            place = base + len(groups)
            places.append(place)
            groups.append(Group([rank], stream, text))
        last[rank] = place
        if len(groups) > 2 * window:
            yield from groups[:window]
            for group in groups[:window]:
                key = group.stream, group.text
                where[key].pop(0)
                if not where[key]:
                    del where[key]
            del groups[:window]
            base += window
    yield from groups
