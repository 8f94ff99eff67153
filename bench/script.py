"""A script under `rankroom run`, compared with the same under horovodrun and torchrun."""

from __future__ import annotations

import sys

from sides import workplace
from table import Row
from training import LOOPS, PAIRS, TRAIN, alternated, launched

CHOSEN = [loop for loop in LOOPS if loop.kind in ("horovod", "ddp") and loop.ms == 3][::2]


def measure(quick: bool) -> list[Row]:
    """Measure steps per second in short alternating segments, and processor time per step."""
    rows = []
    for loop in CHOSEN:
        print(f"  … {loop.what}", file=sys.stderr, flush=True)
        peer = "torchrun" if loop.kind == "ddp" else "horovodrun"
        with (
            workplace() as folder,
            launched("rankroom", folder / "rankroom", loop) as ours,
            launched(peer, folder / peer, loop) as theirs,
        ):
            found = alternated(5 if quick else PAIRS, loop, (ours, TRAIN), (theirs, TRAIN))
        rows += found.rows(f"script, {loop.what}", peer, 0.99, None)
    return rows
