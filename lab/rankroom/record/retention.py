"""How long records are kept: they are pruned by age and by total size, but never while live."""

from __future__ import annotations

import contextlib
import shutil
import time
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from os import stat_result
from pathlib import Path

from rankroom.record.blank import forsaken

DAY_S = 86_400.0
# Seconds: a record that was written to within this time is not pruned for size.
SIZE_GRACE_S = 3_600.0


@dataclass(frozen=True)
class Pruned:
    """A record that was removed, or would be in a dry run; with `error`, why it could not be."""

    id: str
    bytes: int
    why: str
    error: OSError | None = None


def prune(
    runs: Path,
    ids: Iterable[str],
    may_be_live: Callable[[str], bool],
    max_age: float,
    max_bytes: float,
    dry_run: bool = False,
    grace: float = SIZE_GRACE_S,
    by_itself: bool = False,
) -> list[Pruned]:
    """Prune the records `ids` in the folder `runs`; `ids` are ordered from oldest to newest.

    See Store.prune for the other parameters, the rules and the result.
    """
    now = time.time()
    kept = [(run_id, *weight) for run_id in ids if (weight := _weigh(runs / run_id))]
    total = sum(size for _, size, _ in kept)
    if by_itself and max_age and all(now - touched > max_age for _, _, touched in kept):
        max_age = float("inf")  # the clock may have jumped
    if by_itself and total > max_bytes:
        # No other record is removed in place of one that cannot be.
        total -= sum(size for run_id, size, _ in kept if may_be_live(run_id))
    gone = []
    for run_id, size, touched in kept:
        age = now - touched
        if age > max_age:
            why = "age"
        elif total > max_bytes and age >= grace:
            why = "size"
        else:
            continue
        if may_be_live(run_id):
            continue
        error = None if dry_run else _remove(runs / run_id)
        # Without a user who asked for it, do not remove all others because one cannot be removed.
        if error is None or by_itself:
            total -= size
        gone.append(Pruned(run_id, size, why, error))
    if not dry_run:
        for folder in forsaken(runs):
            shutil.rmtree(folder, ignore_errors=True)
    return gone


def _remove(folder: Path) -> OSError | None:
    """Remove a record; return the error if it is still there."""
    # rmtree does not follow links out of the folder, and refuses a link in the folder's place.
    shutil.rmtree(folder, ignore_errors=True)
    try:
        shutil.rmtree(folder)  # raises the reason if something is left
    except FileNotFoundError:
        return None
    except OSError as error:
        with contextlib.suppress(OSError):
            # NFS removes files that another process has open once that closes them.
            left = [path.name for path in folder.iterdir()]
            if left and all(name.startswith(".nfs") for name in left):
                return None
        return error
    return None


def _weigh(folder: Path) -> tuple[int, float] | None:
    """Return a record's size in bytes and when it was last written to; None if it is unreadable."""
    try:
        stats = list(_files(folder))
    except OSError:
        return None
    return sum(s.st_size for s in stats), max((s.st_mtime for s in stats), default=0.0)


def _files(folder: Path) -> Iterator[stat_result]:
    for path in folder.iterdir():
        with contextlib.suppress(FileNotFoundError):  # removed just now
            yield path.lstat()
