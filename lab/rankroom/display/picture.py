"""The timeline of a run as a static SVG: one lane per rank, for where the view cannot run.

Each lane shows what the rank did and, in a thin strip below, what its collectives did. Where spans
are thinner than a pixel, columns are filled by their shares instead; the picture never exceeds the
size that it is given. No scripts, no classes; what has no color of its own has that of the text.
"""

from __future__ import annotations

import html
from collections.abc import Sequence
from typing import NamedTuple

import numpy as np

from rankroom.analysis.profile import Shares
from rankroom.analysis.profile.diagnosis import percent
from rankroom.analysis.profile.intervals import Intervals, length, union, without
from rankroom.display.page import weight
from rankroom.display.words import counted

# After Okabe and Ito's palette: safe for color-blind readers, visible on white and on black.
COLOURS = {
    "compute": "#8d99a3",
    "data": "#009e73",
    "waiting": "#e69f00",
    "exposed": "#0072b2",
}
WORDS = {
    "compute": "computing",
    "data": "data loading",
    "waiting": "waiting for others",
    "exposed": "communication",
}
WIDTH, LEFT, TOP = 720, 44, 22
_PLOT = WIDTH - LEFT - 6
_UNITS_PER_PIXEL = 2  # units in a pixel, so that all coordinates are whole numbers
_COLUMNS = (240, 180, 120, 90, 60, 45, 30, 20, 12, 8, 5, 3, 1)
_HEIGHT_LEVELS = 10  # steps of height in which a share is drawn
_TICKS = 6
_MAX_TALL_RANKS = 8  # up to this many ranks, the lanes are tall


class Strip(NamedTuple):
    """A part of a lane, in units of the grid; `layers` are stacked from the bottom."""

    top: int
    height: int
    layers: list[tuple[str, Intervals]]


def picture(shares: Shares, title: str, room: int) -> str:
    """Return the SVG, or "" if there is nothing to show or it does not fit into `room` bytes."""
    if not shares.wall or not shares.ranks:
        return ""
    strips, bottom = _strips(shares)
    frame = _frame(shares, title, bottom)
    room -= sum(map(weight, frame))
    extent = shares.end - shares.begin  # with what was not recorded in between
    scale = _PLOT * _UNITS_PER_PIXEL / extent
    found = sum(len(layer) for strip in strips for _, layer in strip.layers)
    widest = max(len(layer) for strip in strips for _, layer in strip.layers)
    if 7 * found < room and 3 * widest < _PLOT * _UNITS_PER_PIXEL:
        body = _bars(strips, shares.begin, scale)
        if weight(body) <= room:
            return frame[0] + body + frame[1]
    hope = float(_COLUMNS[0])
    for columns in _COLUMNS:
        if columns > hope:
            continue  # it would hardly fit either
        body = _stacks(strips, shares.begin, extent, columns)
        if weight(body) <= room:
            return frame[0] + body + frame[1]
        hope = 1.4 * columns * max(room, 0) / weight(body) if columns > _COLUMNS[-4] else hope
    return ""


def _strips(shares: Shares) -> tuple[list[Strip], int]:
    """Return the strips of all lanes from top to bottom, and where the last one ends."""
    count = len(shares.ranks)
    lane = 22 if count <= _MAX_TALL_RANKS else 12 if count <= 24 else 7
    gap = 5 if count <= _MAX_TALL_RANKS else 2
    thin = 5 if count <= _MAX_TALL_RANKS and shares.collectives else 0
    out = []
    top = TOP * _UNITS_PER_PIXEL
    for times in shares.ranks.values():
        parts = {name: getattr(times, name) for name in COLOURS}
        height = (lane - thin) * _UNITS_PER_PIXEL
        out.append(Strip(top, height, [(name, parts[name]) for name in reversed(COLOURS)]))
        if thin:
            layers = [
                ("exposed", times.transfers),
                ("waiting", without(times.waits, times.transfers)),
            ]
            out.append(
                Strip(top + height + _UNITS_PER_PIXEL, (thin - 1) * _UNITS_PER_PIXEL, layers)
            )
        top += (lane + gap) * _UNITS_PER_PIXEL
    return out, top


def _bars(strips: Sequence[Strip], begin: int, scale: float) -> str:
    """Draw every interval as a stroke; those less than a unit apart are merged."""
    pens: dict[tuple[str, int], list[str]] = {}
    for strip in strips:
        for name, layer in strip.layers:
            x, line = LEFT * _UNITS_PER_PIXEL, []
            for a, b in _on_grid(layer, begin, scale):
                a, b = a + LEFT * _UNITS_PER_PIXEL, b + LEFT * _UNITS_PER_PIXEL
                line.append(f"m{a - x} 0h{b - a}")
                x = b
            if line:
                middle = f"M{LEFT * _UNITS_PER_PIXEL} {strip.top + strip.height / 2:g}"
                pens.setdefault((name, strip.height), []).append(middle + "".join(line))
    return "".join(
        f"<path stroke={COLOURS[name]} stroke-width={height} d='{''.join(lines)}'></path>"
        for (name, height), lines in pens.items()
    )


def _on_grid(layer: Intervals, begin: int, scale: float) -> list[tuple[int, int]]:
    """Return the intervals in units, each at least one unit long."""
    units = ((layer - begin) * scale).astype(np.int64)
    begins = units[:, 0]
    return [(a, b) for a, b in union(begins, np.maximum(units[:, 1], begins + 1)).tolist()]


def _stacks(strips: Sequence[Strip], begin: int, extent: int, columns: int) -> str:
    """Draw columns that are filled by the shares of the layers, one above the other."""
    areas: dict[str, list[str]] = {}
    edges = [_PLOT * _UNITS_PER_PIXEL * i // columns for i in range(columns + 1)]
    for strip in strips:
        levels = [0.0] * columns
        for name, layer in strip.layers:
            shares = _per_column(layer, begin, extent, columns)
            levels = [low + share for low, share in zip(levels, shares, strict=True)]
            if any(shares):
                areas.setdefault(name, []).append(_outline(strip, levels, edges))
    # Each layer reaches down to the lane's bottom: upper ones are painted first, then covered.
    return "".join(
        f"<path fill={COLOURS[name]} stroke=none d='{''.join(areas[name])}'></path>"
        for name in COLOURS
        if name in areas
    )


def _per_column(layer: Intervals, begin: int, extent: int, columns: int) -> list[float]:
    """Return how much of each column the layer fills."""
    out = [0.0] * columns
    scale = columns / extent
    for a, b in layer.tolist():
        left, right = (a - begin) * scale, (b - begin) * scale
        first, last = int(left), min(int(right), columns - 1)
        if first >= last:
            out[min(first, columns - 1)] += right - left
            continue
        out[first] += first + 1 - left
        for column in range(first + 1, last):
            out[column] += 1.0
        out[last] += right - last
    return out


def _outline(strip: Strip, levels: list[float], edges: list[int]) -> str:
    """Return the outline of columns that are filled up to `levels`."""
    steps = min(strip.height // 2, _HEIGHT_LEVELS)
    out = [f"M{LEFT * _UNITS_PER_PIXEL} {strip.top + strip.height}"]
    at, height = 0, 0
    for column, level in enumerate(levels):
        fresh = round(round(min(level, 1.0) * steps) * strip.height / steps)
        if fresh != height:
            out.append(f"h{edges[column] - at}" if edges[column] > at else "")
            out.append(f"v{height - fresh}")
            at, height = edges[column], fresh
    return "".join(out) + f"h{edges[-1] - at}v{height}z"


def _frame(shares: Shares, title: str, bottom: int) -> tuple[str, str]:
    """Return what surrounds the lanes: words for screen readers, legend, labels, time axis."""
    height = bottom // _UNITS_PER_PIXEL + 16
    units = f"0 0 {WIDTH * _UNITS_PER_PIXEL} {height * _UNITS_PER_PIXEL}"
    head = [
        f"<svg role=img aria-label='{html.escape(title)}' viewBox='{units}'"
        f" style='width:100%;max-width:{WIDTH + 180}px;display:block' fill=none font-size=22"
        " font-family=sans-serif>",
        f"<title>{html.escape(title)}</title>",
    ]
    x = LEFT * _UNITS_PER_PIXEL
    for name, colour in COLOURS.items():
        if any(len(getattr(times, name)) for times in shares.ranks.values()):
            head.append(f"<path stroke={colour} stroke-width=16 d='M{x} 16h16'></path>")
            head.append(_text(x + 24, 24, WORDS[name]))
            x += 60 + 12 * len(WORDS[name])
    if len(shares.ranks) <= _MAX_TALL_RANKS and shares.collectives:
        head.append(_text(x, 24, "thin strip: collectives, overlapped or not"))
    pitch = (bottom / _UNITS_PER_PIXEL - TOP) / len(shares.ranks)
    head.append("<g fill=currentColor text-anchor=end>")
    for place, rank in enumerate(shares.ranks):
        if place % (1 if pitch > 11 else 4 if len(shares.ranks) < 48 else 8) == 0:
            y = round((TOP + pitch * place + min(14, pitch)) * _UNITS_PER_PIXEL)
            head.append(f"<text x={(LEFT - 6) * _UNITS_PER_PIXEL} y={y}>{rank}</text>")
    head.append("</g><g fill=currentColor text-anchor=middle>")
    extent = shares.end - shares.begin
    unit, every, name = _ticks(extent)
    lines = []
    for n in range(extent // every + 1):
        x = LEFT * _UNITS_PER_PIXEL + round(n * every * _PLOT * _UNITS_PER_PIXEL / extent)
        lines.append(f"M{x} {TOP * _UNITS_PER_PIXEL - 4}V{bottom + 4}")
        if x < (WIDTH - 40) * _UNITS_PER_PIXEL:
            label = f"{n * every / unit:g} {name}" if n else "0"
            head.append(f"<text x={x} y={bottom + 24}>{label}</text>")
    head.append(f"</g><path stroke=currentColor stroke-opacity=.3 d='{''.join(lines)}'></path>")
    return "".join(head), "</svg>"


def _text(x: int, y: int, words: str) -> str:
    return f"<text fill=currentColor x={x} y={y}>{words}</text>"


def _ticks(extent: int) -> tuple[int, int, str]:
    """Return the time axis's unit in microseconds, the distance of its ticks, and its name."""
    every = 1
    while extent / every > _TICKS:
        every *= 10
    for part in (5, 2):
        if every % part == 0 and extent * part / every <= _TICKS:
            every //= part
            break
    for unit, name in ((1_000_000, "s"), (1_000, "ms")):
        if every >= unit or (unit == 1_000_000 and extent >= unit):
            return unit, every, name
    return (1_000, every, "ms") if extent >= 1_000 else (1, every, "µs")


def in_words(shares: Shares) -> str:
    """Describe what the picture shows, for screen readers."""
    total = max(1, shares.wall * len(shares.ranks))
    parts = []
    for name, words in WORDS.items():
        time = sum(length(getattr(times, name)) for times in shares.ranks.values())
        parts.append(f"{words} {percent(time, total)}")
    return f"timeline of {counted(len(shares.ranks), 'rank')}: {', '.join(parts)}"
