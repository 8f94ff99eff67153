"""A run in phases: before its loop, the loop's first steps, the loop, and the rest."""

from __future__ import annotations

from dataclasses import dataclass, field

import numpy as np

from rankroom.analysis.profile.intervals import Intervals, joined, length, one, without
from rankroom.analysis.profile.kinds import kinds, stragglers
from rankroom.analysis.profile.rows import Kind, Loop, OtherLoop, RankTimes, Straggler
from rankroom.analysis.profile.shares import Shares
from rankroom.analysis.profile.training_loop import LoopSteps, begin_of, find_loops
from rankroom.analysis.timeline import whole
from rankroom.text.amounts import duration

# The names shown for the phases, in order of time; the rest also lies between steps.
TITLES = {"startup": "start-up", "warmup": "warm-up", "loop": "loop", "rest": "rest"}
MIN_MENTIONED_US = 1_000_000  # what comes before the loop, if it is to be mentioned
MAX_OTHER_LOOPS = 3  # loops that are listed besides the longest
_SAMPLES = ("data", "user")  # categories of spans that may report a number of samples


@dataclass
class Phase:
    """A phase of the run, from `begin` to `end`; `wall` is its length less moments of other phases.

    `imports` is how long a rank imported modules, on average; times in µs.
    """

    phase: str
    begin: int
    end: int
    wall: int
    imports: int
    ranks: list[RankTimes]
    kinds: list[Kind] = field(default_factory=list)
    stragglers: list[Straggler] = field(default_factory=list)

    @classmethod
    def of(cls, name: str, shares: Shares) -> Phase:
        """Return the phase that consists of these moments; there must be some."""
        window = shares.window
        begin, end = int(window[0, 0]), int(window[-1, 1])
        return cls(
            name, begin, end, shares.wall, _imports(shares), shares.rows(), kinds(shares),
            stragglers(shares),
        )  # fmt: skip


def split(shares: Shares) -> tuple[Loop | None, dict[str, Shares]]:
    """Return the run's loop, and the moments of each phase in order; neither if nothing repeats."""
    found = find_loops(shares)
    if not found:
        return None, {}
    steps, *others = found
    loop = steps.window
    begin = min(begin_of(shares.timeline, steps), int(steps.ends[0]))
    warm = int(steps.ends[steps.warm - 1])
    windows: dict[str, Intervals] = {
        "startup": one(shares.begin, begin),
        "warmup": one(begin, warm),
        "loop": loop,
    }
    windows["rest"] = without(shares.window, joined(*windows.values()))
    parts = {name: shares.restricted_to(window) for name, window in windows.items()}
    cut = {name: part for name, part in parts.items() if len(part.window)}
    rows = [
        OtherLoop(each.what.name, each.what.line, each.counted, each.time)
        for each in others[:MAX_OTHER_LOOPS]
    ]
    return _described(steps, cut["loop"], rows), cut


def before(phases: list[Phase]) -> str:
    """Return `; before that: 10.4 s, 10.1 s of it imports`; empty if the loop began at once."""
    early = [phase for phase in phases if phase.phase in ("startup", "warmup")]
    took = sum(phase.wall for phase in early)
    if took < MIN_MENTIONED_US:
        return ""
    imports = sum(phase.imports for phase in early)
    of_it = f", {duration(imports)} of it imports" if 10 * imports >= took else ""
    return f"; before that: {duration(took)}{of_it}"


def _described(steps: LoopSteps, shares: Shares, others: list[OtherLoop]) -> Loop:
    time, count = steps.time, steps.counted
    seconds = time / 1e6
    samples = _samples(shares)
    return Loop(
        name=steps.what.name, line=steps.what.line, first=steps.warm + 1, last=len(steps.ends),
        steps=count, apart=int(steps.apart.sum()), time=time, rate=count / seconds,
        samples=samples / seconds if samples else None,
        fewest=steps.counts[0], most=steps.counts[-1], others=others,
    )  # fmt: skip


def _imports(shares: Shares) -> int:
    """Return how long a rank imports modules: the mean over all ranks."""
    total = 0
    for rank in shares.ranks:
        _, start, end = shares.timeline.lane(rank, "import").columns()
        total += length(shares.cut_to_window(start, end))
    return total // max(1, len(shares.ranks))


def _samples(shares: Shares) -> int:
    """Return how many samples the spans that begin in these moments report."""
    total = 0
    for rank in shares.ranks:
        for cat in _SAMPLES:
            number, start, _ = shares.timeline.lane(rank, cat).columns()
            chosen = number[shares.in_window(start)]
            for each, count in zip(*np.unique(chosen, return_counts=True), strict=True):
                said = shares.timeline.named(rank, int(each)).get("samples")
                if whole(said) and said > 0:
                    total += int(said) * int(count)
    return total
