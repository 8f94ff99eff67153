"""The rows of a profile; all times are in microseconds. docs/profile-rules.md defines them."""

from __future__ import annotations

from dataclasses import dataclass, field


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
    """All calls of one operation. `bytes` is the mean size of a call; times are per rank, on
    average; `bandwidth` is in bytes of a rank's calls per second of its transfer time."""

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
    """A rank that came last in `last` of `of` collectives; `cost` is how long others waited for it,
    less the possible error of its clock."""

    rank: int
    last: int
    of: int
    cost: int


@dataclass
class RankMemory:
    """A rank's memory in bytes: at the first and the last sample, and at its peak.

    `rise` is how far it rose throughout the loop, or the run if there is no loop: 0 if it did not
    rise all the time, None if there are too few samples. `gpu_peak` is of the rank's whole GPU,
    other processes included.
    """

    rank: int
    first: int
    last: int
    peak: int
    rise: int | None
    gpu_peak: int | None


@dataclass
class OtherLoop:
    """A loop besides the longest: what ends its steps, in which line, and how many count."""

    name: str
    line: int | None
    steps: int
    time: int


@dataclass
class Loop:
    """The part of a run that repeats, from step `first` to step `last`, counted from 1.

    `steps` of them count and take `time` µs; in `apart` others, all ranks did something else as
    well. `name` is what ends a step, in line `line` of the cell; `rate` is in steps per second and
    `samples` in samples per second over all ranks, if spans report them. Ranks did `fewest` to
    `most` steps. `named` are the ranks that held the others up in the loop.
    """

    name: str
    line: int | None
    first: int
    last: int
    steps: int
    apart: int
    time: int
    rate: float
    samples: float | None
    fewest: int
    most: int
    named: list[int] = field(default_factory=list)
    others: list[OtherLoop] = field(default_factory=list)

    @property
    def title(self) -> str:
        """`steps 3–40`."""
        return f"steps {self.first:,}–{self.last:,}"
