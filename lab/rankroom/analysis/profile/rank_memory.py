"""The memory of each rank over a run, from samples taken about once a second."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import numpy.typing as npt

from rankroom.analysis.profile.rows import Loop, RankMemory
from rankroom.analysis.timeline import Timeline
from rankroom.text.amounts import size
from rankroom.text.rank_ranges import name_ranks

MIN_SAMPLES = 8  # samples of a rank needed to tell whether its memory rises
QUARTERS = 4
MIN_STEP_DIVISOR = 6  # from each quarter to the next, at least this part of the whole rise
MIN_RISE_BYTES = 32_000_000  # bytes that are worth mentioning, and at least
MIN_PEAK_DIVISOR = 20  # at least this part of the peak


def memory_rows(timeline: Timeline, window: tuple[int, int]) -> list[RankMemory]:
    """Return a row for each rank that was sampled; its rise is judged within `window`."""
    rows = []
    for rank, samples in timeline.samples.items():
        if not samples:
            continue
        at, memory, gpu = np.array(samples, np.int64).reshape(-1, 3).T
        inside = memory[(window[0] <= at) & (at < window[1])]
        peak_of_gpu = int(gpu.max())
        rows.append(
            RankMemory(
                rank, first=int(memory[0]), last=int(memory[-1]), peak=int(memory.max()),
                rise=_rise(inside), gpu_peak=peak_of_gpu if peak_of_gpu >= 0 else None,
            )
        )  # fmt: skip
    return rows


def _rise(memory: npt.NDArray[np.int64]) -> int | None:
    """Return how far memory rose, 0 if not in every quarter; None if there are too few samples."""
    if len(memory) < MIN_SAMPLES:
        return None
    middles = [int(np.median(part)) for part in np.array_split(memory, QUARTERS)]
    rise = middles[-1] - middles[0]
    return rise if rise > 0 and MIN_STEP_DIVISOR * min(np.diff(middles)) >= rise else 0


def memory_words(rows: Sequence[RankMemory], loop: Loop | None) -> str:
    """Return `peak memory 1.2 GB to 1.4 GB per rank`, and whose memory rises; "" without rows."""
    if not rows:
        return ""
    said = f"peak memory {_between([row.peak for row in rows])} per rank"
    on_gpus = [row.gpu_peak for row in rows if row.gpu_peak is not None]
    if on_gpus:
        said += f", {_between(on_gpus)} on its GPU"
    rising = [row for row in rows if rises(row)]
    if not rising:
        return said
    most = max(rising, key=lambda row: row.rise or 0)
    ranks = name_ranks([row.rank for row in rising])
    where = loop.title if loop else "the run"
    by = f"by {size(most.rise or 0)} on rank {most.rank}"
    return f"{said}; memory of {ranks} rises throughout {where}, {by}"


def rises(row: RankMemory) -> bool:
    """Whether the rise of a rank's memory is large enough to mention."""
    return (row.rise or 0) >= max(MIN_RISE_BYTES, row.peak // MIN_PEAK_DIVISOR)


def _between(sizes: Sequence[int]) -> str:
    """Return `1.2 GB`, or `1.2 GB to 1.4 GB`."""
    least, most = size(min(sizes)), size(max(sizes))
    return most if least == most else f"{least} to {most}"
