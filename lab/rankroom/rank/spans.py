"""What this rank did, and when: spans in columns, collected cheaply and reported in batches.

Whoever does something worth a span calls `add`, on any thread; a name is written out once and a
number after that.

A run that lasts for days must not fill the disk. Of each category, and of each stream of
collectives, the first WHOLE spans are kept; after that whole stretches, one in ten up to ten times
as many, one in a hundred up to a hundred times as many, and so on. What is kept goes by the count
alone: as all ranks do the same collectives in the same order, they keep the same ones. Details are
kept for the first WHOLE only.
"""

from __future__ import annotations

import contextlib
import time
from collections import Counter
from collections.abc import Callable, Hashable, Iterable, Iterator
from typing import Any

MOST_NAMES = 50_000  # of one run; beyond, spans share a name
BATCH = 4096  # spans in one event
WHOLE = 100_000
STRETCH = 1000  # spans that follow one another, so that a picture of them makes sense
DETAILS = {"phase", "op", "kernel"}

Span = tuple[int, int, int]  # name, start, duration

_OTHER = {"name": "(one of too many names)"}


class Spans:
    """The spans of the present run that have not been reported yet."""

    def __init__(self) -> None:
        self.on = False
        self.began = 0  # of the present run on this rank, in microseconds since the epoch
        self._numbers: dict[Hashable, int] = {}
        self._defined: list[dict[str, Any]] = []
        self._told = 0  # definitions that were reported
        # By category, and by stream for those that have some.
        self._waiting: dict[tuple[str, str], list[Span]] = {}
        self._seen: Counter[tuple[str, str]] = Counter()
        self._notes: dict[str, bool] = {}  # what the reader of the record must know: told or not

    def begin(self) -> None:
        """A run starts: with a table of names of its own."""
        self._numbers.clear()
        self._defined.clear()
        self._told = 0
        self._waiting.clear()
        self._seen.clear()
        self._notes.clear()
        self.began = time.time_ns() // 1000
        self.on = True

    def number(self, key: Hashable, define: Callable[[], dict[str, Any]]) -> int:
        """The number of the name that `key` stands for; `define()` describes it the first time."""
        number = self._numbers.get(key)
        if number is None:
            number = len(self._defined)
            if number >= MOST_NAMES:
                number = MOST_NAMES
                if len(self._defined) == MOST_NAMES:
                    self._defined.append(_OTHER)
            else:
                self._defined.append(define())
            self._numbers[key] = number
        return number

    def add(self, cat: str, number: int, start: int, dur: int) -> None:
        """One span; `start` in microseconds since the epoch, `dur` in microseconds."""
        if self.on:
            try:
                self._waiting[cat, ""].append((number, start, dur))
            except KeyError:
                self.extend(cat, [(number, start, dur)])

    def extend(self, cat: str, spans: Iterable[Span], stream: str = "") -> None:
        """Many spans; those of one `stream` come in the same order on all ranks that have it."""
        if self.on:
            self._waiting.setdefault((cat, stream), []).extend(spans)

    def take(self, zero: int) -> Iterator[dict[str, Any]]:
        """The fields of events with everything since the last call; `zero` is the run's start."""
        for key in list(self._waiting):
            waiting = self._waiting[key]
            # Others may append meanwhile: each of these steps is one for them.
            count = len(waiting)
            spans = waiting[:count]
            del waiting[:count]
            first = self._seen[key]
            self._seen[key] += count
            if first + count > WHOLE:
                self.note(THINNED.format(cat=key[0], count=WHOLE))
                spans = [each for at, each in enumerate(spans, first) if _kept(key[0], at)]
            for at in range(0, len(spans), BATCH):
                yield self._columns(key[0], spans[at : at + BATCH], zero)

    def note(self, text: str) -> None:
        """Something that the reader of this run's timeline must know; said once."""
        self._notes.setdefault(text, False)

    def new_notes(self) -> list[str]:
        """The notes since the last call."""
        new = [text for text, told in list(self._notes.items()) if not told]
        self._notes.update(dict.fromkeys(new, True))
        return new

    def _columns(self, cat: str, spans: list[Span], zero: int) -> dict[str, Any]:
        names, starts, durs = zip(*spans, strict=True)
        before = (zero, *starts)
        fields: dict[str, Any] = {"cat": cat}
        if len(self._defined) > self._told:
            fields |= {"from": self._told, "define": self._defined[self._told :]}
            self._told += len(fields["define"])
        apart = [start - last for start, last in zip(starts, before, strict=False)]
        return fields | {"name": names, "start": apart, "dur": durs}


def _kept(cat: str, at: int) -> bool:
    """Whether the span with this number, from 0, goes into the record."""
    if at < WHOLE:
        return True
    if cat in DETAILS:
        return False
    every, limit = 10, 10 * WHOLE
    while at >= limit:
        every, limit = every * 10, limit * 10
    return at // STRETCH % every == 0


here = Spans()


@contextlib.contextmanager
def span(name: str, **args: Any) -> Iterator[None]:
    """A span of the user's own in the timeline: `with span("augment"): …`, or as a decorator.

    `args` are shown with it. Off the ranks this does nothing.
    """
    begin = time.time_ns()
    try:
        yield
    finally:
        if here.on:
            key = ("user", name, *args.items())
            with contextlib.suppress(TypeError):  # an argument that is no plain value
                number = here.number(key, lambda: {**args, "name": str(name)})
                here.add("user", number, begin // 1000, (time.time_ns() - begin) // 1000)


THINNED = (
    "of more than {count:,} {cat} spans of a rank the timeline holds some stretches only; "
    "times and counts in the profile are too small"
)
