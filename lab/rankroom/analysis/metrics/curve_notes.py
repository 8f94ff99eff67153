"""What is to be said of curves: values that are not finite, ranks that differ where they agreed.

A metric that is equal on all ranks step after step has been averaged, or is computed from weights
that are the same everywhere. If it then differs, the ranks have come apart, and a line says since
when. To guess that of a metric it must have been equal for some steps, and not always the same.
"""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np
import numpy.typing as npt

from rankroom.analysis.metrics.curves import Columns, Curve, Floats
from rankroom.text.amounts import step_number
from rankroom.text.rank_ranges import name_ranks

MOST = 20  # notes
EQUAL_STEPS = 3  # with at least two values: from so many on, ranks are taken to agree on purpose
NEAR = 1e-6  # of a value: so little may come of the order in which ranks add up


def notes_of(curves: Mapping[str, Mapping[int, Curve]]) -> list[str]:
    """The notes on all curves of a run, by name and rank."""
    found: list[str] = []
    for name, ranks in curves.items():
        found += _bad(name, ranks)
        if len(ranks) > 1 and (words := _difference(name, ranks)):
            found.append(words)
        if len(found) >= MOST:
            break
    return found[:MOST]


def _bad(name: str, ranks: Mapping[int, Curve]) -> list[str]:
    """Where the curve has its first value that is not finite, ranks with the same one together."""
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
    """Whether all values since the first that is not finite are none, either."""
    columns = curve.columns()
    return not columns.finite[columns.t > curve.bad[0][1]].any()


def _difference(name: str, ranks: Mapping[int, Curve]) -> str:
    """Since which step the ranks differ that had agreed; "" if they do not, or never agreed."""
    numbers = sorted(ranks)
    steps, values = _together([ranks[rank].columns() for rank in numbers])
    if len(steps) <= EQUAL_STEPS:
        return ""
    low, high = values.min(0), values.max(0)
    is_equal = high - low <= NEAR * np.maximum(np.abs(high), np.abs(low))
    if is_equal.all():
        return ""
    first = int(np.argmin(is_equal))
    if first < EQUAL_STEPS or len(np.unique(values[0, :first])) < 2:
        return ""
    apart = values[:, first]
    base = int(np.argmax(np.abs(apart - np.median(apart))))
    other = int(np.argmax(np.abs(apart - apart[base])))
    one, two = sorted((base, other))
    return (
        f"{name} differs between ranks since step {step_number(steps[first])}: "
        f"rank {numbers[one]} {apart[one]:.6g}, rank {numbers[two]} {apart[two]:.6g}"
    )


def _together(columns: list[Columns]) -> tuple[Floats, npt.NDArray[np.float64]]:
    """The steps, in order, at which all have one finite value, and these values by rank."""
    cut = [_ordered(each) for each in columns]
    shared = cut[0][0]
    if not all(len(steps) == len(shared) and (steps == shared).all() for steps, _ in cut):
        for steps, _ in cut[1:]:
            shared = np.intersect1d(shared, steps, assume_unique=True)
        cut = [(shared, values[np.searchsorted(steps, shared)]) for steps, values in cut]
    return shared, np.stack([values for _, values in cut])


def _ordered(columns: Columns) -> tuple[Floats, Floats]:
    """Steps that came once, in order, and their values; those not finite are left out."""
    finite = columns.finite > 0
    steps, values = columns.step[finite], columns.mean[finite]
    if len(steps) > 1 and not (steps[1:] > steps[:-1]).all():
        kept, first, count = np.unique(steps, return_index=True, return_counts=True)
        return kept[count == 1], values[first[count == 1]]
    return steps, values
