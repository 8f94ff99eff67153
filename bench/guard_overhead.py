"""What a rank's guard thread costs a training loop: two clusters, one of them without it."""

from __future__ import annotations

import contextlib

from sides import RANKS, Rankroom, workplace
from table import Row
from training import Cells, alternated, speeds


class Bare(Rankroom):
    """Ranks without a guard thread."""

    starting = f"import os; os.environ['RANKROOM_GUARD'] = '0'\n{Rankroom.starting}"


def measure(quick: bool) -> list[Row]:
    """Short segments in turns, the other cluster stopped; the median of the pairs' ratios."""
    with workplace() as folder, contextlib.ExitStack() as stack:
        sides = []
        for kind in (Rankroom, Bare):
            sides.append(kind(folder / kind.__name__))
            stack.callback(sides[-1].close)
        ours, peers = alternated(quick, *[Cells(side) for side in sides])
    return [
        Row(
            f"training loop with the guard thread, {RANKS} ranks", "steps/s",
            speeds("with", ours), speeds("without", peers), ratio_at_least=0.99, peer="without",
        )
    ]  # fmt: skip
