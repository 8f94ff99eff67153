"""Start of two ranks, from the request until a first cell has run on both."""

from __future__ import annotations

from sides import RANKS, Px, Rankroom, Side, alternate, workplace
from table import NotMeasured, Row


def measure(quick: bool) -> list[Row]:
    """Repeatedly start ranks, run a cell and stop them, in kernels that have done their imports."""
    with workplace() as folder:
        px, rankroom = Px(folder / "px"), Rankroom(folder / "rankroom")
        try:
            alternate(1, lambda: _start(px), lambda: _start(rankroom))
            peers, ours = alternate(1 if quick else 5, lambda: _start(px), lambda: _start(rankroom))
        finally:
            px.close()
            rankroom.close()
    rows = []
    for place, what in enumerate(("start returns", "start and first cell")):
        rows.append(
            Row(
                f"{RANKS} ranks, {what}", "s",
                [each[place] for each in ours], [each[place] for each in peers],
                at_most=None if place else 2.0, ratio_at_most=0.8, peer="ipp.Cluster",
            )
        )  # fmt: skip
    return rows


def _start(side: Side) -> tuple[float, float]:
    """Return the seconds until the start returned, and until a first cell was done."""
    try:
        returned = side.start()
        first = side.cell("import os; where = os.getpid()").seconds
        pids = side.rank_pids()
        if len(set(pids)) != RANKS:
            raise NotMeasured(f"not {RANKS} ranks: {pids}")
    finally:
        side.stop()
    return returned, returned + first
