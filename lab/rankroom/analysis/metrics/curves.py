"""One metric of one rank in columns: points, and buckets of consecutive points."""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
import numpy.typing as npt

Floats = npt.NDArray[np.float64]
Ints = npt.NDArray[np.int64]
MAX_PENDING_ARRAYS = 64  # arrays of new points until they are joined; more if the first is long
MAX_NON_FINITE = 100  # values of a curve that are not finite, with their positions


Extent = tuple[float, float, float, float]  # the least and the largest step and time
NOWHERE: Extent = (np.inf, -np.inf, np.inf, -np.inf)


class Columns(NamedTuple):
    """Buckets in the order in which they were reported; a single point is a bucket, too.

    `step` and `t` (microseconds) are means; `mean`, `low` and `high` are of the finite values, NaN
    if there is none; `finite` counts these.
    """

    step: Floats
    t: Floats
    mean: Floats
    low: Floats
    high: Floats
    finite: Floats

    def part(self, which: npt.NDArray[np.bool_] | Ints) -> Columns:
        """Return the selected buckets."""
        return Columns(*(column[which] for column in self))


def of_points(step: Floats, t: Floats, value: Floats) -> Columns:
    """Return points as buckets; values that are not finite become NaN."""
    finite = np.isfinite(value)
    value = np.where(finite, value, np.nan)
    return Columns(step, t, value, value, value, finite.astype(np.float64))


def joined(parts: list[Columns]) -> Columns:
    """Concatenate the parts."""
    if len(parts) == 1:
        return parts[0]
    return Columns(*(np.concatenate(columns) for columns in zip(*parts, strict=True)))


def grouped(columns: Columns, heads: Ints) -> Columns:
    """Merge the buckets from each of `heads` up to the next into one."""
    if len(heads) == len(columns.step):
        return columns
    sizes = np.diff(heads, append=len(columns.step))
    finite = np.add.reduceat(columns.finite, heads)
    known = np.where(columns.finite > 0, columns.mean, 0.0)
    low, high = np.fmin.reduceat(columns.low, heads), np.fmax.reduceat(columns.high, heads)
    with np.errstate(invalid="ignore", divide="ignore", over="ignore"):
        # Divide first: the sum of large values may overflow.
        share = columns.finite / np.repeat(np.maximum(finite, 1), sizes)
        mean = np.clip(np.add.reduceat(known * share, heads), low, high)
        step = np.add.reduceat(columns.step, heads) / sizes
        t = np.add.reduceat(columns.t, heads) / sizes
    return Columns(step, t, mean, low, high, finite)


class Curve:
    """A metric of a rank, as far as it has been read."""

    def __init__(self) -> None:
        self.points = 0
        self.is_exact = True  # False once a bucket holds more than one point
        # The least and the largest step, and time.
        self.extent = NOWHERE
        self.last_step = self.last = np.nan
        self.bad: list[tuple[float, int, str]] = []  # step, time, value of non-finite ones
        self._kept: Columns | None = None
        self._new: list[tuple[Floats, Floats, Floats]] = []  # steps, times and values

    def add(self, step: Floats, t: Floats, value: Floats) -> None:
        """Add points; at least one."""
        self.points += len(step)
        self._new.append((step, t, value))
        # An event may have one point, and an array takes as much memory as dozens of them: join the
        # arrays. How often each point is copied does not depend on how many there are.
        if len(self._new) >= max(MAX_PENDING_ARRAYS, len(self._new[0][0]) // MAX_PENDING_ARRAYS):
            self._join()
        self.last_step, self.last = float(step[-1]), float(value[-1])
        self.extent = wider(self.extent, step, t)
        if len(self.bad) < MAX_NON_FINITE and not (finite := np.isfinite(value)).all():
            for at in np.flatnonzero(~finite)[: MAX_NON_FINITE - len(self.bad)].tolist():
                self.bad.append((float(step[at]), int(t[at]), word(float(value[at]))))

    def restore(
        self,
        columns: Columns,
        points: int,
        extent: Extent,
        bad: list[tuple[float, int, str]],
        last: tuple[float, float],
    ) -> None:
        """Restore a stored curve; `last` is the step and the value of its last point."""
        self._kept, self.points, self.extent, self.bad = columns, points, extent, bad
        self.last_step, self.last = last
        self.is_exact = len(columns.step) == points

    def columns(self) -> Columns:
        """Return all buckets."""
        if self._new:
            self._join()
            fresh = of_points(*self._new[0])
            self._kept = fresh if self._kept is None else joined([self._kept, fresh])
            self._new = []
        if self._kept is None:
            none = np.empty(0)
            self._kept = of_points(none, none, none)
        return self._kept

    def _join(self) -> None:
        """Join the new points into one array of each kind."""
        step, t, value = (np.concatenate(each) for each in zip(*self._new, strict=True))
        self._new = [(step, t, value)]

    def coarse(self, most: int) -> Columns:
        """Return the curve in at most `most` buckets, each merged from equally many."""
        columns = self.columns()
        length = len(columns.step)
        return grouped(columns, np.arange(0, length, max(1, -(-length // most))))

    def shrink(self, most: int) -> None:
        """Reduce the curve to at most `most` buckets."""
        self._kept = self.coarse(most)
        self.is_exact = len(self._kept.step) == self.points


def wider(extent: Extent, step: Floats, t: Floats) -> Extent:
    """Return the extent, widened to include these points; at least one."""
    least, most, first, last = extent
    return (
        min(least, float(step.min())),
        max(most, float(step.max())),
        min(first, float(t.min())),
        max(last, float(t.max())),
    )


def word(value: float) -> str:
    """Return how a record spells a value that is not finite."""
    if value != value:
        return "NaN"
    return "Infinity" if value > 0 else "-Infinity"
