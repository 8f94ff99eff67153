"""Collectives: operations matched across ranks, with the straggler and each rank's wait.

A rank's n-th call of an operation on a tensor is matched with the n-th call of the other ranks; the
calls after each regrouping of an elastic run are matched among themselves. A run may have millions
of collectives, so they are stored in columns; `Collective` is one of them, for inspection.
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
    """What all spans of one collective have in common, besides its number `n`."""

    library: str
    group: str
    op: str
    tensor: str


class Collective(NamedTuple):
    """The `n`-th collective of a key: its `ranks`, with `arrivals` and `ends` in that order (µs).

    `last` is the latest arrival, and `straggler` the rank that arrived then, the lowest of a tie.
    `spread` is the time from the first arrival to the last, `cost` the time from the median arrival
    of the other ranks to the last. `absent` are the ranks that were expected but did not take part;
    the ranks in `given_up` waited for them until they failed.
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
        """Return the collective in the format of tests/support/traces/*/expected.json."""
        rest = self._asdict()
        return {**rest.pop("key")._asdict(), **rest}


@dataclass
class Calls:
    """One rank's calls of collectives, in columns, in order of their starts; times in µs."""

    numbers: Column  # of the names in the rank's table
    collective: Column  # index of the collective that each belongs to
    start: Column
    end: Column
    wait_end: Column  # when the wait ended and the transfer began

    @property
    def newest(self) -> int:
        """The start of the last call. The rank completed every call that ended by then."""
        return int(self.start[-1]) if len(self.start) else 0


class Collectives:
    """All collectives of a run, sorted by first arrival, then by key and `n`."""

    def __init__(self, timeline: Timeline) -> None:
        self._ranks, self._doubt = timeline.ranks, timeline.doubt
        named = {rank: _Named(timeline, rank) for rank in timeline.ranks}
        self.keys = sorted({key for each in named.values() for key in each.keys})
        self.calls: dict[int, Calls] = {}
        self._number(named)
        self._compare()
        self._find_absent(named, timeline.failed)

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
        """Return all collectives as `runs/<id>/collectives` serves them, in a few bytes each.

        Clients that have the spans compute the times themselves. For each rank in `calls`, `check`
        lets them verify that they have the same spans: it is the XOR of the low 32 bits of all
        starts. `of` has the index of each call's collective, as the difference from the call
        before. `doubt` is by how many µs the rank's times may differ from those of other hosts.
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
                    "of": np.diff(calls.collective, prepend=0).tolist(),
                }
                for rank, calls in self.calls.items()
            ],
        }

    @property
    def shared(self) -> npt.NDArray[np.bool_]:
        """For each collective, whether more than one rank took part."""
        return self.count > 1

    @property
    def has_given_up(self) -> bool:
        """Whether a rank waited, until it failed, for ranks that never arrived."""
        return any(bool(self._given_up(self.calls[rank]).any()) for rank in self._failed)

    def _number(self, named: dict[int, _Named]) -> None:
        """Assign each call to a collective, and sort the collectives."""
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
        """Collect the ranks that took part in each collective, and find its straggler."""
        total = len(self.first)
        self.count = np.zeros(total, np.int64)
        self.last = self.first.copy()
        self.straggler = np.full(total, -1)
        for rank, calls in self.calls.items():
            later = (calls.start > self.last[calls.collective]) | (
                self.straggler[calls.collective] < 0
            )
            at = calls.collective[later]
            self.last[at], self.straggler[at] = calls.start[later], rank
            self.count[calls.collective] += 1
        self._rows = np.concatenate(([0], self.count.cumsum()))
        self._taking_part, self._arrivals, self._ends = np.empty((3, self._rows[-1]), np.int64)
        free = self._rows[:-1].copy()
        for rank, calls in self.calls.items():
            at = free[calls.collective]
            free[calls.collective] += 1
            self._taking_part[at], self._arrivals[at], self._ends[at] = rank, calls.start, calls.end
            # A rank that left before the last one arrived did not wait for it (broadcast or send).
            last = self.last[calls.collective]
            left = calls.end + self._doubt[rank] < last
            calls.wait_end = np.where(left, calls.start, np.minimum(last, calls.end))
        self.spread = self.last - self.first
        self.cost = np.zeros(total, np.int64)
        for count in np.unique(self.count):
            if count > 1:
                at = np.flatnonzero(self.count == count)
                arrivals = self._arrivals[self._rows[at][:, None] + np.arange(count)]
                # The straggler's arrival sorts last: this is the median of the others.
                arrivals.sort(axis=1)
                middle = (arrivals[:, (count - 2) // 2] + arrivals[:, (count - 1) // 2]) // 2
                self.cost[at] = self.last[at] - middle

    def _find_absent(self, named: dict[int, _Named], failed: set[int]) -> None:
        """Find collectives that lack expected ranks; failed ranks waited in them to the end."""
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
            new = (group != unknown) & (self._group[calls.collective] == unknown)
            self._group[calls.collective[new]] = group[new]
        self._group[self._group == unknown] = 0
        came = np.zeros(len(self), np.int64)
        for rank, calls in self.calls.items():
            belongs = np.array([rank in members for members in self._expected])
            came[calls.collective] += belongs[self._group[calls.collective]]
        self.has_absent = came < np.array([len(m) for m in self._expected])[self._group]
        for rank in self._failed:
            calls = self.calls[rank]
            calls.wait_end = np.where(self._given_up(calls), calls.end, calls.wait_end)

    def _given_up(self, calls: Calls) -> npt.NDArray[np.bool_]:
        """Select the calls that a failed rank never completed.

        Where it did complete the call, the absent ranks may only be missing from the record.
        """
        found: npt.NDArray[np.bool_] = self.has_absent[calls.collective] & (
            calls.end > calls.newest
        )
        return found

    def _expected_at(self, place: int) -> frozenset[int]:
        return self._expected[int(self._group[place])]


class _Named:
    """One rank's collectives in order of their starts; key and members of each distinct name."""

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
    """Return how many equal keys precede each key, and how often each key occurs in all."""
    if count < 1 << 16:
        order = np.argsort(keys.astype(np.uint16), kind="stable")  # a radix sort
    else:
        order = np.argsort(keys, kind="stable")
    counts = np.bincount(keys, minlength=count)
    n = np.empty_like(keys)
    n[order] = np.arange(len(keys)) - np.repeat(counts.cumsum() - counts, counts)
    return n, counts


def key_of(named: Json) -> Key:
    """Return a span's key. A missing argument counts as empty, a missing `op` as the name."""
    library, group, op, tensor = (_text(named.get(k)) for k in Key._fields)
    return Key(library, group, op if isinstance(named.get("op"), str) else named["name"], tensor)


def _text(value: Any) -> str:
    return value if isinstance(value, str) else ""


def _members(named: Json) -> frozenset[int] | None:
    ranks = named.get("ranks")
    if isinstance(ranks, list) and all(map(whole, ranks)):
        return frozenset(map(int, ranks))
    return None
