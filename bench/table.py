"""Results of benchmarks: samples of both sides, targets, and the table of all rows."""

from __future__ import annotations

import math
import statistics
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

UNITS = {"µs": 1e-6, "ms": 1e-3, "s": 1.0, "KiB": 1024.0, "MB": 1e6}


class NotMeasured(Exception):
    """What was to be measured did not happen as required, so that any figure would be wrong."""


@dataclass
class Row:
    """One line of the table.

    `ours` and `peers` are samples in `unit`'s base (seconds, bytes, steps per second). The targets
    are limits in the same base: `at_most` for the median of ours, `ratio_at_most` and
    `ratio_at_least` for ours over the peer's.
    """

    what: str
    unit: str
    ours: Sequence[float]
    peers: Sequence[float] = ()
    at_most: float | None = None
    ratio_at_most: float | None = None
    ratio_at_least: float | None = None
    peer: str = "%%px"
    detail: dict[str, Any] = field(default_factory=dict)

    @property
    def pairs(self) -> list[float]:
        """Ours over the peer's, for each pair of samples that were taken one after the other."""
        if not self.peers or len(self.ours) != len(self.peers):
            return []
        return [a / b for a, b in zip(self.ours, self.peers, strict=True)]

    @property
    def ratio(self) -> float | None:
        """Ours over the peer's.

        Samples that were taken in pairs are compared in pairs, and the median of the ratios counts:
        noise that lasts longer than a pair affects both of its sides.
        """
        if not self.peers:
            return None
        if self.pairs:
            return statistics.median(self.pairs)
        return statistics.median(self.ours) / statistics.median(self.peers)

    @property
    def interval(self) -> tuple[float, float] | None:
        """The 95 % confidence interval of the median of the pairs' ratios; None for too few.

        It is derived from the order of the ratios only, as in a sign test, so it holds for any
        distribution.
        """
        ratios = sorted(self.pairs)
        count = len(ratios)
        aside, below = 0, 0.5**count  # the chance that at most `aside` lie below the median
        while aside < count // 2 and below <= 0.025:
            aside += 1
            below += math.comb(count, aside) * 0.5**count
        return (ratios[aside - 1], ratios[count - aside]) if aside else None

    @property
    def reached(self) -> bool:
        """True when every target of the row is met."""
        ratio = self.ratio
        checks = [
            self.at_most is None or statistics.median(self.ours) <= self.at_most,
            self.ratio_at_most is None or (ratio is not None and ratio <= self.ratio_at_most),
            self.ratio_at_least is None or (ratio is not None and ratio >= self.ratio_at_least),
        ]
        return all(checks)

    @property
    def target(self) -> str:
        """The targets in words."""
        words = []
        if self.ratio_at_most is not None:
            words.append(f"≤ {self.ratio_at_most:.2f} ×")
        if self.ratio_at_least is not None:
            words.append(f"≥ {self.ratio_at_least:.2f} ×")
        if self.at_most is not None:
            words.append(f"≤ {_number(self.at_most, self.unit)} {self.unit}")
        return ", ".join(words) or "–"

    def to_json(self) -> dict[str, Any]:
        """Return everything, also the samples, so that other statistics can be computed later."""
        return {
            "what": self.what,
            "unit": self.unit,
            "peer": self.peer,
            "peers": list(self.peers),
            "ours": list(self.ours),
            "ratio": self.ratio,
            "interval": self.interval,
            "target": self.target,
            "reached": self.reached,
            **self.detail,
        }


def table(rows: Sequence[Row]) -> str:
    """Return the rows as aligned text: medians, with ranges in brackets.

    After a ratio, the brackets hold its 95 % confidence interval.
    """
    cells = [("what", "peer", "rankroom", "ratio", "target", "reached")]
    for row in rows:
        ratio = "–" if row.ratio is None else f"{row.ratio:.3g}"
        if row.interval is not None:
            low, high = row.interval
            ratio += f" ({low:.3g}–{high:.3g})"
        peer = f"{row.peer} {_spread(row.peers, row.unit)}" if row.peers else "–"
        reached = "–" if row.target == "–" else ("yes" if row.reached else "NO")
        cells.append((row.what, peer, _spread(row.ours, row.unit), ratio, row.target, reached))
    widths = [max(len(line[i]) for line in cells) for i in range(len(cells[0]))]
    lines = [" | ".join(f"{c:<{w}}" for c, w in zip(line, widths, strict=True)) for line in cells]
    lines.insert(1, "-|-".join("-" * width for width in widths))
    return "\n".join(line.rstrip() for line in lines)


def _spread(values: Sequence[float], unit: str) -> str:
    middle = f"{_number(statistics.median(values), unit)} {unit}"
    if len(values) == 1:
        return middle
    return f"{middle} ({_number(min(values), unit)}–{_number(max(values), unit)}, n={len(values)})"


def _number(value: float, unit: str) -> str:
    value /= UNITS.get(unit, 1.0)
    if abs(value) >= 100:
        return f"{value:,.0f}"
    return f"{value:.1f}" if abs(value) >= 10 else f"{value:.2f}"
