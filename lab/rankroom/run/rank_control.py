"""What helps stuck ranks, whichever client runs the cell: interrupt, release, stacks."""

from __future__ import annotations

import contextlib
import time
from collections.abc import Callable, Sequence
from pathlib import Path

from rankroom.errors import UsageError
from rankroom.run.engine_client import Link
from rankroom.run.release import RELEASE_S
from rankroom.run.stall import main_first

FREE_S = 3.0  # for ranks to come free after that
STACKS_S = 1.0  # for a rank to say where its threads are
STACK_SIGNAL = "SIGUSR2"


def interrupt(link: Link, size: int, doubt: Callable[[], None]) -> None:
    """KeyboardInterrupt on every rank; what is blocked in a collective is released a bit later.

    Returns when all ranks are free, or after a few seconds. `doubt()` is called before a release.
    """
    link.signal(range(size), "SIGINT")
    if not _free(link, RELEASE_S):
        with contextlib.suppress(UsageError):
            release(link, doubt)
        _free(link, FREE_S)


def release(link: Link, doubt: Callable[[], None]) -> list[str]:
    """Let go of blocked collectives on all ranks; the libraries that did.

    `doubt()` is called before. Raises UsageError when no rank runs anything.
    """
    busy = link.busy()
    if not busy:
        raise UsageError("no rank runs a cell: there is nothing to release")
    doubt()
    asked = link.request(link.ranks, do="release", run=next(iter(busy.values())))
    deadline = time.monotonic() + FREE_S
    let_go: set[str] = set()
    for future in asked:
        with contextlib.suppress(TimeoutError):
            answer = future.result(max(0.0, deadline - time.monotonic()))
            let_go |= set(answer["content"].get("released", []))
    return sorted(let_go)


def stacks(link: Link, ranks: Sequence[int], spool: Callable[[int], Path]) -> dict[int, str]:
    """Where the threads of each rank are, as text; of a rank stuck in C code too."""
    files = {rank: spool(rank) / "stacks" for rank in ranks}
    before = {rank: _size(file) for rank, file in files.items()}
    asked = dict(zip(ranks, link.request(ranks, do="stacks"), strict=True))
    deadline = time.monotonic() + STACKS_S
    found = {}
    for rank, future in asked.items():
        with contextlib.suppress(TimeoutError):
            answer = future.result(max(0.0, deadline - time.monotonic()))
            found[rank] = str(answer["content"]["stacks"])
    silent = [rank for rank in ranks if rank not in found]
    # Python does not run there, as C code holds its lock: the signal's handler needs none.
    link.signal(silent, STACK_SIGNAL)
    deadline = time.monotonic() + STACKS_S
    for rank in silent:
        while _size(files[rank]) == before[rank] and time.monotonic() < deadline:
            time.sleep(0.02)
        text = main_first(_rest(files[rank], before[rank]))
        found[rank] = text or "it does not answer at all"
    return dict(sorted(found.items()))


def _free(link: Link, seconds: float) -> bool:
    """Wait until no rank runs a cell; False if some still do after `seconds`."""
    deadline = time.monotonic() + seconds
    while link.busy(0.2):
        if time.monotonic() > deadline:
            return False
        time.sleep(0.05)
    return True


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
