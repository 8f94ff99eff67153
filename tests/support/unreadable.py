"""A file that cannot be read for a while, though it is still written."""

from __future__ import annotations

import contextlib
import threading
from collections.abc import Iterator
from pathlib import Path

LOOK_S = 0.001


@contextlib.contextmanager
def hidden(path: Path) -> Iterator[None]:
    """As on a network's file system that does not show it for a moment."""
    with _away(path, broken=False):
        yield


@contextlib.contextmanager
def broken(path: Path) -> Iterator[None]:
    """Reading fails with an error, as with a ticket that has expired; also for root."""
    with _away(path, broken=True):
        yield


@contextlib.contextmanager
def _away(path: Path, broken: bool) -> Iterator[None]:
    """What is written meanwhile is put aside as soon as it is there, and is back at the end."""
    aside = path.with_name("aside")
    over = threading.Event()

    def put_aside() -> None:
        with contextlib.suppress(OSError):  # there is none now, or its folder is gone
            if not path.is_symlink():
                path.replace(aside)
                if broken:
                    path.symlink_to(path)

    def keep_away() -> None:
        while not over.wait(LOOK_S):
            put_aside()

    put_aside()
    keeping = threading.Thread(target=keep_away)
    keeping.start()
    try:
        yield
    finally:
        over.set()
        keeping.join()
        with contextlib.suppress(OSError):
            if path.is_symlink():
                path.unlink()
            if aside.exists() and not path.exists():
                aside.replace(path)
