"""What this rank did, and when: spans in columns, collected cheaply and reported in batches.

Code that does something worth a span calls `add`, on any thread; a name is written out once and a
number after that. What comes in each step of a training loop calls `late` with the call that adds
it, which is made when the rank reports: between other things each line of Python takes several
times as long as in a row.

A run that lasts for days must not fill the disk. Of each category, and of each stream of
collectives, the first WHOLE spans are kept; after that whole stretches, one in ten up to ten times
as many, one in a hundred up to a hundred times as many, and so on. What is kept goes by the count
alone: as all ranks do the same collectives in the same order, they keep the same ones. Where
collectives are of no stream, those of one name are counted, as what is reported late comes in
another order on each rank. Details are kept for the first WHOLE only. When spans are left out from
which shares of time follow, spans of the category `unrecorded` say so.
"""

from __future__ import annotations

import contextlib
import math
import os
import threading
import time
from collections import Counter
from collections.abc import Callable, Hashable, Iterable, Iterator, Sequence
from operator import sub
from typing import Any

MOST_NAMES = 50_000  # of one run; beyond, spans share a name
MOST_VARIANTS = 10_000  # of users' spans with arguments; beyond, they are shown without
BATCH = 4096  # spans in one event
LONGEST = 200  # characters of a value that is shown with a user's span
WHOLE = 100_000
WHOLE_OF_NAME = 20_000  # the same for collectives of one name
STRETCH = 1000  # spans that follow one another, so that a picture of them makes sense
DETAILS = {"phase", "op", "kernel"}
WEIGHED = {"collective", "wait", "data"}  # by which the time of a rank is shared out
UNRECORDED = "unrecorded"
GAP_US = 10_000_000  # a gap that is longer is told in pieces, of a live run

Span = tuple[int, int, int]  # name, start, duration
Columns = tuple[Sequence[int], Sequence[int], Sequence[int]]

BY_NAME = "collective", ""
_OTHER = {"name": "(one of too many names)"}


class SpanRecorder:
    """The spans of the present run that have not been reported yet."""

    def __init__(self) -> None:
        self.on = False
        self.began = 0  # of the present run on this rank, in microseconds since the epoch
        self._naming = threading.RLock()
        self._numbers: dict[Hashable, int] = {}
        self._waits: dict[str, int] = {}
        self._defined: list[dict[str, Any]] = []
        self._first = 0  # number of a name
        self._told = 0  # definitions that were reported
        self._late: list[tuple[Any, ...]] = []
        self.late = self._late.append  # of `(function, *arguments)`, to be called later
        # By category, and by stream for those that have some.
        self._waiting: dict[tuple[str, str], list[Span]] = {}
        self._columns: dict[tuple[str, str], list[Columns]] = {}
        self._seen: Counter[tuple[str, str]] = Counter()
        self._of_name: Counter[int] = Counter()  # collectives of no stream
        # From when to when spans are being left out, and the gaps that were not reported yet.
        self._gaps: dict[tuple[str, str], tuple[int, int]] = {}
        self._closed: list[Span] = []
        self._thins = False  # whether collectives were left out
        self._variants = 0
        self._notes: dict[str, bool] = {}  # what the reader of the record must know: told or not

    def begin(self, starts: int = 0) -> None:
        """A run starts: with a table of names of its own.

        `starts` processes before this one have begun tables in this run, which go on to be valid.
        """
        self._first = starts * (MOST_NAMES + 1)
        self._numbers.clear()
        self._waits.clear()
        self._defined.clear()
        self._told = 0
        self._late.clear()
        self._waiting.clear()
        self._columns.clear()
        self._seen.clear()
        self._of_name.clear()
        self._gaps.clear()
        self._closed.clear()
        self._thins = False
        self._variants = 0
        self._notes.clear()
        self.began = time.time_ns() // 1000
        self.on = True

    def number(self, key: Hashable, define: Callable[[], dict[str, Any]]) -> int:
        """The number of the name that `key` stands for; `define()` describes it the first time."""
        number = self._numbers.get(key)
        if number is None:
            # More than one thread may come with a new name.
            with self._naming:
                number = self._numbers.get(key)
                if number is None:
                    number = self._define(define)
                    if number - self._first < MOST_NAMES:  # others are not kept: they do not end
                        self._numbers[key] = number
        return number

    def number_of_users(self, name: str, args: dict[str, Any]) -> int:
        """The same for a user's span, whose arguments may be others each time."""
        key = ("user", name, *args.items())
        number = self._numbers.get(key)
        if number is None:
            if args and self._variants >= MOST_VARIANTS:
                return self.number_of_users(name, {})
            self._variants += 1
            number = self.number(key, lambda: {**args, "name": name})
        return number

    def _define(self, define: Callable[[], dict[str, Any]]) -> int:
        number = len(self._defined)
        if number < MOST_NAMES:
            self._defined.append(define())
            return self._first + number
        if number == MOST_NAMES:
            self._defined.append(_OTHER)
        return self._first + MOST_NAMES

    def add(self, cat: str, number: int, start: int, dur: int) -> None:
        """One span; `start` in microseconds since the epoch, `dur` in microseconds."""
        if self.on:
            try:
                self._waiting[cat, ""].append((number, start, dur))
            except KeyError:
                self.extend(cat, [(number, start, dur)])

    def waited(self, what: str, end: int, seconds: float) -> None:
        """The main thread was blocked until `end`, in nanoseconds since the epoch. Collectives that
        are numbered only share a name."""
        dur = int(seconds * 1e6)
        number = self._waits.get(what)
        if number is None:
            name = what.partition(" #")[0]
            number = self.number(("wait", name), lambda: {"name": name})
            if len(self._waits) < MOST_NAMES:
                self._waits[what] = number
        self.add("wait", number, end // 1000 - dur, dur)

    def extend(self, cat: str, spans: Iterable[Span], stream: str = "") -> None:
        """Many spans; those of one `stream` come in the same order on all ranks that have it."""
        if self.on:
            self._waiting.setdefault((cat, stream), []).extend(spans)

    def extend_columns(self, cat: str, columns: Columns, stream: str) -> None:
        """The same for spans that are columns already, which are written as they are."""
        if self.on:
            self._columns.setdefault((cat, stream), []).append(columns)

    def take(self, zero: int, last: bool = False) -> Iterator[dict[str, Any]]:
        """The fields of events with everything since the call before; `zero` is the run's start,
        and no call follows the `last`."""
        # Others may append meanwhile: each of these steps is one for them.
        late = self._late[:]
        del self._late[: len(late)]
        for function, *arguments in late:
            function(*arguments)
        for key in list(self._columns):
            for columns in self._columns.pop(key, ()):
                count = len(columns[0])
                if self._seen[key] + count > WHOLE:
                    self.extend(key[0], zip(*columns, strict=True), key[1])
                    continue
                self._seen[key] += count
                for at in range(0, count, BATCH):
                    part = tuple(column[at : at + BATCH] for column in columns)
                    yield self._fields(key[0], part, zero)
        # These last: they go by what is left out of collectives.
        has_collectives = False
        for key in sorted(self._waiting, key=lambda each: each[0] in ("wait", "data")):
            waiting = self._waiting[key]
            # As above.
            count = len(waiting)
            spans = waiting[:count]
            del waiting[:count]
            first = self._seen[key]
            self._seen[key] += count
            has_collectives |= bool(count) and key[0] == BY_NAME[0]
            if self._thins and has_collectives and key[0] in ("wait", "data"):
                if first + count > WHOLE:
                    spans = self._beside_collectives(key, spans)
            elif key == BY_NAME or first + count > WHOLE:
                spans = self._thinned(key, spans, first)
            yield from self._events(key[0], spans, zero)
        for key, (begin, end) in self._gaps.items():
            if last or end - begin >= GAP_US:
                self._close(begin, end)
                self._gaps[key] = end, end
        closed, self._closed = self._closed, []
        yield from self._events(UNRECORDED, closed, zero)

    def _events(self, cat: str, spans: list[Span], zero: int) -> Iterator[dict[str, Any]]:
        for at in range(0, len(spans), BATCH):
            part = tuple(zip(*spans[at : at + BATCH], strict=True))
            yield self._fields(cat, part, zero)

    def _thinned(self, key: tuple[str, str], spans: list[Span], first: int) -> list[Span]:
        """Those that go into the record, of which the first is that with this number from 0."""
        cat, _ = key
        if key == BY_NAME:
            kept = [is_sampled(cat, self._next_of_name(each[0]), WHOLE_OF_NAME) for each in spans]
        else:
            kept = [is_sampled(cat, at) for at in range(first, first + len(spans))]
        if not all(kept):
            what, count = ("equal collective", WHOLE_OF_NAME) if key == BY_NAME else (cat, WHOLE)
            ending = OF_THOSE if cat in WEIGHED else TOO_SMALL
            self.note(THINNED.format(cat=what, count=count, ending=ending))
        self._thins |= cat == BY_NAME[0] and not all(kept)
        if cat in WEIGHED:
            # Of several names some are left out while others are kept: all of it is a gap then.
            self._leave_out(key, spans, kept if key != BY_NAME else [all(kept)] * len(kept))
        return [each for each, is_kept in zip(spans, kept, strict=True) if is_kept]

    def _beside_collectives(self, key: tuple[str, str], spans: list[Span]) -> list[Span]:
        """Those that begin while collectives are kept: a wait says nothing without its collective,
        and stretches of each for itself would hardly ever be the same."""
        if key in self._gaps:
            self._close(*self._gaps.pop(key))
        gaps = [gap for (cat, _), gap in self._gaps.items() if cat == BY_NAME[0]]
        gaps += [(start, start + dur) for _, start, dur in self._closed]
        return [span for span in spans if not any(begin <= span[1] <= end for begin, end in gaps)]

    def _next_of_name(self, number: int) -> int:
        at = self._of_name[number]
        self._of_name[number] = at + 1
        return at

    def _leave_out(self, key: tuple[str, str], spans: list[Span], kept: list[bool]) -> None:
        """Note from when to when spans are left out."""
        for (_, start, dur), is_kept in zip(spans, kept, strict=True):
            gap = self._gaps.get(key)
            if not is_kept:
                begin, end = gap or (start, start)
                self._gaps[key] = begin, max(end, start + dur)
            elif gap:
                self._close(*self._gaps.pop(key))

    def _close(self, begin: int, end: int) -> None:
        if end > begin:
            number = self.number((UNRECORDED,), lambda: {"name": "not recorded"})
            self._closed.append((number, begin, end - begin))

    def note(self, text: str) -> None:
        """Something that the reader of this run's timeline must know; said once."""
        self._notes.setdefault(text, False)

    def new_notes(self) -> list[str]:
        """The notes since the last call."""
        new = [text for text, told in list(self._notes.items()) if not told]
        self._notes.update(dict.fromkeys(new, True))
        return new

    def _fields(self, cat: str, columns: tuple[Sequence[int], ...], zero: int) -> dict[str, Any]:
        names, starts, durs = columns
        before = (zero, *starts)
        fields: dict[str, Any] = {"cat": cat}
        if len(self._defined) > self._told:
            first = self._first + self._told
            fields |= {"from": first, "define": self._defined[self._told :]}
            self._told += len(fields["define"])
        apart = list(map(sub, starts, before))
        return fields | {"name": names, "start": apart, "dur": durs}

    def leave(self) -> None:
        """This process is a copy of a rank, for a data loader say, whose spans are not read."""
        self.on = False
        self._naming = threading.RLock()
        self._late.clear()
        self._waiting.clear()
        self._columns.clear()


def is_sampled(cat: str, at: int, whole: int = 0) -> bool:
    """Whether the span, or the point of a metric, with this number from 0 goes into the record;
    all of the first `whole` do, or the first WHOLE."""
    whole = whole or WHOLE
    if at < whole:
        return True
    if cat in DETAILS:
        return False
    every, limit = 10, 10 * whole
    while at >= limit:
        every, limit = every * 10, limit * 10
    return at // STRETCH % every == 0


recorder = SpanRecorder()
os.register_at_fork(after_in_child=recorder.leave)


@contextlib.contextmanager
def span(name: str, /, **args: Any) -> Iterator[None]:
    """A span of the user's own in the timeline: `with span("augment"): …`, or as a decorator.

    `args` are shown with it. Off the ranks this does nothing.
    """
    begin = time.time_ns()
    try:
        yield
    finally:
        if recorder.on:
            # The record has the span's own name beside them.
            plain = {"name_" if k == "name" else k: _plain(value) for k, value in args.items()}
            number = recorder.number_of_users(str(name), plain)
            recorder.add("user", number, begin // 1000, (time.time_ns() - begin) // 1000)


def _plain(value: Any) -> Any:
    """`value` as JSON can hold it, in words if need be."""
    if isinstance(value, float):
        return value if math.isfinite(value) else str(value)
    if value is None or isinstance(value, (bool, int)):
        return value
    try:
        return str(value)[:LONGEST]
    except Exception:
        return f"<{type(value).__name__}>"


THINNED = (
    "of more than {count:,} {cat} spans of a rank the timeline holds some stretches only; {ending}"
)
OF_THOSE = "the profile is of those, and counts are too small"
TOO_SMALL = "times and counts of them in the profile are too small"
