"""What this rank did, and when: spans in columns, collected cheaply and reported in batches.

Code that records a span calls `add`, on any thread; a name is written out once, and after that
referred to by number. Code that runs in each step of a training loop instead passes the call that
adds the span to `late`, to be made when the rank reports: amid other work, each line of Python
takes several times as long as in a batch.

A run that lasts for days must not fill the disk. Of each category, and of each stream of
collectives, the first UNSAMPLED_SPANS spans are kept; after that, stretches of
SAMPLED_STRETCH_SPANS spans each: one stretch in ten up to 10 × UNSAMPLED_SPANS spans, one in a
hundred up to 100 × UNSAMPLED_SPANS, and so on. Which ones are kept depends on the count alone: all
ranks run the same collectives in the same order, so they keep the same ones. Collectives without a
stream are counted by name instead, as their order differs between ranks when they are reported
late. Spans of the categories DETAIL_CATEGORIES are kept among the first UNSAMPLED_SPANS only. Where
spans are left out from which shares of time are computed, spans of the category `unrecorded` mark
the gaps.
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

MAX_NAMES = 50_000  # in one run; beyond that, spans share one name
MAX_ARGUMENT_VARIANTS = 10_000  # of users' spans with arguments; beyond that, arguments are omitted
MAX_SPANS_PER_EVENT = 4096  # spans in one event at most
MAX_ARGUMENT_LENGTH = 200  # characters of an argument shown with a user's span at most
UNSAMPLED_SPANS = 100_000
UNSAMPLED_SPANS_PER_NAME = 20_000  # the same for collectives of one name
# Consecutive spans kept together, so that a timeline of them makes sense.
SAMPLED_STRETCH_SPANS = 1000
DETAIL_CATEGORIES = {"phase", "op", "kernel"}
SHARE_CATEGORIES = {
    "collective",
    "wait",
    "data",
}  # categories from which shares of a rank's time follow
UNRECORDED = "unrecorded"
MAX_OPEN_GAP_US = 10_000_000  # in a live run, longer gaps are reported in pieces

Span = tuple[int, int, int]  # name, start, duration
Columns = tuple[Sequence[int], Sequence[int], Sequence[int]]

STREAMLESS_COLLECTIVES = "collective", ""
_OTHER = {"name": "(one of too many names)"}


class SpanRecorder:
    """The spans of the current run that have not been reported yet."""

    def __init__(self) -> None:
        self.on = False
        self.began = 0  # when the current run began on this rank, in microseconds since the epoch
        self._naming = threading.RLock()
        self._numbers: dict[Hashable, int] = {}
        self._waits: dict[str, int] = {}
        self._defined: list[dict[str, Any]] = []
        self._first = 0  # the first number of this process's names
        self._told = 0  # the number of definitions that have been reported
        self._late: list[tuple[Any, ...]] = []
        self.late = self._late.append  # of `(function, *arguments)`, to be called later
        # By category and stream; the stream is empty for spans without one.
        self._waiting: dict[tuple[str, str], list[Span]] = {}
        self._columns: dict[tuple[str, str], list[Columns]] = {}
        self._seen: Counter[tuple[str, str]] = Counter()
        self._of_name: Counter[int] = Counter()  # collectives without a stream
        # The open gaps, from when to when spans are being left out; and unreported closed gaps.
        self._gaps: dict[tuple[str, str], tuple[int, int]] = {}
        self._closed: list[Span] = []
        self._thins = False  # whether collectives were left out
        # Since when the ranks are those regrouped in an elastic run, in µs; 0: from the start.
        self._regrouped = 0
        self._recounted: set[tuple[str, str]] = set()  # whose counts have begun again since then
        self._variants = 0
        self._notes: dict[str, bool] = {}  # notes for the reader of the record: reported or not

    def begin(self, starts: int = 0) -> None:
        """Start a run, with a new table of names.

        `starts` is how many earlier processes of this rank have begun tables in this run; the
        numbers of these stay valid.
        """
        self._first = starts * (MAX_NAMES + 1)
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
        self._regrouped = 0
        self._recounted.clear()
        self._variants = 0
        self._notes.clear()
        self.began = time.time_ns() // 1000
        self.on = True

    def regroup(self) -> None:
        """Begin the counts of collectives again, for those that start from now on.

        Of the ranks that are regrouped in an elastic run, some have just begun to count, and all
        are to keep the same ones.
        """
        self._regrouped = time.time_ns() // 1000
        self._recounted.clear()

    def number(self, key: Hashable, define: Callable[[], dict[str, Any]]) -> int:
        """Return the number of the name identified by `key`; `define()` describes a new one."""
        number = self._numbers.get(key)
        if number is None:
            # Several threads may add the same new name.
            with self._naming:
                number = self._numbers.get(key)
                if number is None:
                    number = self._define(define)
                    if number - self._first < MAX_NAMES:  # more would grow without bound
                        self._numbers[key] = number
        return number

    def number_of_users(self, name: str, args: dict[str, Any]) -> int:
        """Like `number`, for a user's span, whose arguments may differ each time."""
        key = ("user", name, *args.items(), *map(type, args.values()))  # as 1 == True == 1.0
        number = self._numbers.get(key)
        if number is None:
            if args and self._variants >= MAX_ARGUMENT_VARIANTS:
                return self.number_of_users(name, {})
            self._variants += 1
            number = self.number(key, lambda: {**args, "name": name})
        return number

    def _define(self, define: Callable[[], dict[str, Any]]) -> int:
        number = len(self._defined)
        if number < MAX_NAMES:
            self._defined.append(define())
            return self._first + number
        if number == MAX_NAMES:
            self._defined.append(_OTHER)
        return self._first + MAX_NAMES

    def add(self, cat: str, number: int, start: int, dur: int) -> None:
        """Add a span; `start` in microseconds since the epoch, `dur` in microseconds."""
        if self.on:
            try:
                self._waiting[cat, ""].append((number, start, dur))
            except KeyError:
                self.extend(cat, [(number, start, dur)])

    def waited(self, what: str, end: int, seconds: float) -> None:
        """Add a wait: the main thread was blocked in `what` for `seconds`, until `end` (nanoseconds
        since the epoch). Collectives that differ only in their number, after ` #`, share a name."""
        dur = int(seconds * 1e6)
        number = self._waits.get(what)
        if number is None:
            name = what.partition(" #")[0]
            number = self.number(("wait", name), lambda: {"name": name})
            if len(self._waits) < MAX_NAMES:
                self._waits[what] = number
        self.add("wait", number, end // 1000 - dur, dur)

    def extend(self, cat: str, spans: Iterable[Span], stream: str = "") -> None:
        """Add many spans; those of one `stream` are in the same order on all ranks that have it."""
        if self.on:
            self._waiting.setdefault((cat, stream), []).extend(spans)

    def extend_columns(self, cat: str, columns: Columns, stream: str) -> None:
        """Like `extend`, for spans that are in columns already, which are reported as they are."""
        if self.on:
            self._columns.setdefault((cat, stream), []).append(columns)

    def take(self, zero: int, last: bool = False) -> Iterator[dict[str, Any]]:
        """Yield the fields of events with all spans since the previous call. `zero` is the run's
        start in microseconds since the epoch; `last` marks the final call of a run."""
        # Other threads may append meanwhile: each of these statements is atomic to them.
        late = self._late[:]
        del self._late[: len(late)]
        for function, *arguments in late:
            function(*arguments)
        for key in list(self._columns):
            for columns in self._columns.pop(key, ()):
                count = len(columns[0])
                if self._seen[key] + count > UNSAMPLED_SPANS or self._may_recount(key):
                    self.extend(key[0], zip(*columns, strict=True), key[1])
                    continue
                self._seen[key] += count
                for at in range(0, count, MAX_SPANS_PER_EVENT):
                    part = tuple(column[at : at + MAX_SPANS_PER_EVENT] for column in columns)
                    yield self._fields(key[0], part, zero)
        # Waits and data last: which of them are kept depends on the gaps of the collectives.
        has_collectives = False
        for key in sorted(self._waiting, key=lambda each: each[0] in ("wait", "data")):
            waiting = self._waiting[key]
            # Atomic statements, as above.
            count = len(waiting)
            spans = waiting[:count]
            del waiting[:count]
            has_collectives |= bool(count) and key[0] == STREAMLESS_COLLECTIVES[0]
            for alike in self._counted_alike(key, spans):
                first = self._seen[key]
                self._seen[key] += len(alike)
                kept = alike
                if self._thins and has_collectives and key[0] in ("wait", "data"):
                    if first + len(alike) > UNSAMPLED_SPANS:
                        kept = self._beside_collectives(key, alike)
                elif key == STREAMLESS_COLLECTIVES or first + len(alike) > UNSAMPLED_SPANS:
                    kept = self._thinned(key, alike, first)
                yield from self._events(key[0], kept, zero)
        for key, (begin, end) in self._gaps.items():
            if last or end - begin >= MAX_OPEN_GAP_US:
                self._close(begin, end)
                self._gaps[key] = end, end
        closed, self._closed = self._closed, []
        yield from self._events(UNRECORDED, closed, zero)

    def _may_recount(self, key: tuple[str, str]) -> bool:
        is_counted = not self._regrouped or key in self._recounted
        return key[0] == STREAMLESS_COLLECTIVES[0] and not is_counted

    def _counted_alike(self, key: tuple[str, str], spans: list[Span]) -> Iterator[list[Span]]:
        """Yield the spans of collectives from before the ranks regrouped, then those since, their
        counts begun again; other spans as they are."""
        at = -1
        if self._may_recount(key):
            at = next((i for i, span in enumerate(spans) if span[1] >= self._regrouped), -1)
        yield spans[: at if at >= 0 else len(spans)]
        if at >= 0:
            self._recounted.add(key)
            self._seen[key] = 0
            if key == STREAMLESS_COLLECTIVES:
                self._of_name.clear()
            yield spans[at:]

    def _events(self, cat: str, spans: list[Span], zero: int) -> Iterator[dict[str, Any]]:
        for at in range(0, len(spans), MAX_SPANS_PER_EVENT):
            part = tuple(zip(*spans[at : at + MAX_SPANS_PER_EVENT], strict=True))
            yield self._fields(cat, part, zero)

    def _thinned(self, key: tuple[str, str], spans: list[Span], first: int) -> list[Span]:
        """Return the spans that go into the record; `first` is the index of spans[0] in its key."""
        cat, _ = key
        if key == STREAMLESS_COLLECTIVES:
            kept = [
                is_sampled(cat, self._next_of_name(each[0]), UNSAMPLED_SPANS_PER_NAME)
                for each in spans
            ]
        else:
            kept = [is_sampled(cat, at) for at in range(first, first + len(spans))]
        if not all(kept):
            what, count = (
                ("equal collective", UNSAMPLED_SPANS_PER_NAME)
                if key == STREAMLESS_COLLECTIVES
                else (cat, UNSAMPLED_SPANS)
            )
            ending = PROFILE_OF_SAMPLE if cat in SHARE_CATEGORIES else PROFILE_TOO_SMALL
            self.note(THINNED.format(cat=what, count=count, ending=ending))
        self._thins |= cat == STREAMLESS_COLLECTIVES[0] and not all(kept)
        if cat in SHARE_CATEGORIES:
            # With several names, some are left out while others are kept: then all of it is a gap.
            self._leave_out(
                key, spans, kept if key != STREAMLESS_COLLECTIVES else [all(kept)] * len(kept)
            )
        return [each for each, is_kept in zip(spans, kept, strict=True) if is_kept]

    def _beside_collectives(self, key: tuple[str, str], spans: list[Span]) -> list[Span]:
        """Return the spans that begin while collectives are kept: a wait means nothing without its
        collective, and stretches chosen independently would hardly ever coincide."""
        if key in self._gaps:
            self._close(*self._gaps.pop(key))
        gaps = [gap for (cat, _), gap in self._gaps.items() if cat == STREAMLESS_COLLECTIVES[0]]
        gaps += [(start, start + dur) for _, start, dur in self._closed]
        return [span for span in spans if not any(begin <= span[1] <= end for begin, end in gaps)]

    def _next_of_name(self, number: int) -> int:
        at = self._of_name[number]
        self._of_name[number] = at + 1
        return at

    def _leave_out(self, key: tuple[str, str], spans: list[Span], kept: list[bool]) -> None:
        """Update the gap of `key`: from when to when spans are left out."""
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
        """Add a note for the reader of this run's timeline; a repeated one is reported once."""
        self._notes.setdefault(text, False)

    def new_notes(self) -> list[str]:
        """Return the notes since the last call."""
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
        """Stop recording: this process was forked from a rank, for a data loader say, and its spans
        are not read."""
        self.on = False
        self._naming = threading.RLock()
        self._late.clear()
        self._waiting.clear()
        self._columns.clear()


def is_sampled(cat: str, at: int, whole: int = 0) -> bool:
    """Whether the span, or the point of a metric, with index `at` goes into the record. All of the
    first `whole` do (default: UNSAMPLED_SPANS)."""
    whole = whole or UNSAMPLED_SPANS
    if at < whole:
        return True
    if cat in DETAIL_CATEGORIES:
        return False
    every, limit = 10, 10 * whole
    while at >= limit:
        every, limit = every * 10, limit * 10
    return at // SAMPLED_STRETCH_SPANS % every == 0


recorder = SpanRecorder()
os.register_at_fork(after_in_child=recorder.leave)


@contextlib.contextmanager
def span(name: str, /, **args: Any) -> Iterator[None]:
    """Add a span of your own to the timeline: `with span("augment"): …`, or as a decorator.

    `args` are shown with it. Outside of ranks this does nothing.
    """
    begin = time.time_ns()
    try:
        yield
    finally:
        if recorder.on:
            # In the record, `name` is the span's own name.
            plain = {"name_" if k == "name" else k: _plain(value) for k, value in args.items()}
            number = recorder.number_of_users(str(name), plain)
            recorder.add("user", number, begin // 1000, (time.time_ns() - begin) // 1000)


def _plain(value: Any) -> Any:
    """Return `value` as JSON can hold it, as text if necessary."""
    if isinstance(value, float):
        return value if math.isfinite(value) else str(value)
    if value is None or isinstance(value, (bool, int)):
        return value
    try:
        if type(value).__module__ == "numpy" and getattr(value, "shape", None) == ():
            plain = value.item()
            if type(plain) is not type(value):  # as that of a `longdouble` is
                return _plain(plain)
        return str(value)[:MAX_ARGUMENT_LENGTH]
    except Exception:
        return f"<{type(value).__name__}>"


THINNED = (
    "a rank has more than {count:,} {cat} spans: beyond those, the timeline has only some "
    "stretches; {ending}"
)
PROFILE_OF_SAMPLE = "the profile covers only what the timeline has, and its counts are too small"
PROFILE_TOO_SMALL = "their times and counts in the profile are too small"
