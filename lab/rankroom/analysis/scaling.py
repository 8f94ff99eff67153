"""How a cell's time changes with the number of ranks: times, speed-up, efficiency, and causes.

A cell's time counts from when the last rank started its first line to when the last rank ended.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from statistics import median
from typing import Any

from rankroom.analysis.chart import chart
from rankroom.analysis.profile import Shares
from rankroom.analysis.profile.intervals import both, length, one
from rankroom.analysis.profile.shares import PARTS
from rankroom.analysis.profile.tables import PART_TITLES as WORDS
from rankroom.analysis.profile.tables import Table
from rankroom.analysis.timeline import Timeline
from rankroom.errors import UsageError
from rankroom.record.model import Json
from rankroom.text.amounts import duration

FIT_TOLERANCE = 0.1  # relative error of each time up to which Amdahl's law fits
# Okabe and Ito's palette, safe for color-blind readers, on white and on black.
COLOURS = {
    "compute": "#8d99a3", "data": "#009e73", "waiting": "#e69f00", "exposed": "#0072b2",
    "idle": "#c9c9c9",
}  # fmt: skip


@dataclass
class Measured:
    """One run: its time in µs, and how a rank spent it on average."""

    time: int
    causes: dict[str, int]
    run: str = ""

    @classmethod
    def of(cls, timeline: Timeline, run: str = "") -> Measured:
        """Measure a run by its spans; the time is 0 if there are none of the cell."""
        cells = {rank: timeline.lane(rank, "cell") for rank in timeline.ranks}
        begins = [min(cell.start) for cell in cells.values() if len(cell)]
        ends = [max(cell.end) for cell in cells.values() if len(cell)]
        if not begins:
            return cls(0, dict.fromkeys(PARTS, 0), run)
        window = max(begins), max(ends)
        shares = Shares(timeline)
        causes = dict.fromkeys(PARTS, 0)
        for rank, times in shares.ranks.items():
            # A rank that ends before the last one is idle from then on.
            end = max([window[0], *cells[rank].end])
            for part in PARTS:
                causes[part] += length(both(getattr(times, part), one(window[0], end)))
            causes["idle"] += length(both(shares.window, one(end, window[1])))
        time = window[1] - window[0]
        # If a run was too long to be recorded whole, scale what was recorded up to all of it.
        recorded = len(shares.ranks) * max(1, length(both(shares.window, one(*window))))
        return cls(time, {k: v * time // recorded for k, v in causes.items()}, run)


@dataclass
class Size:
    """The runs on one number of ranks; the first may have been left out as a warm-up."""

    ranks: int
    runs: list[Measured] = field(default_factory=list)

    @property
    def times(self) -> list[int]:
        return [run.time for run in self.runs]

    @property
    def time(self) -> float:
        """The median time."""
        return median(self.times)

    @property
    def causes(self) -> dict[str, float]:
        """How the median run (the mean of the middle two) spent its time; adds up to `time`."""
        runs = sorted(self.runs, key=lambda run: run.time)
        middle = runs[(len(runs) - 1) // 2], runs[len(runs) // 2]
        return {part: sum(run.causes[part] for run in middle) / 2 for part in PARTS}


class Scaling:
    """A cell's runs on different numbers of ranks.

    With `weak`, the work grows with the number of ranks: a constant time is then perfect scaling.
    """

    def __init__(self, weak: bool = False) -> None:
        self.weak = weak
        self.sizes: list[Size] = []

    def add(self, ranks: int, run: Measured) -> None:
        """Add a run on this number of ranks."""
        if not self.sizes or self.sizes[-1].ranks != ranks:
            self.sizes.append(Size(ranks))
        self.sizes[-1].runs.append(run)

    @property
    def base(self) -> Size | None:
        """The size that others are compared with: the fewest ranks."""
        return min(self.sizes, key=lambda size: size.ranks, default=None)

    def speed_up(self, size: Size, time: float | None = None) -> float:
        """Return how many times as much work is done per time as on one rank; NaN without a time.

        If there was no run on one rank, the smallest size is taken to scale perfectly.
        """
        time = size.time if time is None else time
        base = self.base
        if base is None or time <= 0:
            return float("nan")
        work = size.ranks if self.weak else base.ranks
        return base.time / time * work

    def efficiency(self, size: Size) -> float:
        """Return the speed-up as a fraction of perfect scaling."""
        return self.speed_up(size) / size.ranks

    def rows(self) -> list[Json]:
        """Return one dictionary per number of ranks; times in seconds."""
        return [
            {
                "ranks": size.ranks,
                "time": size.time / 1e6,
                "fastest": min(size.times) / 1e6,
                "slowest": max(size.times) / 1e6,
                "repeats": len(size.times),
                "speed_up": self.speed_up(size),
                "efficiency": self.efficiency(size),
                **{part: size.causes[part] / 1e6 for part in PARTS},
                "runs": [run.run for run in size.runs],
            }
            for size in self.sizes
        ]

    def to_pandas(self) -> Any:
        """Return the rows as a pandas DataFrame.

        Raises UsageError if pandas is not installed.
        """
        try:
            import pandas as pd  # type: ignore[import-untyped,import-not-found,unused-ignore]
        except ImportError:
            raise UsageError(NO_PANDAS) from None
        return pd.DataFrame(self.rows())

    def serial(self) -> float | None:
        """Return the share of the work that more ranks do not make shorter (Amdahl's law).

        None if the times do not follow that law, or are too few to tell.
        """
        base = self.base
        if self.weak or base is None or base.ranks != 1 or len(self.sizes) < 3 or base.time <= 0:
            return None
        points = [(1 / size.ranks, size.time / base.time) for size in self.sizes]
        weight = sum((1 - x) ** 2 for x, _ in points)
        share = sum((y - x) * (1 - x) for x, y in points) / weight
        share = min(1.0, max(0.0, share))
        fits = all(abs(share + (1 - share) * x - y) <= FIT_TOLERANCE * y for x, y in points)
        return share if fits else None

    def remarks(self) -> list[str]:
        """Return the sentences to show with the table."""
        said = []
        share = self.serial()
        if share is not None:
            limit = f": at most {1 / share:.1f} × as fast" if share >= 0.01 else ""
            said.append(f"fits Amdahl's law with {share * 100:.0f} % serial{limit}")
        worst = self.cause()
        if worst:
            said.append(worst)
        return said

    def cause(self) -> str:
        """Name the main cause of what the most ranks lose against the fewest; empty if none."""
        base, last = self.base, max(self.sizes, key=lambda size: size.ranks, default=None)
        if base is None or last is None or last is base or self.efficiency(last) > 0.95:
            return ""
        scale = 1.0 if self.weak else base.ranks / last.ranks
        lost = {part: last.causes[part] - base.causes[part] * scale for part in PARTS}
        part, most = max(lost.items(), key=lambda item: item[1])
        whole = last.time - base.time * scale
        if whole <= 0 or most < 0.2 * whole:
            return ""
        share = min(100, round(100 * most / whole))
        return f"on {last.ranks} ranks, {share} % of the lost time is {WORDS[part]}"

    def table(self) -> Table:
        """Return times, speed-up, efficiency and causes side by side."""
        head = ["ranks", "time", "spread", "speed-up", "efficiency", *WORDS.values()]
        return Table(head, [self._cells(size) for size in self.sizes])

    def _cells(self, size: Size) -> list[str]:
        time, causes = size.time, size.causes
        low, high = min(size.times), max(size.times)
        whole = sum(causes.values())
        parts = [f"{100 * causes[part] / whole:.0f} %" if whole else "–" for part in WORDS]
        return [
            str(size.ranks),
            format_time(time),
            f"{format_time(low)} – {format_time(high)}" if len(size.times) > 1 else "–",
            f"{self.speed_up(size):.2f} ×" if time else "–",
            f"{100 * self.efficiency(size):.0f} %" if time else "–",
            *parts,
        ]

    def __str__(self) -> str:
        if not self.sizes:
            return "no run has finished yet"
        return "\n\n".join(["\n".join([*self.remarks()]), self.table().text()]).strip()

    __repr__ = __str__

    def _repr_html_(self) -> str:
        if not self.sizes:
            return "<div>no run has finished yet</div>"
        remarks = "".join(f"<div>{text}</div>" for text in self.remarks())
        return remarks + self.table().html()

    def chart(self) -> Json:
        """Return a Vega-Lite chart: speed-up next to the perfect one, and where the time went."""
        return chart(
            hconcat=[self._speed_chart(), self._cause_chart()],
            resolve={"scale": {"color": "independent"}},
        )

    def _speed_chart(self) -> Json:
        def up(size: Size, time: float) -> float | None:  # JSON has no NaN
            return round(self.speed_up(size, time), 4) if time else None

        rows = [
            {
                "ranks": size.ranks,
                "speed-up": up(size, size.time),
                "low": up(size, max(size.times)),
                "high": up(size, min(size.times)),
                "perfect": size.ranks,
            }
            for size in self.sizes
        ]
        axis = {"values": [size.ranks for size in self.sizes], "format": "d"}
        ranks = {"field": "ranks", "type": "quantitative", "title": "ranks", "axis": axis}
        blue = COLOURS["exposed"]
        return {
            "title": "weak scaling" if self.weak else "strong scaling",
            "width": 240, "height": 200, "data": {"values": rows},
            "encoding": {"x": ranks},
            "layer": [
                {"mark": {"type": "line", "strokeDash": [4, 4], "color": "#999999"},
                 "encoding": {"y": {"field": "perfect", "type": "quantitative"}}},
                {"mark": {"type": "rule", "color": blue},
                 "encoding": {"y": {"field": "low", "type": "quantitative"},
                              "y2": {"field": "high"}}},
                {"mark": {"type": "line", "point": True, "color": blue, "tooltip": True},
                 "encoding": {"y": {"field": "speed-up", "type": "quantitative",
                                    "title": "speed-up (dashed: perfect)"}}},
            ],
        }  # fmt: skip

    def _cause_chart(self) -> Json:
        rows = [
            {"ranks": str(size.ranks), "part": WORDS[part], "seconds": round(micros / 1e6, 6),
             "order": PARTS.index(part)}
            for size in self.sizes
            for part, micros in size.causes.items()
        ]  # fmt: skip
        scale = {"domain": [WORDS[part] for part in PARTS],
                 "range": [COLOURS[part] for part in PARTS]}  # fmt: skip
        return {
            "title": "a rank's time",
            "width": 200, "height": 200, "data": {"values": rows},
            "mark": {"type": "bar", "tooltip": True},
            "encoding": {
                "x": {"field": "ranks", "type": "nominal", "sort": None, "axis": {"labelAngle": 0}},
                "y": {"field": "seconds", "type": "quantitative", "title": "seconds"},
                "color": {"field": "part", "type": "nominal", "title": None, "scale": scale},
                "order": {"field": "order"},
            },
        }  # fmt: skip


def format_time(micros: float) -> str:
    """Format a time with three digits, as speed-ups are judged by it."""
    if micros < 999_500:
        return f"{micros / 1000:.3g} ms"
    return f"{micros / 1e6:.2f} s" if micros < 59_950_000 else duration(int(micros))


def parse_rank_counts(text: str, size: int) -> list[int]:
    """Parse numbers of ranks such as `1,2,4`; without a text, return 1, 2, 4 … and `size`.

    Raises ValueError with a message for the user.
    """
    if not text:
        return sorted({size, *(1 << n for n in range(size.bit_length()))})
    chosen = []
    for word in text.split(","):
        if not word.strip().isdecimal() or int(word) < 1:
            raise ValueError(
                f"{word.strip()!r} is not a number of ranks: give a list such as 1,2,4"
            )
        chosen.append(int(word))
    if max(chosen) > size:
        raise ValueError(TOO_MANY.format(most=max(chosen), size=size))
    return list(dict.fromkeys(chosen))


def bundle(scaling: Scaling, notes: Sequence[str] = ()) -> Mapping[str, Any]:
    """Return the table as a notebook shows it, followed by `notes`."""
    from html import escape

    text = "\n".join([str(scaling), *notes])
    page = scaling._repr_html_() + "".join(f"<div>{escape(note)}</div>" for note in notes)
    return {"text/plain": text, "text/html": page}


TOO_MANY = (
    "{most} ranks requested, but the cluster has {size}: `%cluster resize {most}` restarts it with "
    "that many, without its variables"
)
NO_PANDAS = (
    "pandas is not installed here: `pip install pandas`, or use the plain rows of scaling.rows()"
)
