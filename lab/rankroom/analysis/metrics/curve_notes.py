"""Notes on curves: values that are not finite, ranks that differ after they agreed.

A metric that is equal on all ranks step after step has been averaged, or is computed from equal
weights. If it then differs, the ranks have diverged, and a note says since which step. This is
concluded only if the metric was equal for some steps, and not constant.
"""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np
import numpy.typing as npt

from rankroom.analysis.metrics.curves import Columns, Curve, Floats
from rankroom.text.amounts import step_number
from rankroom.text.rank_ranges import name_ranks

MAX_NOTES = 20  # notes
MIN_EQUAL_STEPS = 3  # with two or more distinct values; then ranks are taken to agree on purpose
RELATIVE_TOLERANCE = 1e-6  # relative difference that the order of a sum may cause


def notes_of(curves: Mapping[str, Mapping[int, Curve]]) -> list[str]:
    """Return the notes on all curves of a run, by name and rank."""
    found: list[str] = []
    for name, ranks in curves.items():
        found += _bad(name, ranks)
        if len(ranks) > 1 and (words := _difference(name, ranks)):
            found.append(words)
        if len(found) >= MAX_NOTES:
            break
    return found[:MAX_NOTES]


def _bad(name: str, ranks: Mapping[int, Curve]) -> list[str]:
    """Return notes on the first value that is not finite; ranks with the same one share a note."""
    same: dict[tuple[str, float], list[int]] = {}
    for rank, curve in sorted(ranks.items()):
        if curve.bad:
            step, _, value = curve.bad[0]
            same.setdefault((value, step), []).append(rank)
    return [
        f"{name} is {value} on {name_ranks(on)} since step {step_number(step)}"
        if all(_stays(ranks[rank]) for rank in on)
        else f"{name} is {value} on {name_ranks(on)} at step {step_number(step)}"
        for (value, step), on in same.items()
    ]


def _stays(curve: Curve) -> bool:
    """Whether no value is finite after the first one that is not."""
    columns = curve.columns()
    return not columns.finite[columns.t > curve.bad[0][1]].any()


def _difference(name: str, ranks: Mapping[int, Curve]) -> str:
    """Return a note on ranks that differ after they agreed; empty if they do not."""
    numbers = sorted(ranks)
    steps, values = _together([ranks[rank].columns() for rank in numbers])
    if len(steps) <= MIN_EQUAL_STEPS:
        return ""
    low, high = values.min(0), values.max(0)
    is_equal = high - low <= RELATIVE_TOLERANCE * np.maximum(np.abs(high), np.abs(low))
    if is_equal.all():
        return ""
    first = int(np.argmin(is_equal))
    if first < MIN_EQUAL_STEPS or len(np.unique(values[0, :first])) < 2:
        return ""
    apart = values[:, first]
    base = int(np.argmax(np.abs(apart - np.median(apart))))
    other = int(np.argmax(np.abs(apart - apart[base])))
    one, two = sorted((base, other))
    again = int(is_equal[first:].sum())
    since = f"since step {step_number(steps[first])}"
    if again:
        differ = len(steps) - first - again
        since = f"at {differ} of {len(steps)} steps, first at step {step_number(steps[first])}"
    return (
        f"{name} differs between ranks {since}: "
        f"rank {numbers[one]} {apart[one]:.6g}, rank {numbers[two]} {apart[two]:.6g}"
    )


def _together(columns: list[Columns]) -> tuple[Floats, npt.NDArray[np.float64]]:
    """Return the steps, in order, with one finite value on every rank, and the values by rank."""
    cut = [_ordered(each) for each in columns]
    shared = cut[0][0]
    if not all(len(steps) == len(shared) and (steps == shared).all() for steps, _ in cut):
        for steps, _ in cut[1:]:
            shared = np.intersect1d(shared, steps, assume_unique=True)
        cut = [(shared, values[np.searchsorted(steps, shared)]) for steps, values in cut]
    return shared, np.stack([values for _, values in cut])


def _ordered(columns: Columns) -> tuple[Floats, Floats]:
    """Return the steps with exactly one finite value, in order, and these values."""
    finite = columns.finite > 0
    steps, values = columns.step[finite], columns.mean[finite]
    if len(steps) > 1 and not (steps[1:] > steps[:-1]).all():
        kept, first, count = np.unique(steps, return_index=True, return_counts=True)
        return kept[count == 1], values[first[count == 1]]
    return steps, values
