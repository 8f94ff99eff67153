"""A scaling as a static SVG, for pages made from a notebook; JupyterLab draws its own plot.

On the left the speed-up next to the perfect one, on the right where a rank's time went. No scripts;
its colors are readable on white and on black.
"""

from __future__ import annotations

import html
import math
from collections.abc import Sequence

from rankroom.analysis.profile.shares import PARTS
from rankroom.analysis.profile.tables import PART_TITLES as WORDS
from rankroom.analysis.scaling import COLOURS, Scaling, format_time
from rankroom.text.rank_ranges import count_ranks

WIDTH, HEIGHT = 640, 290
TOP, PLOT = 30, 190  # of a panel: where it begins, and its height
LEFT, RIGHT, WIDE = 50, 350, 220  # where the panels begin, and their width
_INK, _GRID = "#777777", "#77777744"


def picture(scaling: Scaling) -> str:
    """Return the SVG; "" without a run."""
    if not scaling.sizes:
        return ""
    title = "weak scaling" if scaling.weak else "strong scaling"
    return (
        f'<svg xmlns="http://www.w3.org/2000/svg" role="img" aria-label="{title}" '
        f'viewBox="0 0 {WIDTH} {HEIGHT}" style="width:100%;max-width:{WIDTH}px" '
        f'font-family="sans-serif" font-size="11" fill="{_INK}">'
        f"<title>{title}</title>{_speed(scaling, title)}{_causes(scaling)}</svg>"
    )


def _speed(scaling: Scaling, title: str) -> str:
    sizes = sorted(scaling.sizes, key=lambda size: size.ranks)
    ranks = [size.ranks for size in sizes]
    reached = [_drawn(scaling.speed_up(size)) for size in sizes]
    spread = [
        tuple(_drawn(scaling.speed_up(size, pick(size.times))) for pick in (max, min))
        for size in sizes
    ]
    top = max([*ranks, *(high for _, high in spread)])

    def x(count: float) -> float:
        return LEFT + WIDE * count / max(ranks)

    def y(speed: float) -> float:
        return TOP + PLOT * (1 - speed / top)

    blue = COLOURS["exposed"]
    line = " ".join(f"{x(n):.1f},{y(up):.1f}" for n, up in zip(ranks, reached, strict=True))
    parts = [_axis(LEFT, top, f"{title}: speed-up (dashed: perfect)", "×")]
    for count, (low, high) in zip(ranks, spread, strict=True):
        parts.append(_stroke(x(count), y(low), x(count), y(high), blue))
        parts.append(_text(x(count), TOP + PLOT + 16, str(count), "middle"))
    first, last = ranks[0], ranks[-1]
    parts.append(
        f'<path d="M{x(first):.1f} {y(first):.1f}L{x(last):.1f} {y(last):.1f}" '
        f'stroke="{_INK}" stroke-dasharray="4 4"/>'
    )
    parts.append(f'<polyline points="{line}" fill="none" stroke="{blue}" stroke-width="2"/>')
    parts += [
        f'<circle cx="{x(n):.1f}" cy="{y(up):.1f}" r="3.5" fill="{blue}"/>'
        for n, up in zip(ranks, reached, strict=True)
    ]
    return "".join(parts)


def _drawn(speed: float) -> float:
    """Return the speed-up, 0 for a cell that took no time."""
    return 0.0 if math.isnan(speed) else speed


def _causes(scaling: Scaling) -> str:
    wholes = [sum(size.causes.values()) for size in scaling.sizes]
    top = max(wholes) or 1
    pitch = WIDE / len(wholes)
    parts = [_axis(RIGHT, top / 1e6, "a rank's time", "s")]
    for place, size in enumerate(scaling.sizes):
        left, base = RIGHT + pitch * (place + 0.2), float(TOP + PLOT)
        for part in PARTS:
            height = PLOT * size.causes[part] / top
            base -= height
            time = format_time(size.causes[part])
            what = html.escape(f"{WORDS[part]} on {count_ranks(size.ranks)}: {time}")
            parts.append(
                f'<rect x="{left:.1f}" y="{base:.1f}" width="{0.6 * pitch:.1f}" '
                f'height="{height:.1f}" fill="{COLOURS[part]}"><title>{what}</title></rect>'
            )
        parts.append(_text(left + 0.3 * pitch, TOP + PLOT + 16, str(size.ranks), "middle"))
    return "".join([*parts, *_legend([part for part in PARTS if _is_seen(scaling, part)])])


def _is_seen(scaling: Scaling, part: str) -> bool:
    return any(size.causes[part] for size in scaling.sizes)


def _legend(parts: Sequence[str]) -> list[str]:
    out, x = [], float(LEFT)
    for part in parts:
        out.append(f'<rect x="{x}" y="{HEIGHT - 18}" width="10" height="10" ')
        out.append(f'fill="{COLOURS[part]}"/>' + _text(x + 14, HEIGHT - 9, WORDS[part]))
        x += 28 + 6.2 * len(WORDS[part])
    return out


def _axis(left: int, top: float, title: str, unit: str) -> str:
    """Return a panel's title, its frame, and the values at its upper edge and its middle."""
    out = [_text(left, TOP - 12, title), _text(left + WIDE, TOP + PLOT + 32, "ranks", "end")]
    for share in (0.0, 0.5, 1.0):
        y = TOP + PLOT * (1 - share)
        out.append(_stroke(left, y, left + WIDE, y, _GRID))
        out.append(_text(left - 6, y + 4, f"{top * share:.3g} {unit}" if share else "0", "end"))
    return "".join(out)


def _stroke(x1: float, y1: float, x2: float, y2: float, colour: str) -> str:
    return f'<path d="M{x1:.1f} {y1:.1f}L{x2:.1f} {y2:.1f}" stroke="{colour}"/>'


def _text(x: float, y: float, words: str, anchor: str = "start") -> str:
    return f'<text x="{x:.1f}" y="{y:.1f}" text-anchor="{anchor}">{html.escape(words)}</text>'
