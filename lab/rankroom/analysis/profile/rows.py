"""The rows of a profile; all times are in microseconds. docs/profile-rules.md defines them."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass
class RankTimes:
    """Where one rank's time went; compute, data, waiting, exposed and idle add up to the wall.

    `exposed` is communication that nothing overlaps; `communication` is all of it.
    """

    rank: int
    compute: int
    data: int
    waiting: int
    exposed: int
    idle: int
    communication: int


@dataclass
class Kind:
    """All calls of one operation. `bytes` is the mean of a call; times are a rank's, on average;
    `bandwidth` is in bytes per second of transfer."""

    library: str
    op: str
    calls: int
    bytes: float | None
    time: int
    wait: int
    transfer: int
    bandwidth: float | None


@dataclass
class Straggler:
    """A rank that came last in `last` of `of` collectives, and how long others waited for it."""

    rank: int
    last: int
    of: int
    cost: int
