"""From log events to lines, and lines that several ranks wrote alike to one.

The view collapses by the same rule: a line joins the earliest group of the same text and stream
that stands after its rank's last group. So no rank's lines ever change their order.
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Iterable, Iterator
from typing import NamedTuple

from rankroom.record import Json
from rankroom.text import overprint

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


def lines_of(events: Iterable[Json]) -> Iterator[Line]:
    """The lines of all log events in the order in which they were completed."""
    half: dict[tuple[int, str], list[str]] = {}
    held: dict[tuple[int, str], int] = {}
    for event in events:
        if event["kind"] != "log":
            continue
        source = rank, stream = event["rank"], event["stream"]
        *whole, rest = event["text"].split("\n")
        if whole:
            if source in half:
                whole[0] = "".join([*half.pop(source), whole[0]])
                held.pop(source)
            for text in whole:
                yield Line(rank, stream, overprint(text))
        if rest:
            half.setdefault(source, []).append(rest)
            held[source] = held.get(source, 0) + len(rest)
            if held[source] > _LONG:
                yield Line(rank, stream, overprint("".join(half.pop(source))))
                held.pop(source)
    for (rank, stream), pieces in half.items():
        yield Line(rank, stream, overprint("".join(pieces)))


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
