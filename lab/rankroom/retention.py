"""How long records stay: pruned by age and by their size in all, and never while live."""

from __future__ import annotations

import contextlib
import shutil
import time
from collections.abc import Iterator
from dataclasses import dataclass
from os import stat_result
from pathlib import Path

from rankroom import config
from rankroom.store import HALF_MADE, Store

DAY = 86_400.0
# What was written, or half made, within this time is left alone by pruning for size.
GRACE = 3_600.0


@dataclass(frozen=True)
class Pruned:
    """A record that was removed, or would be."""

    id: str
    bytes: int
    why: str


def prune(
    store: Store,
    max_age: float | None = None,
    max_bytes: int | None = None,
    dry_run: bool = False,
    grace: float = GRACE,
) -> list[Pruned]:
    """Remove records older than `max_age` seconds, then the oldest beyond `max_bytes` in all.

    Defaults come from the configuration. A live run is never removed, nor, for size, one written
    to within `grace` seconds. Returns what was removed, oldest first.
    """
    max_age = config.keep_days() * DAY if max_age is None else max_age
    max_bytes = config.keep_bytes() if max_bytes is None else max_bytes
    now = time.time()
    kept = [(run_id, *_weigh(store.runs / run_id)) for run_id in reversed(store.ids())]
    total = sum(size for _, size, _ in kept)
    gone = []
    for run_id, size, touched in kept:
        age = now - touched
        if age > max_age:
            why = "age"
        elif total > max_bytes and age >= grace:
            why = "size"
        else:
            continue
        # A run on another host may well be silent for a minute; not for a day.
        if store.may_be_live(run_id, quiet=DAY):
            continue
        if not dry_run:
            # rmtree does not follow links out of the folder, and refuses one in its place.
            shutil.rmtree(store.runs / run_id, ignore_errors=True)
        total -= size
        gone.append(Pruned(run_id, size, why))
    if not dry_run:
        _clear_half_made(store, now)
    return gone


def _clear_half_made(store: Store, now: float) -> None:
    for folder in store.runs.glob(f".*{HALF_MADE}"):
        with contextlib.suppress(OSError):
            if not folder.is_symlink() and now - folder.stat().st_mtime > GRACE:
                shutil.rmtree(folder, ignore_errors=True)


def _weigh(folder: Path) -> tuple[int, float]:
    """Bytes in the record, and when it was last written to."""
    stats = list(_files(folder))
    return sum(s.st_size for s in stats), max((s.st_mtime for s in stats), default=0.0)


def _files(folder: Path) -> Iterator[stat_result]:
    with contextlib.suppress(OSError):
        for path in folder.iterdir():
            with contextlib.suppress(OSError):
                yield path.lstat()
