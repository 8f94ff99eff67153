"""Stacks of the ranks' threads, also of ranks that are stuck in C code."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import wait
from pathlib import Path

from rankroom.supervisor.rank_connections import RankConnections
from rankroom.supervisor.stall import main_first
from rankroom.system.polling import poll_until

REPLY_TIMEOUT_S = 1.0  # timeout for a rank to send its stacks
SIGNAL_DUMP_TIMEOUT_S = 3.0  # timeout for one that does not to write them on a signal
DUMP_QUIET_S = 0.1  # without another line, after which no more are expected
STACK_SIGNAL = "SIGUSR2"


def stacks(
    connections: RankConnections, ranks: Sequence[int], spool: Callable[[int], Path]
) -> dict[int, str]:
    """Return the stacks of each rank's threads, as text. Takes four seconds at most."""
    files = {rank: spool(rank) / "stacks" for rank in ranks}
    before = {rank: _size(file) for rank, file in files.items()}
    present = [rank for rank in ranks if rank in connections.ranks]
    asked = dict(zip(present, connections.request(present, do="stacks"), strict=True))
    wait(asked.values(), REPLY_TIMEOUT_S)
    found = {
        rank: str(future.result().get("stacks", ""))
        for rank, future in asked.items()
        if future.done() and not future.exception()
    }
    cut_off = {rank: silence for rank, silence in connections.silent.items() if rank in ranks}
    # The signal ends a rank that is starting: it has no handler yet.
    there = set(connections.ranks) - cut_off.keys()
    silent = [rank for rank in ranks if rank in there and rank not in found]
    # Python does not run there, as C code holds the GIL: the signal's handler needs no GIL.
    connections.signal(silent, STACK_SIGNAL)
    _wait_until_written({rank: files[rank] for rank in silent}, before)
    for rank in silent:
        text = main_first(_rest(files[rank], before[rank]))
        found[rank] = text or "the rank does not respond, not even to a signal"
    words = {rank: f"the rank may be cut off: {silence}" for rank, silence in cut_off.items()}
    found = dict.fromkeys(ranks, "the rank is starting or down") | words | found
    return dict(sorted(found.items()))


def _wait_until_written(files: Mapping[int, Path], before: Mapping[int, int]) -> None:
    """Wait until all files have grown and stopped growing: stacks are written line by line, the
    main thread's last."""
    sizes, grown = dict(before), dict[int, float]()

    def are_written() -> bool:
        now = time.monotonic()
        for rank, file in files.items():
            if (size := _size(file)) != sizes[rank]:
                sizes[rank], grown[rank] = size, now
        return all(now - grown.get(rank, now) > DUMP_QUIET_S for rank in files)

    poll_until(are_written, SIGNAL_DUMP_TIMEOUT_S, 0.02)


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
