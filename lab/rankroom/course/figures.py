"""Figures that lessons draw from the results of their own cells.

What each rank holds before and after a collective is drawn as SVG; curves are drawn by Vega-Lite,
which JupyterLab renders.
"""

from __future__ import annotations

import html
from collections.abc import Mapping, Sequence
from typing import Any

from rankroom.analysis.chart import VEGA, chart

# Eight colors that color-blind people can tell apart, readable under black text.
COLOURS = ("#a6cee3", "#fdbf6f", "#b2df8a", "#cab2d6", "#ffe08a", "#fb9a99", "#9fd8cb", "#d9d9d9")
_CELL, _HIGH, _GAP, _NAME = 44, 26, 6, 56
TEXT = "var(--jp-ui-font-color1, currentColor)"


class Curve:
    """Named series of points (x, y) in one plot, in JupyterLab's own colors, light or dark."""

    def __init__(
        self,
        title: str,
        series: Mapping[str, Sequence[tuple[float, float]]],
        x: str,
        y: str,
        log: bool = False,
        log_y: bool = False,
    ) -> None:
        self.title, self.series, self.x, self.y, self.log = title, series, x, y, log
        self.log_y = log_y

    def __repr__(self) -> str:
        lines = [f"{self.title}: {self.y} over {self.x}"]
        for name, points in self.series.items():
            lines.append(f"{name}: " + ", ".join(f"{x:g} → {y:.3g}" for x, y in points))
        return "\n".join(lines)

    def _repr_mimebundle_(self, **_: Any) -> dict[str, Any]:
        rows = [
            {"series": name, "x": x, "y": y}
            for name, points in self.series.items()
            for x, y in points
        ]
        logarithmic: dict[str, Any] = {"scale": {"type": "log", "base": 2}}
        scale, scale_y = logarithmic if self.log else {}, logarithmic if self.log_y else {}
        plot = chart(
            title=self.title,
            description=repr(self),
            width=420,
            height=220,
            data={"values": rows},
            mark={"type": "line", "point": True},
            encoding={
                "x": {"field": "x", "type": "quantitative", "title": self.x, **scale},
                "y": {"field": "y", "type": "quantitative", "title": self.y, **scale_y},
                "color": {
                    "field": "series", "type": "nominal", "title": None,
                    "scale": {"range": ["#0072b2", "#d55e00", "#009e73", "#cc79a7", "#e69f00"]},
                    "legend": {"orient": "bottom", "columns": 2, "labelLimit": 240},
                },
                "strokeDash": {"field": "series", "type": "nominal", "title": None},
            },
        )  # fmt: skip
        return {VEGA: plot, "text/plain": repr(self)}


class WhoHasWhat:
    """What each rank holds before and after a collective, drawn side by side.

    `before` and `after` are by rank: a number, a list of numbers, or None for nothing. A number has
    the color of the rank that contributed it, which its tens identify; others stay white.
    """

    def __init__(self, title: str, before: Mapping[int, Any], after: Mapping[int, Any]) -> None:
        self.title = title
        self.before = {rank: _row(value) for rank, value in sorted(before.items())}
        self.after = {rank: _row(value) for rank, value in sorted(after.items())}

    def __repr__(self) -> str:
        lines = [self.title]
        for rank, row in self.before.items():
            left, right = _words(row), _words(self.after.get(rank, []))
            lines.append(f"rank {rank}: {left}  →  {right}")
        return "\n".join(lines)

    def _repr_html_(self) -> str:
        cells = max((len(row) for row in self.before.values()), default=1) or 1
        more = max((len(row) for row in self.after.values()), default=1) or 1
        second = _NAME + cells * _CELL + 56
        width = second + more * _CELL + 8
        height = 46 + len(self.before) * (_HIGH + _GAP)
        parts = [
            f'<svg role="img" width="{width}" height="{height}" viewBox="0 0 {width} {height}" '
            f'style="max-width:100%" font-family="sans-serif" font-size="13">',
            f"<title>{html.escape(self.title)}</title><desc>{html.escape(repr(self))}</desc>",
            _label(_NAME, 14, self.title, weight="bold"),
            _label(_NAME, 34, "before"),
            _label(second, 34, "after"),
        ]
        for place, (rank, row) in enumerate(self.before.items()):
            top = 42 + place * (_HIGH + _GAP)
            parts.append(_label(0, top + 18, f"rank {rank}"))
            parts += _boxes(_NAME, top, row, len(self.before))
            parts.append(_label(second - 38, top + 18, "→"))
            parts += _boxes(second, top, self.after.get(rank, []), len(self.before))
        return "".join([*parts, "</svg>"])


def _row(value: Any) -> list[Any]:
    if value is None:
        return []
    if hasattr(value, "tolist"):
        value = value.tolist()
    return list(value) if isinstance(value, Sequence) else [value]


def _words(row: Sequence[Any]) -> str:
    return " ".join(map(_number, row)) or "–"


def _number(value: Any) -> str:
    return f"{value:g}" if isinstance(value, (int, float)) else str(value)


def _label(x: int, y: int, words: str, weight: str = "normal") -> str:
    return f'<text x="{x}" y="{y}" fill="{TEXT}" font-weight="{weight}">{html.escape(words)}</text>'


def _boxes(x: int, y: int, row: Sequence[Any], ranks: int) -> list[str]:
    if not row:
        return [_label(x + 4, y + 18, "–")]
    found = []
    for place, value in enumerate(row):
        left = x + place * _CELL
        fill = _colour(value, ranks)
        found.append(
            f'<rect x="{left}" y="{y}" width="{_CELL - 4}" height="{_HIGH}" rx="3" '
            f'fill="{fill}" stroke="#888"/>'
            f'<text x="{left + (_CELL - 4) // 2}" y="{y + 18}" text-anchor="middle" fill="#000">'
            f"{html.escape(_number(value))}</text>"
        )
    return found


def _colour(value: Any, ranks: int) -> str:
    """Return the color of the rank r whose numbers are 10 (r + 1) to 10 (r + 1) + 9. Sums over all
    ranks are larger than those: they belong to no rank, and are white."""
    coloured = min(ranks, len(COLOURS))
    if isinstance(value, (int, float)) and 10 <= value < 10 * (coloured + 1):
        return COLOURS[int(value) // 10 - 1]
    return "#ffffff"
