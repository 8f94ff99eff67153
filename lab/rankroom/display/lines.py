"""Assembles log events into lines, and collapses lines that several ranks wrote alike into one.

The view collapses by the same rule (`extension/src/log/collapse.ts`), and both are tested against
`tests/support/collapse.json`: a line joins the earliest group of the same text and stream that
comes after its rank's last group. Lines that only this rank wrote in between move in front of that
group, as a reader expects:

    0–1 │ hello
    0   │ I am rank 0
    1   │ I am rank 1
    0–1 │ done

The lines of one rank never change their order. Consecutive start-up messages of TensorFlow on a
rank count as one line, which is the same on all ranks; on demand, lines that differ only in numbers
are taken to be equal.
"""

from __future__ import annotations

from bisect import bisect_left, insort
from collections.abc import Iterable, Iterator
from operator import attrgetter
from typing import NamedTuple

from rankroom.display.differing_numbers import common_text, side_by_side
from rankroom.display.screen import Screen
from rankroom.display.startup_messages import folded_words, is_startup_message
from rankroom.record.model import Json

WINDOW_LINES = 20_000
MAX_MOVABLE_LINES = 16  # lines of one rank that can move in front of a group that it joins
MAX_FOLDED_LINES = 64  # start-up messages of one rank that are folded into one line
# A moved group's key is a fraction below the key of the group that it was moved in front of; with
# two levels of fractions, keys are exact, and the same as the view's.
STEP = 2.0**-10
FINE_STEP = 2.0**-20


class Line(NamedTuple):
    """One line of one rank, with carriage returns resolved and colors kept."""

    rank: int
    stream: str
    text: str


class Group(NamedTuple):
    """A line and all ranks that wrote it, `lines` in all: for a fold, several per rank."""

    ranks: list[int]
    stream: str
    text: str
    lines: int = 1


class Assembly:
    """Assembles the pieces of text that ranks report into lines."""

    def __init__(self) -> None:
        self.clear()

    def clear(self) -> None:
        """Forget unfinished lines."""
        self._screens: dict[tuple[int, str], Screen] = {}

    def add(self, event: Json) -> Iterator[Line]:
        """Yield the lines that this event completes."""
        if event["kind"] != "log":
            return
        rank, stream = event["rank"], event["stream"]
        if (screen := self._screens.get((rank, stream))) is None:
            screen = self._screens[rank, stream] = Screen()
        for text in screen.feed(event["text"]):
            yield Line(rank, stream, text)

    def rest(self) -> Iterator[Line]:
        """Yield what the unfinished lines hold."""
        for (rank, stream), screen in self._screens.items():
            for text in screen.rest():
                yield Line(rank, stream, text)


def lines_of(events: Iterable[Json]) -> Iterator[Line]:
    """Yield the lines of all log events in the order in which they were completed."""
    assembly = Assembly()
    for event in events:
        yield from assembly.add(event)
    yield from assembly.rest()


def collapse(
    lines: Iterable[Line], window: int = WINDOW_LINES, *, by_numbers: bool = False
) -> Iterator[Group]:
    """Yield groups of equal lines, in order; each can be joined by the next `window` lines.

    With `by_numbers`, lines that differ only in numbers are joined, too.
    """
    order = _Order(window, by_numbers)
    for line in lines:
        order.add(line)
        if order.count >= order.flush_at:
            yield from order.flush()
    yield from order.rest()


# What lines of one group have in common: the stream, and the text; None for start-up messages.
_Key = tuple[str, str | None]


class _Open:
    """A group that may still change. It is identified by the number of its first line."""

    __slots__ = ("key", "number", "rank", "ranks", "same", "stream", "text", "texts")

    def __init__(self, number: int, line: Line, same: _Key) -> None:
        self.number = number
        self.key = float(number)  # its place in the order
        self.rank, self.stream, self.text = line
        self.same = same
        self.ranks = [self.rank]  # one for each line
        self.texts: list[str] | None = None  # one for each line, where they may differ

    def closed(self) -> Group:
        ranks, lines = sorted(self.ranks), len(self.ranks)
        if self.same[1] is None:
            return Group(sorted(set(ranks)), self.stream, folded_words(lines), lines)
        return Group(ranks, self.stream, self._joined() if self.texts else self.text, lines)

    def _joined(self) -> str:
        texts = self.texts or [self.text]
        if all(text == self.text for text in texts):
            return self.text
        in_order = sorted(zip(self.ranks, texts, strict=True))
        return side_by_side([text for _, text in in_order])


class _Place:
    """The position of one rank in the order."""

    __slots__ = ("fixed", "fold", "folded", "movable")

    def __init__(self) -> None:
        self.fixed = -1.0  # key of the last group that can no longer move
        self.movable: list[_Open] = []  # later groups of this rank alone: they may still move
        self.fold: _Open | None = None  # the fold that its last line is in
        self.folded = 0  # its lines in that fold

    def settle(self, last: int) -> None:
        """Fix the movable groups up to the one with the number `last` where they are."""
        while self.movable and self.movable[0].number <= last:
            self.fixed = max(self.fixed, self.movable.pop(0).key)


class _Order:
    """The groups in order; old ones can be flushed."""

    def __init__(self, window: int, by_numbers: bool) -> None:
        self._by_numbers = by_numbers
        self.count = 0
        self.flush_at = 4 * window
        self._window = window
        self._groups: list[_Open] = []
        self._same: dict[_Key, list[_Open]] = {}  # groups of equal lines, by key
        self._places: dict[int, _Place] = {}
        self._moved_in_front: dict[float, int] = {}

    def add(self, line: Line) -> None:
        """Add the next line."""
        number, self.count = self.count, self.count + 1
        rank, stream, text = line
        if (place := self._places.get(rank)) is None:
            place = self._places[rank] = _Place()
        common: str | None = text
        if stream == "stderr" and is_startup_message(text):
            common = None
        elif self._by_numbers:
            common = common_text(text, rank)
        if place.fold is not None:
            if (
                common is None
                and place.folded < MAX_FOLDED_LINES
                and self._can_join(place.fold, number)
            ):
                place.fold.ranks.append(rank)
                place.folded += 1
                return
            place.fold = None
        group = self._enter(number, line, (stream, common), place)
        if common is None:
            place.fold, place.folded = group, 1

    def _enter(self, number: int, line: Line, key: _Key, place: _Place) -> _Open:
        """Return the group that the line joins or begins."""
        same = self._same.get(key)
        group = self._match(same, number, place) if same else None
        if group is not None and self._move_in_front_of(group, place):
            place.movable.clear()
            place.fixed = group.key
            group.ranks.append(line.rank)
            if self._by_numbers:
                group.texts = group.texts or [group.text]
                group.texts.append(line.text)
            # It now stands for two ranks, so it stays where it is.
            self._places[group.rank].settle(group.number)
            return group
        group = _Open(number, line, key)
        self._groups.append(group)
        if same:
            same.append(group)
        else:
            self._same[key] = [group]
        place.movable.append(group)
        if len(place.movable) > MAX_MOVABLE_LINES:
            place.settle(place.movable[0].number)
        return group

    def _can_join(self, group: _Open, number: int) -> bool:
        return group.number >= number - self._window

    def flush(self) -> list[Group]:
        """Remove and return the groups that later lines can no longer change."""
        # A group within the window may have been moved in front of one a window older, and that one
        # in front of another.
        oldest, bound = self.count - self._window, self.count - 3 * self._window - 1
        self._groups.sort(key=_key)
        end = bisect_left(self._groups, bound, key=_key)
        done = [group.closed() for group in self._groups[:end]]
        del self._groups[:end]
        joinable = (
            (key, [g for g in same if g.number >= oldest]) for key, same in self._same.items()
        )
        self._same = {key: same for key, same in joinable if same}
        self._moved_in_front = {k: n for k, n in self._moved_in_front.items() if k >= bound}
        self.flush_at = self.count + self._window
        return done

    def rest(self) -> list[Group]:
        """Return all groups that are left, in order."""
        return [group.closed() for group in sorted(self._groups, key=_key)]

    def _match(self, same: list[_Open], number: int, place: _Place) -> _Open | None:
        """Return the earliest of these groups that the rank at `place` can join."""
        oldest = number - self._window
        first = bisect_left(same, max(place.fixed, oldest - 2 * self._window - 1), key=_key)
        for at in range(first, len(same)):  # islice would go through those before
            group = same[at]
            if group.number >= oldest and group.key > place.fixed and group not in place.movable:
                return group
        return None

    def _move_in_front_of(self, group: _Open, place: _Place) -> bool:
        """Move what the rank alone wrote in front of `group`; False if keys do not suffice."""
        key = group.key
        moving = [own for own in place.movable if own.key > key]
        if moving:
            step, room = (STEP, 1.0) if key.is_integer() else (FINE_STEP, STEP)
            before = self._moved_in_front.get(key, 0)
            if not (key / STEP).is_integer() or (before + len(moving) + 1) * step >= room:
                return False
            self._moved_in_front[key] = before + len(moving)
            for at, own in enumerate(moving, before + 1):
                # Moved, not sorted again: there may be tens of thousands of equal lines.
                same = self._same.get(own.same, [])
                place_in_same = bisect_left(same, own.key, key=_key)
                own.key = key - room + at * step
                if same[place_in_same : place_in_same + 1] == [own]:
                    del same[place_in_same]
                    insort(same, own, key=_key)
        return True


_key = attrgetter("key")
