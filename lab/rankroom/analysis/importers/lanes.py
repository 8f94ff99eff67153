"""Spans as they are read: columns of integers for each lane, and one table of names."""

from __future__ import annotations

import json
from array import array
from collections import Counter
from collections.abc import Hashable, Iterator
from dataclasses import dataclass, field
from typing import Any

import numpy as np

MOST_NAMES = 50_000  # of one file and rank; beyond, spans share one name
MOST_TEXT = 64 << 20  # characters of all names and arguments of a file; beyond, likewise
MOST_VARIANTS = 1_000  # of one name, by its arguments; beyond, only `IDENTIFYING` ones stay
MOST_RANKS = 4096  # of one file
MAX_DISTANCE_US = (
    10 * 365 * 86_400 * 1_000_000
)  # µs from the other times; beyond, a time is invalid

# Without these, collectives of different groups would be taken for one.
IDENTIFYING = frozenset(
    ("op", "library", "group", "ranks", "tensor", "kernel", "Collective name",
     "Process Group Name", "Process Group Description", "Process Group Ranks")
)  # fmt: skip
_OTHER = {"name": "(one of too many names)"}


class Names:
    """The table of names of one file: each is defined once, and spans refer to it by number."""

    def __init__(self) -> None:
        self.defined: list[dict[str, Any]] = []
        self.left_out: Counter[str] = Counter()
        self.most = MOST_NAMES
        self._text = 0  # characters in `defined`, roughly
        self._numbers: dict[Hashable, int] = {}
        self._variants: Counter[str] = Counter()

    def number(self, name: str, args: dict[str, Any]) -> int:
        """Return the number of `name` with these arguments, a new one if need be."""
        key: Hashable = name
        if args:
            try:
                key = (name, *args.items())
                hash(key)
            except TypeError:  # arguments that hold lists or objects
                key = (name, json.dumps(args, sort_keys=True, default=str))
        number = self._numbers.get(key)
        return self._define(key, name, args) if number is None else number

    def _define(self, key: Hashable, name: str, args: dict[str, Any]) -> int:
        if args:
            self._variants[name] += 1
            if self._variants[name] > MOST_VARIANTS and not IDENTIFYING.issuperset(args):
                self.left_out["arguments that are different each time"] += 1
                return self.number(name, {k: args[k] for k in args if k in IDENTIFYING})
        text = self._text + len(name) + (len(str(args)) if args else 0)
        if len(self.defined) >= self.most or text > MOST_TEXT:
            self.left_out["names"] += 1
            key, name, args = _OTHER["name"], _OTHER["name"], {}
            if key in self._numbers:
                return self._numbers[key]
            text = self._text
        self._text = text
        self.defined.append({**args, "name": name})
        number = self._numbers[key] = len(self.defined) - 1
        return number


@dataclass
class Lane:
    """Spans of one category on one rank."""

    name: array[int] = field(default_factory=lambda: array("i"))
    start: array[int] = field(default_factory=lambda: array("q"))
    dur: array[int] = field(default_factory=lambda: array("q"))

    def __len__(self) -> int:
        return len(self.name)

    def add(self, name: int, start: int, dur: int) -> None:
        """Add a span. Raises OverflowError for times that do not fit into 64 bits."""
        self.start.append(start)
        try:
            self.dur.append(dur)
        except OverflowError:
            self.start.pop()
            raise
        self.name.append(name)

    @property
    def extent(self) -> tuple[int, int]:
        """The earliest start and the latest end of the spans; there must be some."""
        start, dur = np.frombuffer(self.start, np.int64), np.frombuffer(self.dur, np.int64)
        return int(start.min()), int((start + dur).max())

    def extend(self, other: Lane) -> None:
        """Append the spans of another lane."""
        self.name.extend(other.name)
        self.start.extend(other.start)
        self.dur.extend(other.dur)

    def shift(self, by: int) -> None:
        """Move all spans in time, by µs."""
        if by and len(self):
            moved = np.frombuffer(self.start, np.int64)
            moved += by

    def sort(self) -> None:
        """Sort by start; of equal starts, the longer span first, as it contains the others."""
        if len(self) < 2:
            return
        # With NumPy, as millions of spans would take gigabytes as Python integers.
        start, dur = np.frombuffer(self.start, np.int64), np.frombuffer(self.dur, np.int64)
        if (start[1:] > start[:-1]).all():
            return
        order = np.lexsort((-dur, start))
        name = np.frombuffer(self.name, np.int32)
        self.name = array("i", name[order].tobytes())
        self.start, self.dur = array("q", start[order].tobytes()), array("q", dur[order].tobytes())

    def keep_sound(self, middle: int) -> Iterator[str]:
        """Drop invalid spans, yielding the reason for each; `middle` is a valid time."""
        low, high = middle - MAX_DISTANCE_US, middle + MAX_DISTANCE_US
        if not len(self):
            return
        if (
            min(self.dur) >= 0
            and max(self.dur) <= MAX_DISTANCE_US
            and low <= min(self.start)
            and max(self.start) <= high
        ):
            return
        kept = Lane()
        for name, start, dur in zip(self.name, self.start, self.dur, strict=True):
            if dur < 0:
                yield "negative duration"
            elif not low <= start <= high:
                yield "a time more than ten years from the others"
            elif dur > MAX_DISTANCE_US:
                yield "longer than ten years"
            else:
                kept.add(name, start, dur)
        self.name, self.start, self.dur = kept.name, kept.start, kept.dur


def middle_of(lanes: list[Lane]) -> int:
    """Return about the median start of these spans, which outliers do not change."""
    times: list[int] = []
    for lane in lanes:
        times += lane.start[:: max(1, len(lane) // 1000)]
    return sorted(times)[len(times) // 2] if times else 0
