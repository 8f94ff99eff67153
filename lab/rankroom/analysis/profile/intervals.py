"""Sets of moments, as lists of intervals [begin, end): sorted, apart from each other, none empty.

Only `union` takes intervals in any order, overlapping and empty ones too.
"""

from __future__ import annotations

from collections.abc import Iterable

Interval = tuple[int, int]


def union(intervals: Iterable[Interval]) -> list[Interval]:
    """All moments that are in any of them."""
    out: list[Interval] = []
    begin = end = 0
    for a, b in sorted(intervals):
        if b <= a:
            continue
        if a > end or not end > begin:
            if end > begin:
                out.append((begin, end))
            begin, end = a, b
        elif b > end:
            end = b
    if end > begin:
        out.append((begin, end))
    return out


def both(left: list[Interval], right: list[Interval]) -> list[Interval]:
    """The moments that are in both."""
    if left and len(right) == 1 and right[0][0] <= left[0][0] and left[-1][1] <= right[0][1]:
        return left  # as is usual when they are cut to something long
    out: list[Interval] = []
    i = j = 0
    while i < len(left) and j < len(right):
        begin = max(left[i][0], right[j][0])
        end = min(left[i][1], right[j][1])
        if begin < end:
            out.append((begin, end))
        if left[i][1] < right[j][1]:
            i += 1
        else:
            j += 1
    return out


def without(left: list[Interval], right: list[Interval]) -> list[Interval]:
    """The moments of `left` that are not in `right`."""
    out: list[Interval] = []
    j = 0
    for begin, end in left:
        while j < len(right) and right[j][1] <= begin:
            j += 1
        k = j
        while k < len(right) and right[k][0] < end:
            if right[k][0] > begin:
                out.append((begin, right[k][0]))
            begin = max(begin, right[k][1])
            k += 1
        if begin < end:
            out.append((begin, end))
    return out


def length(intervals: Iterable[Interval]) -> int:
    """How long they are together."""
    return sum(end - begin for begin, end in intervals)


def covered(sets: Iterable[list[Interval]], times: int) -> list[Interval]:
    """The moments that are in at least `times` of the sets."""
    edges = sorted(edge for each in sets for begin, end in each for edge in ((begin, 1), (end, -1)))
    out: list[Interval] = []
    depth = begun = 0
    for at, step in edges:
        if step > 0 and depth == times - 1:
            begun = at
        elif step < 0 and depth == times and at > begun:
            out.append((begun, at))
        depth += step
    return out
