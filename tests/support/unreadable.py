"""A file that cannot be read for a while, though it is still written."""

from __future__ import annotations

import contextlib
import threading
from collections.abc import Iterator
from pathlib import Path

LOOK_S = 0.001


@contextlib.contextmanager
def hidden(path: Path) -> Iterator[None]:
    """Hide a file, as a network file system may do for a moment."""
    with _away(path, broken=False):
        yield


@contextlib.contextmanager
def broken(path: Path) -> Iterator[None]:
    """Make reading a file fail, as with an expired ticket; also for root."""
    with _away(path, broken=True):
        yield


@contextlib.contextmanager
def _away(path: Path, broken: bool) -> Iterator[None]:
    """Move the file aside, and any written in its place; at the end, move the last one back."""
    aside = path.with_name("aside")
    over = threading.Event()

    def put_aside() -> None:
        with contextlib.suppress(OSError):  # neither the file nor its folder need exist
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
