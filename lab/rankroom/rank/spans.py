"""What this rank did, and when: spans in columns, collected cheaply and reported in batches.

Whoever does something worth a span calls `add`, on any thread; a name is written out once and a
number after that.
"""

from __future__ import annotations

import contextlib
import math
import os
import threading
import time
from collections.abc import Callable, Hashable, Iterator
from typing import Any

MOST_NAMES = 50_000  # of one run; beyond, spans share a name
BATCH = 4096  # spans in one event
LONGEST = 200  # characters of a value that is shown with a user's span

_OTHER = {"name": "(one of too many names)"}


class Spans:
    """The spans of the present run that have not been reported yet."""

    def __init__(self) -> None:
        self.on = False
        self._naming = threading.RLock()
        self._numbers: dict[Hashable, int] = {}
        self._defined: list[dict[str, Any]] = []
        self._told = 0  # definitions that were reported
        self._waiting: dict[str, list[tuple[int, int, int]]] = {}

    def begin(self) -> None:
        """A run starts: with a table of names of its own."""
        self._numbers.clear()
        self._defined.clear()
        self._told = 0
        self._waiting.clear()
        self.on = True

    def number(self, key: Hashable, define: Callable[[], dict[str, Any]]) -> int:
        """The number of the name that `key` stands for; `define()` describes it the first time."""
        number = self._numbers.get(key)
        if number is None:
            # More than one thread may come with a new name.
            with self._naming:
                number = self._numbers.get(key)
                if number is None:
                    number = self._numbers[key] = self._define(define)
        return number

    def _define(self, define: Callable[[], dict[str, Any]]) -> int:
        number = len(self._defined)
        if number < MOST_NAMES:
            self._defined.append(define())
            return number
        if number == MOST_NAMES:
            self._defined.append(_OTHER)
        return MOST_NAMES

    def add(self, cat: str, number: int, start: int, dur: int) -> None:
        """One span; `start` in microseconds since the epoch, `dur` in microseconds."""
        if self.on:
            waiting = self._waiting.get(cat)
            if waiting is None:
                waiting = self._waiting.setdefault(cat, [])
            waiting.append((number, start, dur))

    def take(self, zero: int) -> Iterator[dict[str, Any]]:
        """The fields of events with everything since the last call; `zero` is the run's start."""
        for cat in list(self._waiting):
            waiting = self._waiting[cat]
            # Others may append meanwhile: each of these steps is one for them.
            count = len(waiting)
            spans = waiting[:count]
            del waiting[:count]
            for at in range(0, count, BATCH):
                yield self._columns(cat, spans[at : at + BATCH], zero)

    def _columns(self, cat: str, spans: list[tuple[int, int, int]], zero: int) -> dict[str, Any]:
        names, starts, durs = zip(*spans, strict=True)
        before = (zero, *starts)
        fields: dict[str, Any] = {"cat": cat}
        if len(self._defined) > self._told:
            fields |= {"from": self._told, "define": self._defined[self._told :]}
            self._told += len(fields["define"])
        apart = [start - last for start, last in zip(starts, before, strict=False)]
        return fields | {"name": names, "start": apart, "dur": durs}

    def leave(self) -> None:
        """This process is a copy of a rank, for a data loader say: nobody would read its spans."""
        self.on = False
        self._naming = threading.RLock()
        self._waiting.clear()


here = Spans()
os.register_at_fork(after_in_child=here.leave)


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
            plain = {key: _plain(value) for key, value in args.items()}
            key = ("user", name, *plain.items())
            number = here.number(key, lambda: {**plain, "name": str(name)})
            here.add("user", number, begin // 1000, (time.time_ns() - begin) // 1000)


def _plain(value: Any) -> Any:
    """`value` as JSON can hold it, in words if need be."""
    if isinstance(value, float):
        return value if math.isfinite(value) else str(value)
    if value is None or isinstance(value, (bool, int, str)):
        return value
    try:
        return str(value)[:LONGEST]
    except Exception:
        return f"<{type(value).__name__}>"
