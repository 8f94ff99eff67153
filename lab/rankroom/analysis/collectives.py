"""Collectives: operations matched across ranks, with who came last and what each rank waited.

The n-th time that a rank calls an operation on a tensor belongs to the n-th time of the others;
where ranks died in an elastic run and were met again, it is counted from there. A run may have
millions of them, so they are columns; `Collective` is one, to look at.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt

from rankroom.analysis.timeline import Column, Timeline, whole
from rankroom.record.model import Json

CATEGORY = "collective"


class Key(NamedTuple):
    """What the spans of one collective have in common, besides their number."""

    library: str
    group: str
    op: str
    tensor: str


class Collective(NamedTuple):
    """The `n`-th of a key. `ranks` took part, with `arrivals` and `ends` in that order (µs).

    `last` is when the last rank arrived, and `straggler` that rank, the lowest of several; `spread`
    is from the first arrival to the last, `cost` how much later the straggler came than the others
    did in the middle. Of `ranks`, those `given_up` waited for `absent` ones until they failed.
    """

    key: Key
    n: int
    ranks: list[int]
    absent: list[int]
    given_up: list[int]
    arrivals: list[int]
    ends: list[int]
    last: int
    straggler: int
    spread: int
    cost: int

    def to_json(self) -> Json:
        """As in tests/support/traces/*/expected.json."""
        rest = self._asdict()
        return {**rest.pop("key")._asdict(), **rest}


@dataclass
class Calls:
    """The collectives of one rank in the order of their starts; times in µs."""

    numbers: Column  # of their names
    of: Column  # which of the run's collectives each belongs to
    start: Column
    end: Column
    until: Column  # when its wait was over, and the transfer began

    @property
    def newest(self) -> int:
        """When the last of them began; the rank got out of what had ended by then."""
        return int(self.start[-1]) if len(self.start) else 0


class Collectives:
    """The collectives of a run by first arrival, then key and number."""

    def __init__(self, timeline: Timeline) -> None:
        self._ranks, self._doubt = timeline.ranks, timeline.doubt
        named = {rank: _Named(timeline, rank) for rank in timeline.ranks}
        self.keys = sorted({key for each in named.values() for key in each.keys})
        self.calls: dict[int, Calls] = {}
        self._number(named)
        self._compare()
        self._look_for_absent(named, timeline.failed)

    def __len__(self) -> int:
        return len(self.last)

    def __iter__(self) -> Iterator[Collective]:
        return map(self.__getitem__, range(len(self)))

    def __getitem__(self, place: int) -> Collective:
        row = slice(self._rows[place], self._rows[place + 1])
        ranks, arrivals = self._taking_part[row].tolist(), self._arrivals[row].tolist()
        ends = self._ends[row].tolist()
        absent: list[int] = []
        given_up: list[int] = []
        if self.has_absent[place]:
            absent = sorted(self._expected_at(place) - set(ranks))
            given_up = [
                rank
                for rank, end in zip(ranks, ends, strict=True)
                if rank in self._failed and end > self.calls[rank].newest
            ]
        return Collective(
            self.keys[self.key[place]], int(self.n[place]), ranks, absent, given_up, arrivals,
            ends, int(self.last[place]), int(self.straggler[place]), int(self.spread[place]),
            int(self.cost[place]),
        )  # fmt: skip

    def to_json(self) -> Json:
        """All of them as `runs/<id>/collectives` gives them, in a few bytes each.

        Readers that know the spans work the times out, and whether they know the same spans: for
        each rank in `calls`, `check` is the exclusive or of the low 32 bits of all starts, and `of`
        how much further than the call before it each call's collective is; by `doubt` µs its times
        may be off those of other hosts.
        """
        return {
            "keys": [key._asdict() for key in self.keys],
            "key": self.key.tolist(),
            "straggler": self.straggler.tolist(),
            "cost": self.cost.tolist(),
            "expected": [sorted(members) for members in self._expected],
            "group": self._group.tolist() if self._group.any() else [],
            "failed": sorted(self._failed),
            "calls": [
                {
                    "rank": rank,
                    "doubt": self._doubt[rank],
                    "check": int(np.bitwise_xor.reduce(calls.start.astype(np.int32))),
                    "of": np.diff(calls.of, prepend=0).tolist(),
                }
                for rank, calls in self.calls.items()
            ],
        }

    @property
    def shared(self) -> npt.NDArray[np.bool_]:
        """Whether more than one rank took part in each."""
        return self.count > 1

    @property
    def has_given_up(self) -> bool:
        """Whether some rank waited for others that did not come any more."""
        return any(bool(self._given_up(self.calls[rank]).any()) for rank in self._failed)

    def _number(self, named: dict[int, _Named]) -> None:
        """Tell which collective each call belongs to, and put them in order."""
        place = {key: i for i, key in enumerate(self.keys)}
        met = np.unique(np.concatenate([[0], *(each.meetings for each in named.values())]))
        count = len(self.keys) * len(met)
        most = np.zeros(count + 1, np.int64)
        found = {}
        for rank, each in named.items():
            keys = np.array([place[key] for key in each.keys], np.int64)[each.which]
            keys = keys * len(met) + np.searchsorted(met, each.meetings)
            n, counts = _occurrences(keys, count)
            np.maximum(most[1:], counts, out=most[1:])
            found[rank] = keys, n
        begins = most.cumsum()
        total = int(begins[-1])
        key = np.repeat(np.arange(count) // len(met), most[1:])
        n = np.arange(total) - begins[key * len(met)]
        first = np.full(total, np.iinfo(np.int64).max)
        for rank, (keys, numbers) in found.items():
            at = begins[keys] + numbers
            found[rank] = at, numbers
            first[at] = np.minimum(first[at], named[rank].start)
        order = np.lexsort((n, key, first))
        where = np.empty_like(order)
        where[order] = np.arange(total)
        self.key, self.n, self.first = key[order], n[order], first[order]
        for rank, (at, _) in found.items():
            each = named[rank]
            self.calls[rank] = Calls(each.number, where[at], each.start, each.end, each.end)

    def _compare(self) -> None:
        """Bring together who took part in each, and find who came last."""
        total = len(self.first)
        self.count = np.zeros(total, np.int64)
        self.last = self.first.copy()
        self.straggler = np.full(total, -1)
        for rank, calls in self.calls.items():
            later = (calls.start > self.last[calls.of]) | (self.straggler[calls.of] < 0)
            at = calls.of[later]
            self.last[at], self.straggler[at] = calls.start[later], rank
            self.count[calls.of] += 1
        self._rows = np.concatenate(([0], self.count.cumsum()))
        self._taking_part, self._arrivals, self._ends = np.empty((3, self._rows[-1]), np.int64)
        free = self._rows[:-1].copy()
        for rank, calls in self.calls.items():
            at = free[calls.of]
            free[calls.of] += 1
            self._taking_part[at], self._arrivals[at], self._ends[at] = rank, calls.start, calls.end
            # Who left before the last one came did not wait for it, as with a broadcast or a send.
            last = self.last[calls.of]
            left = calls.end + self._doubt[rank] < last
            calls.until = np.where(left, calls.start, np.minimum(last, calls.end))
        self.spread = self.last - self.first
        self.cost = np.zeros(total, np.int64)
        for count in np.unique(self.count):
            if count > 1:
                at = np.flatnonzero(self.count == count)
                arrivals = self._arrivals[self._rows[at][:, None] + np.arange(count)]
                # The straggler's is the greatest: without it, the others' middle.
                arrivals.sort(axis=1)
                middle = (arrivals[:, (count - 2) // 2] + arrivals[:, (count - 1) // 2]) // 2
                self.cost[at] = self.last[at] - middle

    def _look_for_absent(self, named: dict[int, _Named], failed: set[int]) -> None:
        """Find where ranks are absent; the failed ones waited for them in vain."""
        said = (members for each in named.values() for members in each.members if members)
        self._expected = list(dict.fromkeys([frozenset(self._ranks), *said]))
        self._failed = failed & self.calls.keys()
        place: dict[frozenset[int] | None, int] = {
            members: i for i, members in enumerate(self._expected)
        }
        unknown = -1
        self._group = np.full(len(self), unknown)
        for rank, calls in self.calls.items():
            groups = [place.get(members, unknown) for members in named[rank].members]
            group = np.array(groups, np.int64)[named[rank].which]
            new = (group != unknown) & (self._group[calls.of] == unknown)
            self._group[calls.of[new]] = group[new]
        self._group[self._group == unknown] = 0
        came = np.zeros(len(self), np.int64)
        for rank, calls in self.calls.items():
            belongs = np.array([rank in members for members in self._expected])
            came[calls.of] += belongs[self._group[calls.of]]
        self.has_absent = came < np.array([len(m) for m in self._expected])[self._group]
        for rank in self._failed:
            calls = self.calls[rank]
            calls.until = np.where(self._given_up(calls), calls.end, calls.until)

    def _given_up(self, calls: Calls) -> npt.NDArray[np.bool_]:
        """What a failed rank did not get out of: others may be missing in the record only."""
        found: npt.NDArray[np.bool_] = self.has_absent[calls.of] & (calls.end > calls.newest)
        return found

    def _expected_at(self, place: int) -> frozenset[int]:
        return self._expected[int(self._group[place])]


class _Named:
    """A rank's collectives in the order of their starts; what each distinct name says."""

    def __init__(self, timeline: Timeline, rank: int) -> None:
        self.number, self.start, self.end = timeline.lane(rank, CATEGORY).columns()
        numbers, self.which = np.unique(self.number, return_inverse=True)
        names = [timeline.named(rank, number) for number in numbers.tolist()]
        self.keys = [key_of(named) for named in names]
        self.members = [_members(named) for named in names]
        since = timeline.regrouped.get(rank, [])
        numbered = np.array([0, *(meeting for _, meeting in since)], np.int64)
        times = np.array([t for t, _ in since], np.int64)
        self.meetings = numbered[np.searchsorted(times, self.start, side="right")]


def _occurrences(keys: Column, count: int) -> tuple[Column, Column]:
    """How many of its key came before each, and how many there are of each key in all."""
    if count < 1 << 16:
        order = np.argsort(keys.astype(np.uint16), kind="stable")  # by radix
    else:
        order = np.argsort(keys, kind="stable")
    counts = np.bincount(keys, minlength=count)
    n = np.empty_like(keys)
    n[order] = np.arange(len(keys)) - np.repeat(counts.cumsum() - counts, counts)
    return n, counts


def key_of(named: Json) -> Key:
    """The key of a span from its name and arguments; what is left out is empty."""
    library, group, op, tensor = (_text(named.get(k)) for k in Key._fields)
    return Key(library, group, op if isinstance(named.get("op"), str) else named["name"], tensor)


def _text(value: Any) -> str:
    return value if isinstance(value, str) else ""


def _members(named: Json) -> frozenset[int] | None:
    ranks = named.get("ranks")
    if isinstance(ranks, list) and all(map(whole, ranks)):
        return frozenset(map(int, ranks))
    return None
