"""Sets of moments: rows [begin, end) in ascending order, disjoint, none empty."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import numpy.typing as npt

from rankroom.analysis.timeline import Column

Intervals = npt.NDArray[np.int64]  # of shape (count, 2)
NONE: Intervals = np.empty((0, 2), np.int64)


def union(begins: Column, ends: Column) -> Intervals:
    """Return all moments in any of [begin, end), which may overlap and be in any order."""
    real = begins < ends
    if not real.all():
        begins, ends = begins[real], ends[real]
    if not len(begins):
        return NONE
    if (begins[1:] < begins[:-1]).any():
        order = np.argsort(begins, kind="stable")
        begins, ends = begins[order], ends[order]
    reach = np.maximum.accumulate(ends)
    apart = np.flatnonzero(begins[1:] > reach[:-1]) + 1
    firsts = np.concatenate(([0], apart))
    lasts = np.concatenate((apart - 1, [len(begins) - 1]))
    return np.column_stack((begins[firsts], reach[lasts]))


def one(begin: int, end: int) -> Intervals:
    """Return a single interval, or none if it is empty."""
    return np.array([(begin, end)], np.int64) if begin < end else NONE


def joined(*sets: Intervals) -> Intervals:
    """Return the moments that are in any of the sets."""
    some = [each for each in sets if len(each)]
    if len(some) < 2:
        return some[0] if some else NONE
    rows = np.concatenate(some)
    return union(rows[:, 0], rows[:, 1])


def both(left: Intervals, right: Intervals) -> Intervals:
    """Return the moments that are in both sets."""
    if not len(left) or not len(right):
        return NONE
    if len(right) == 1 and right[0, 0] <= left[0, 0] and left[-1, 1] <= right[0, 1]:
        return left  # the usual case when cutting to a long interval
    return covered((left, right), 2)


def without(left: Intervals, right: Intervals) -> Intervals:
    """Return the moments of `left` that are not in `right`."""
    if not len(left) or not len(right):
        return left
    low, high = left[0, 0], left[-1, 1]
    edges = np.concatenate(([low], right.ravel().clip(low, high), [high])).reshape(-1, 2)
    return both(left, edges[edges[:, 0] < edges[:, 1]])


def covered(sets: Sequence[Intervals], times: int) -> Intervals:
    """Return the moments that are in at least `times` of the sets."""
    rows = [each for each in sets if len(each)]
    if len(rows) < times:
        return NONE
    # The lowest bit says whether an edge is a begin, so that one sort moves both together.
    edges = np.concatenate([each.ravel() for each in rows]) * 2
    edges[::2] += 1
    edges.sort(kind="stable")  # fast, as the pieces are sorted
    depth = ((edges & 1) * 2 - 1).cumsum()
    edges >>= 1
    # Of several edges at one moment, the last one has the depth from there on.
    final = np.append(edges[1:] != edges[:-1], True)
    edges, deep = edges[final], depth[final] >= times
    turns = np.flatnonzero(np.diff(deep, prepend=False))
    found: Intervals = edges[turns].reshape(-1, 2)
    return found


def length(intervals: Intervals) -> int:
    """Return the total length of the intervals."""
    return int((intervals[:, 1] - intervals[:, 0]).sum())
