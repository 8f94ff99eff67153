"""An empty cell on two ranks: from the request to idle."""

from __future__ import annotations

from sides import RANKS, Px, alternate, both
from table import NotMeasured, Row

WARM_UP = 10


def measure(quick: bool) -> list[Row]:
    """Run single cells alternately; every Rankroom cell must have a finished record."""
    count = 15 if quick else 200
    with both() as (px, rankroom):
        for _ in range(WARM_UP):
            px.cell("pass")
            rankroom.cell("pass")
        before = _executed(px)
        peers, ours = alternate(count, lambda: px.cell("pass"), lambda: rankroom.cell("pass"))
        if [after - first for first, after in zip(before, _executed(px), strict=True)] != (
            [count] * RANKS
        ):
            raise NotMeasured("the engines did not execute every %%px cell")
        runs = rankroom.store.newest()
        if len(runs) != count + WARM_UP or {run.state for run in runs} != {"done"}:
            raise NotMeasured(f"{len(runs)} records, in states { {run.state for run in runs} }")
    return [
        Row(
            "empty cell, request to idle",
            "ms",
            [answer.seconds for answer in ours],
            [answer.seconds for answer in peers],
            ratio_at_most=0.7,
            detail={"iopub": [answer.size for answer in ours]},
        )
    ]


def _executed(px: Px) -> list[int]:
    return px.kernel.value("view.apply_sync(lambda: get_ipython().execution_count)")
