"""Where the threads of ranks are, also of ranks that are stuck in C code."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from concurrent.futures import wait
from pathlib import Path

from rankroom.supervisor.rank_connections import RankConnections
from rankroom.supervisor.stall import main_first
from rankroom.system.polling import poll_until

STACKS_S = 1.0  # for a rank to say where its threads are
SIGNAL_S = 3.0  # for one that does not, by a signal
STACK_SIGNAL = "SIGUSR2"


def stacks(
    connections: RankConnections, ranks: Sequence[int], spool: Callable[[int], Path]
) -> dict[int, str]:
    """Where the threads of each of these ranks are, as text. Takes four seconds at most."""
    files = {rank: spool(rank) / "stacks" for rank in ranks}
    before = {rank: _size(file) for rank, file in files.items()}
    present = [rank for rank in ranks if rank in connections.ranks]
    asked = dict(zip(present, connections.request(present, do="stacks"), strict=True))
    wait(asked.values(), STACKS_S)
    found = {
        rank: str(future.result().get("stacks", ""))
        for rank, future in asked.items()
        if future.done() and not future.exception()
    }
    silent = [rank for rank in ranks if rank not in found]
    # Python does not run there, as C code holds its lock: the signal's handler needs none.
    connections.signal(silent, STACK_SIGNAL)
    until = time.monotonic() + SIGNAL_S
    for rank in silent:
        poll_until(
            lambda rank=rank: _size(files[rank]) != before[rank],  # type: ignore[misc]
            max(0.0, until - time.monotonic()),
            0.02,
        )
        text = main_first(_rest(files[rank], before[rank]))
        found[rank] = text or "it does not answer at all"
    return dict(sorted(found.items()))


def _size(file: Path) -> int:
    try:
        return file.stat().st_size
    except OSError:
        return 0


def _rest(file: Path, begin: int) -> str:
    try:
        return file.read_bytes()[begin:].decode("utf-8", "replace")
    except OSError:
        return ""
