"""What a view draws of a run's metrics: the curves of some names in a range, in few buckets.

A curve with few points in the range is returned as it is. For other curves, the range is divided
into equal parts, the same for all ranks, so that curves can be overlaid; the points in a part
become one bucket, with the mean of the values, the lowest and the highest.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import accumulate
from typing import Literal, NamedTuple

import numpy as np

from rankroom.analysis.metrics.curves import Columns, Curve, Floats, Ints, grouped, word
from rankroom.analysis.metrics.metrics_of_run import (
    GrowingMetrics,
    Metrics,
    StoredMetrics,
    placed,
    plain,
    shortened,
)
from rankroom.record.model import Json, RunState

VERSION = 1
DEFAULT_POINTS, MAX_POINTS, MIN_POINTS = 600, 4000, 40  # of a curve: default, most, fewest
NAMES = 20  # returned if none is requested
MOST_BUCKETS = 100_000  # in one reply, approximately
CURVES_AT_ONCE = MOST_BUCKETS // MIN_POINTS  # source.ts requests no more than this either


@dataclass(frozen=True)
class CurveRequest:
    """A request: which curves, on which axis, in which range (steps, or µs since the start)."""

    axis: Literal["step", "time"] = "step"
    begin: float | None = None
    end: float | None = None
    points: int = DEFAULT_POINTS
    names: tuple[str, ...] = ()

    @property
    def is_part(self) -> bool:
        """True if only a part of the curves is requested."""
        return self.begin is not None or self.end is not None


def curve_reply(
    found: GrowingMetrics | StoredMetrics,
    asked: CurveRequest,
    state: RunState = "done",
    part: Metrics | None = None,
) -> Json:
    """Return the curves for JSON; those of `part` if it is given."""
    metrics = found.metrics
    drawn_from = part or metrics
    names = _chosen(metrics, asked)
    count = sum(len(metrics.curves[name]) for name in names)
    points = min(asked.points, max(MIN_POINTS, MOST_BUCKETS // max(1, count)))
    curves, over_ranks = [], []
    for name in names:
        drawn, together = _of_name(drawn_from.curves.get(name, {}), asked, points)
        curves += [{"name": name, **each} for each in drawn]
        over_ranks += [{"name": name, **each} for each in together]
    return {
        "version": VERSION,
        "state": state,
        "names": [_about(name, ranks) for name, ranks in metrics.curves.items()],
        "points": points,
        "curves": curves,
        "over_ranks": over_ranks,
        "notes": found.notes(state == "running"),
        "dropped": metrics.dropped,
        "exact": drawn_from.is_exact,
    }


def is_detailed_enough(metrics: Metrics, asked: CurveRequest) -> bool:
    """Whether the curves in memory have all the detail that the range can show."""
    if metrics.is_exact:
        return True
    for name in _chosen(metrics, asked):
        for curve in metrics.curves[name].values():
            if not curve.is_exact and len(_within(curve, asked)[0]) < asked.points:
                return not asked.is_part
    return True


def _chosen(metrics: Metrics, asked: CurveRequest) -> list[str]:
    """Return the requested names; if there are none, the first ones, fewer for many ranks."""
    if asked.names:
        return [name for name in asked.names if name in metrics.curves]
    names = list(metrics.curves)[:NAMES]
    curves = accumulate(len(metrics.curves[name]) for name in names)
    return names[: max(1, sum(count <= CURVES_AT_ONCE for count in curves))]


def _about(name: str, ranks: Mapping[int, Curve]) -> Json:
    extents = np.array([curve.extent for curve in ranks.values()])
    low, high = extents.min(0), extents.max(0)
    return {
        "name": name,
        "ranks": sorted(ranks),
        "points": max(curve.points for curve in ranks.values()),
        "steps": plain(np.array([low[0], high[1]])),
        "t": plain(np.array([low[2], high[3]])),
    }


def _within(curve: Curve, asked: CurveRequest) -> tuple[Floats, Columns]:
    """Return the positions of the curve's buckets in the range, in order, and the buckets."""
    columns = curve.columns()
    x = columns.step if asked.axis == "step" else columns.t
    if asked.is_part:
        low = -np.inf if asked.begin is None else asked.begin
        high = np.inf if asked.end is None else asked.end
        inside = (x >= low) & (x <= high)
        x, columns = x[inside], columns.part(inside)
    if (x[1:] < x[:-1]).any():
        order = np.argsort(x, kind="stable")
        x, columns = x[order], columns.part(order)
    return x, columns


def _of_name(
    ranks: Mapping[int, Curve], asked: CurveRequest, points: int
) -> tuple[list[Json], list[Json]]:
    """Return the curves of one metric, and their summary over ranks if there are several."""
    found = {rank: _within(ranks[rank], asked) for rank in sorted(ranks)}
    places = [x for x, _ in found.values() if len(x)]
    low = min((float(x[0]) for x in places), default=0.0)
    high = max((float(x[-1]) for x in places), default=0.0)
    low = low if asked.begin is None else asked.begin
    high = high if asked.end is None else asked.end
    edges = np.linspace(low, high, points + 1)[1:-1]
    drawn: list[Json] = []
    cells: list[_Cells] = []
    end = 1 if asked.axis == "step" else 3  # in a curve's extent
    for rank, (x, columns) in found.items():
        part = np.searchsorted(edges, x, "right")
        # A point that is not finite counts, too; in coarse buckets only finite ones are counted.
        count = np.maximum(columns.finite, 1)
        if len(x) > points:
            heads = np.flatnonzero(np.diff(part, prepend=-1))
            columns, count = grouped(columns, heads), np.add.reduceat(count, heads)
            sizes = np.diff(heads, append=len(x))
            means = placed(np.add.reduceat(x, heads) / sizes)
            # A single point stays where it was reported.
            x, part = np.where(sizes > 1, means, x[heads]), part[heads]
        bad = _bad(ranks[rank], asked)
        drawn.append({"rank": rank, **_drawn(x, columns, count), "bad": bad})
        if len(x) and (asked.end is None or asked.end >= ranks[rank].extent[end]):
            last = ranks[rank].last  # which the mean of the last bucket need not be
            drawn[-1]["last"] = last if math.isfinite(last) else word(last)
        cells.append(_Cells(x, columns.mean, count, part))
    return drawn, [_over_ranks(cells, asked.axis, points)] if len(cells) > 1 else []


def _drawn(x: Floats, columns: Columns, count: Floats) -> Json:
    mean = np.where(columns.finite > 1, shortened(columns.mean), columns.mean)
    return {
        "x": plain(x),
        "mean": plain(mean),
        "low": plain(columns.low),
        "high": plain(columns.high),
        "count": count.astype(np.int64).tolist(),
    }


def _bad(curve: Curve, asked: CurveRequest) -> list[Json]:
    out = []
    for step, t, value in curve.bad:
        x = step if asked.axis == "step" else t
        if (asked.begin is None or x >= asked.begin) and (asked.end is None or x <= asked.end):
            out.append({"x": plain(np.array([x]))[0], "value": value})
    return out


class _Cells(NamedTuple):
    """A rank's buckets: positions, means and numbers of points, and the parts they lie in."""

    x: Floats
    mean: Floats
    points: Floats
    part: Ints


def _over_ranks(cells: Sequence[_Cells], axis: str, points: int) -> Json:
    """Return mean, lowest and highest rank at each place, and the points per rank there.

    The places are the ranks' steps or times if these are few, else the parts of the range.
    """
    shared = np.unique(np.concatenate([each.x for each in cells]))
    is_shared = len(shared) <= points
    if is_shared:
        keys = [np.searchsorted(shared, each.x) for each in cells]
        length = len(shared)
    else:
        keys, length = [each.part for each in cells], points
    place, here, count = (np.zeros(length) for _ in range(3))
    for each, key in zip(cells, keys, strict=True):
        place += np.bincount(key, each.x, length)
        here += np.bincount(key, minlength=length)
        count += np.bincount(key, each.points, length)
    seen = here > 0
    x = shared if is_shared else placed(place[seen] / here[seen])
    total, known = np.zeros(len(x)), np.zeros(len(x))
    low, high = np.full(len(x), np.inf), np.full(len(x), -np.inf)
    for each, key in zip(cells, keys, strict=True):
        of_rank = _between(each, x) if axis == "time" else _in_places(each, key, length)[seen]
        has = np.isfinite(of_rank)
        with np.errstate(over="ignore"):
            total[has] += of_rank[has]
        known += has
        low[has] = np.minimum(low, of_rank)[has]
        high[has] = np.maximum(high, of_rank)[has]
    none = known == 0
    with np.errstate(invalid="ignore", divide="ignore"):
        mean = np.where(none, np.nan, np.clip(total / known, low, high))
    return {
        "x": plain(x),
        "mean": plain(shortened(mean)),
        "low": plain(shortened(np.where(none, np.nan, low))),
        "high": plain(shortened(np.where(none, np.nan, high))),
        "count": plain(shortened(count[seen] / np.maximum(known, 1))),
    }


def _in_places(cells: _Cells, key: Ints, length: int) -> Floats:
    """Return the mean of a rank's buckets at each place; NaN where it has none."""
    has = np.isfinite(cells.mean)
    with np.errstate(invalid="ignore", divide="ignore"):
        total = np.bincount(key, np.where(has, cells.mean, 0.0), length)
        return np.asarray(total / np.bincount(key, has, length))


def _between(cells: _Cells, x: Floats) -> Floats:
    """Interpolate a rank's curve at these places, as ranks never report at the same time.

    NaN outside the range of its first and last bucket, which extend half way to a next one.
    """
    if not len(cells.x):
        return np.full(len(x), np.nan)
    half = np.diff(cells.x) / 2 if len(cells.x) > 1 else np.zeros(1)
    outside = (x < cells.x[0] - half[0]) | (x > cells.x[-1] + half[-1])
    return np.where(outside, np.nan, np.interp(x, cells.x, cells.mean))
