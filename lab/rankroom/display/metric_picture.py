"""A run's curves as a static SVG, its last values as a table: for where the view cannot run.

A panel for each of the first metrics: a line per rank if there are few; for more ranks, and to
compare runs, their mean between the lowest and the highest. No scripts; what has no color of its
own has that of the text.
"""

from __future__ import annotations

import html
import math
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple

from rankroom.display.digest import MAX_SEARCHED_BYTES
from rankroom.display.page import weight
from rankroom.display.text import one_line
from rankroom.display.words import counted
from rankroom.record.compared import has_metrics
from rankroom.record.model import ENDED_STATES, Json, RunInfo
from rankroom.record.store import Store
from rankroom.text.amounts import step_number

if TYPE_CHECKING:  # importing it loads NumPy, which most cells do not need
    from rankroom.analysis.metrics.metrics_of_run import GrowingMetrics
    from rankroom.display.compared_metrics import Other

MAX_METRIC_BYTES = 2 << 20  # bytes of events with metrics: some 80,000 points
PICTURE_BYTES = 9_000  # bytes of a picture
PANELS, MAX_SINGLE_RANKS, MAX_TABLE_ROWS = 6, 4, 12
FEWEST_POINTS = 16  # of a line
WIDTH, PANEL, GAP, LEFT, PLOT = 720, 340, 40, 52, 90
_TOP, _PITCH = 20, 144  # of a panel: where its plot begins, and the next row of panels
# Okabe and Ito's palette, safe for color-blind readers, on white and on black.
COLOURS = ("#0072b2", "#e69f00", "#009e73", "#cc79a7", "#d55e00")
# Dashes of the lines of the runs compared with.
_DASHES = ("6 3", "2 2", "8 2 2 2", "1 3")
_METRICS = b'{"kind":"metrics"'


class MetricSummary(NamedTuple):
    """What a run's output shows of its metrics."""

    table: str = ""
    picture: str = ""
    note: str = ""


def metric_summary(run: RunInfo, store: Store | None) -> MetricSummary:
    """Return the summary of a run's metrics, from its record if there is one."""
    if store is None or (run.state in ENDED_STATES and not has_metrics(store, run)):
        return MetricSummary()  # most cells
    events = store.paths(run.id).events
    lines = _lines(events)
    if lines is None and not has_metrics(store, run):
        return MetricSummary()
    if lines is None:
        return MetricSummary(note=LARGE)
    if not lines:
        return MetricSummary()
    from rankroom.analysis.metrics.metrics_of_run import GrowingMetrics
    from rankroom.display.compared_metrics import comparison

    found = GrowingMetrics(store.paths(run.id), run)
    found.metrics.take(lines)
    notes = found.notes()
    compared = comparison(store, run, list(found.metrics.curves), MAX_METRIC_BYTES)
    table = [last_values(found, compared.others), compared.legend]
    picture = metric_picture(found, PICTURE_BYTES, compared.others)
    return MetricSummary("\n".join(filter(None, table)), picture, "; ".join(notes[:3]))


def last_values(
    found: GrowingMetrics, others: Sequence[Other] = (), most: int = MAX_TABLE_ROWS
) -> str:
    """Return a table of the last values of each metric; "" if there are none."""
    from rankroom.analysis.profile.tables import Table
    from rankroom.display.compared_metrics import compared_values

    if others:
        return compared_values(found, others, most)
    metrics = found.metrics
    ranks = sorted({rank for _, rank, _ in metrics.all()})
    if not ranks:
        return ""
    few = len(ranks) <= MAX_SINGLE_RANKS
    head = ["metric", "step", *([f"rank {r}" for r in ranks] if few else ["mean", "from", "to"])]
    rows = []
    for name, curves in list(metrics.curves.items())[:most]:
        values = {rank: curve.last for rank, curve in curves.items()}
        step = max(curve.last_step for curve in curves.values())
        if few:
            cells = [f"{values[rank]:.5g}" if rank in values else "–" for rank in ranks]
        else:
            mean = sum(values.values()) / len(values)
            # NaN has no order.
            finite = [value for value in values.values() if math.isfinite(value)] or [math.nan]
            cells = [f"{each:.5g}" for each in (mean, min(finite), max(finite))]
        rows.append([one_line(name, 40), step_number(step), *cells])
    more = len(metrics.curves) - len(rows)
    return Table(head, rows).text() + (f"\n… and {counted(more, 'more metric')}" if more else "")


def metric_picture(found: GrowingMetrics, room: int, others: Sequence[Other] = ()) -> str:
    """Return the SVG, or "" if there is nothing to show or it does not fit into `room` bytes."""
    from rankroom.analysis.metrics.curve_answer import CurveRequest, curve_reply

    names = list(found.metrics.curves)
    for panels in range(min(PANELS, len(names)), 0, -1):
        shown = tuple(names[:panels])
        ranks = [len(found.metrics.curves[name]) for name in shown]
        few = 0 if others else MAX_SINGLE_RANKS
        lines = sum(len(others) + (count if count <= few else 3) for count in ranks)
        points = min(120, (room - 1_200 - 500 * panels) // (11 * lines))
        while points >= FEWEST_POINTS:
            asked = CurveRequest(points=points, names=shown)
            theirs = [(other.letter, curve_reply(other.found, asked)) for other in others]
            svg = _svg(curve_reply(found, asked), shown, theirs)
            if weight(svg) <= room:
                return svg
            points = points * 4 // 5
    return ""


def _svg(said: Json, names: Sequence[str], others: Sequence[tuple[str, Json]]) -> str:
    title = f"curves of {', '.join(one_line(name, 30) for name in names)}"
    height = _PITCH * -(-len(names) // 2)
    out = [
        f"<svg role=img aria-label='{html.escape(title)}' viewBox='0 0 {WIDTH} {height}'"
        f" style='width:100%;max-width:{WIDTH}px;display:block' fill=none font-size=11"
        f" font-family=sans-serif><title>{html.escape(title)}</title>"
    ]
    for place, name in enumerate(names):
        x, y = (PANEL + GAP) * (place % 2), _PITCH * (place // 2)
        panel = _compared(said, others, name) if others else _panel(said, name)
        out.append(f"<g transform='translate({x} {y})'>{panel}</g>")
    return "".join(out) + "</svg>"


def _panel(said: Json, name: str) -> str:
    curves = [curve for curve in said["curves"] if curve["name"] == name]
    band = [each for each in said["over_ranks"] if each["name"] == name]
    many = len(curves) > MAX_SINGLE_RANKS
    drawn = band if many else curves
    scale, out = _framed(drawn, name, [said])
    if scale is None:
        return "".join(out)
    if many:
        out.append(_band(band[0], scale))
    for place, curve in enumerate(drawn):
        path = "".join(_strokes(curve["x"], curve["mean"], scale))
        colour = COLOURS[place % len(COLOURS)]
        out.append(f"<path stroke={colour} stroke-width=1.5 d='{path}'></path>")
        words = f"mean of {len(curves)} ranks" if many else f"rank {curve['rank']}"
        x = PANEL - 44 * (len(drawn) - place - 1)
        out.append(f"<text fill={colour} x={x} y=12 text-anchor=end>{words}</text>")
    return "".join(out)


def _compared(said: Json, others: Sequence[tuple[str, Json]], name: str) -> str:
    """Draw this run's mean between its lowest and its highest rank, over the others' means."""
    every = [("this run", said), *others]
    drawn = [(words, curve) for words, each in every if (curve := _mean(each, name)) is not None]
    scale, out = _framed([curve for _, curve in drawn], name, [each for _, each in every])
    if scale is None:
        return "".join(out)
    if "rank" not in drawn[0][1]:
        out.append(_band(drawn[0][1], scale))
    right = PANEL
    for words, curve in reversed(drawn):
        place = [each for each, _ in every].index(words)
        dashes = f" stroke-dasharray='{_DASHES[place - 1]}'" if place else ""
        path = "".join(_strokes(curve["x"], curve["mean"], scale))
        sample = right - (12 if place else 50)
        stroke = f"<path stroke={COLOURS[place]} stroke-width=1.5{dashes}"
        out.append(f"{stroke} d='{path}'></path>{stroke} d='M{sample - 22} 8h20'></path>")
        out.append(_text(right, 12, words))
        right = sample - 30
    return "".join(out)


def _mean(said: Json, name: str) -> Json | None:
    """Return the mean over the ranks that have this metric, or the curve of the only one."""
    curves = (each for key in ("over_ranks", "curves") for each in said[key])
    return next((each for each in curves if each["name"] == name), None)


def _framed(
    drawn: Sequence[Json], name: str, said: Sequence[Json]
) -> tuple[_Scale | None, list[str]]:
    """Return the scale for these curves, None if there is no value; and title and axes."""
    values = [v for c in drawn for key in ("low", "high") for v in c[key] if v is not None]
    places = [x for c in drawn for x in c["x"]]
    out = [_text(LEFT, 12, one_line(name, 24), "start")]
    if not values:
        return None, [*out, _text(LEFT, _TOP + PLOT // 2, "no finite value", "start")]
    scale = _Scale(min(places), max(places), min(values), max(values))
    named = [each["steps"] for told in said for each in told["names"] if each["name"] == name]
    steps = min(first for first, _ in named), max(last for _, last in named)
    return scale, [*out, _axes(scale, steps)]


class _Scale(NamedTuple):
    left: float
    right: float
    low: float
    high: float

    def x(self, place: float) -> float:
        # Halved, as the difference of two large numbers may overflow.
        width = self.right / 2 - self.left / 2
        share = (place / 2 - self.left / 2) / width if width else 0.5
        return LEFT + (PANEL - LEFT) * share

    def y(self, value: float) -> float:
        height = self.high / 2 - self.low / 2
        share = (value / 2 - self.low / 2) / height if height else 0.5
        return _TOP + PLOT * (1 - share)


def _axes(scale: _Scale, steps: Sequence[float]) -> str:
    bottom = _TOP + PLOT
    lines = f"M{LEFT} {_TOP}H{PANEL}M{LEFT} {bottom}H{PANEL}"
    out = [f"<path stroke=currentColor stroke-opacity=.3 d='{lines}'></path>"]
    out.append(_text(LEFT - 4, _TOP + 6, f"{scale.high:.3g}"))
    if scale.low != scale.high:
        out.append(_text(LEFT - 4, bottom + 2, f"{scale.low:.3g}"))
    out.append(_text(LEFT, bottom + 14, step_number(steps[0]), "start"))
    out.append(_text(PANEL, bottom + 14, f"step {step_number(steps[1])}"))
    return "".join(out)


def _strokes(
    places: Sequence[float], values: Sequence[float | None], scale: _Scale
) -> Iterator[str]:
    """Yield a line through the values, broken where one is missing."""
    command = "M"
    for place, value in zip(places, values, strict=True):
        if value is None:
            command = "M"
            continue
        yield f"{command}{scale.x(place):.1f} {scale.y(value):.1f}"
        if command == "M":  # makes a point between two gaps visible
            yield "h.1"
        command = "L"


def _band(band: Json, scale: _Scale) -> str:
    there = [
        (scale.x(x), scale.y(low), scale.y(high))
        for x, low, high in zip(band["x"], band["low"], band["high"], strict=True)
        if low is not None
    ]
    edge = [f"{x:.1f} {high:.1f}" for x, _, high in there]
    edge += [f"{x:.1f} {low:.1f}" for x, low, _ in reversed(there)]
    return f"<path fill={COLOURS[0]} fill-opacity=.25 d='M{'L'.join(edge)}z'></path>"


def _text(x: float, y: float, words: str, anchor: str = "end") -> str:
    return (
        f"<text fill=currentColor x={x:g} y={y:g} text-anchor={anchor}>{html.escape(words)}</text>"
    )


def _lines(events: Path) -> list[bytes] | None:
    """Return the lines with metrics; None if the file or these lines are too large."""
    kept, size = [], 0
    try:
        if events.stat().st_size > MAX_SEARCHED_BYTES:
            return None
        with events.open("rb") as file:
            for line in file:
                if line.startswith(_METRICS):
                    kept.append(line)
                    size += len(line)
                    if size > MAX_METRIC_BYTES:
                        return None
    except OSError:
        return []
    return kept


LARGE = "its metrics are too large to plot here: open the run in JupyterLab, or use run.metrics()"
