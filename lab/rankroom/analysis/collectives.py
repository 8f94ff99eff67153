"""Collectives: operations matched across ranks, with who came last and what each rank waited.

The n-th time that a rank calls an operation on a tensor belongs to the n-th time of the others.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any, NamedTuple

from rankroom.analysis.timeline import Timeline, whole
from rankroom.record.model import Json

CATEGORY = "collective"


class Key(NamedTuple):
    """What the spans of one collective have in common, besides their number."""

    library: str
    group: str
    op: str
    tensor: str


@dataclass
class Collective:
    """The `n`-th of a key. `ranks` took part, with `arrivals` and `ends` in that order (µs).

    `last` is when the last rank arrived, and `straggler` that rank, the lowest of several.
    """

    key: Key
    n: int
    ranks: list[int]
    arrivals: list[int]
    ends: list[int]
    absent: list[int]
    given_up: list[int] = field(default_factory=list)  # of `ranks`: nobody came any more
    last: int = 0
    straggler: int = 0

    @property
    def spread(self) -> int:
        """From the first arrival to the last."""
        return self.last - min(self.arrivals)

    @property
    def cost(self) -> int:
        """How much later the straggler came than the others did in the middle."""
        late = self.arrivals.index(self.last)
        others = sorted(self.arrivals[:late] + self.arrivals[late + 1 :])
        if not others:
            return 0
        half = len(others) // 2
        return self.last - (others[half] + others[(len(others) - 1) // 2]) // 2

    def until(self, place: int) -> int:
        """When the wait of the rank at `place` of `ranks` was over, and the transfer began."""
        start = self.arrivals[place]
        if self.given_up and self.ranks[place] in self.given_up:
            return self.ends[place]
        return start + max(0, min(self.last, self.ends[place]) - start)

    def to_json(self) -> Json:
        """As in tests/support/traces/*/expected.json."""
        return {
            **self.key._asdict(),
            "n": self.n,
            "ranks": self.ranks,
            "absent": self.absent,
            "given_up": self.given_up,
            "arrivals": self.arrivals,
            "ends": self.ends,
            "last": self.last,
            "straggler": self.straggler,
            "spread": self.spread,
            "cost": self.cost,
        }


def match(timeline: Timeline) -> list[Collective]:
    """All collectives of a run, by the time of their first arrival."""
    found: dict[Key, list[Collective]] = {}
    members: dict[Key, list[list[int] | None]] = {}
    for rank in timeline.ranks:
        lane = timeline.lane(rank, CATEGORY)
        keys: dict[int, Key] = {}
        counts: dict[Key, int] = {}
        for at in sorted(range(len(lane)), key=lane.start.__getitem__):
            number = lane.name[at]
            key = keys.get(number)
            if key is None:
                key = keys[number] = key_of(timeline.named(rank, number))
            n = counts.get(key, 0)
            counts[key] = n + 1
            same = found.setdefault(key, [])
            asked = members.setdefault(key, [])
            if n == len(same):
                same.append(Collective(key, n, [], [], [], []))
                asked.append(None)
            collective = same[n]
            collective.ranks.append(rank)
            collective.arrivals.append(lane.start[at])
            collective.ends.append(lane.end[at])
            if asked[n] is None:
                asked[n] = _members(timeline.named(rank, number))
    for key, same in found.items():
        for collective, asked_of in zip(same, members[key], strict=True):
            collective.last = max(collective.arrivals)
            collective.straggler = collective.ranks[collective.arrivals.index(collective.last)]
            expected = timeline.ranks if asked_of is None else asked_of
            if expected != collective.ranks:
                collective.absent = sorted(set(expected) - set(collective.ranks))
                if collective.absent:
                    collective.given_up = sorted(timeline.failed.intersection(collective.ranks))
    every = [collective for same in found.values() for collective in same]
    every.sort(key=lambda c: (min(c.arrivals), c.key, c.n))
    return every


def key_of(named: Json) -> Key:
    """The key of a span from its name and arguments; what is left out is empty."""
    library, group, op, tensor = (_text(named.get(k)) for k in Key._fields)
    return Key(library, group, op if isinstance(named.get("op"), str) else named["name"], tensor)


def _text(value: Any) -> str:
    return value if isinstance(value, str) else ""


def _members(named: Json) -> list[int] | None:
    ranks = named.get("ranks")
    if isinstance(ranks, list) and all(map(whole, ranks)):
        return ranks
    return None
