"""File locks, which the system releases when the holder ends, and how to do without them.

NFS without its lock service, and Lustre without `-o flock`, refuse every lock in a home directory.
"""

from __future__ import annotations

import asyncio
import contextlib
import errno
import fcntl
import math
import os
import time
from collections.abc import AsyncIterator, Callable, Iterator
from pathlib import Path
from typing import Literal

from rankroom.system.polling import poll_until

POLL_INTERVAL_S = 0.05
SHARED, EXCLUSIVE = fcntl.LOCK_SH, fcntl.LOCK_EX
Outcome = Literal["taken", "busy", "none"]


def take(descriptor: int, how: int, wait: bool = False) -> Outcome:
    """Lock an open file until it is closed. Return `busy` if others hold the lock and we do not
    `wait`, `none` if the file system has no locks or refuses this one: then the holder is
    unknown."""
    try:
        fcntl.flock(descriptor, how if wait else how | fcntl.LOCK_NB)
    except OSError as error:
        return "busy" if error.errno in (errno.EWOULDBLOCK, errno.EACCES) else "none"
    return "taken"


def release(descriptor: int) -> None:
    """Release a lock before the file is closed."""
    with contextlib.suppress(OSError):
        fcntl.flock(descriptor, fcntl.LOCK_UN)


@contextlib.asynccontextmanager
async def locked(
    file: Path, seconds: float = math.inf, tell: Callable[[], None] = lambda: None
) -> AsyncIterator[Callable[[], None]]:
    """Hold the lock of `file`, which is created; yield a function that releases the lock early.

    Calls `tell` at each poll while another process holds the lock. Continues without the lock if
    its holder, stopped or stuck, keeps it for `seconds`, if the file cannot be created, and if the
    file system has no locks.
    """
    with contextlib.ExitStack() as held:
        with contextlib.suppress(OSError):
            descriptor = os.open(file, os.O_RDWR | os.O_CREAT, 0o600)
            held.callback(os.close, descriptor)
            deadline = time.monotonic() + seconds
            while take(descriptor, EXCLUSIVE) == "busy" and time.monotonic() < deadline:
                tell()
                await asyncio.sleep(POLL_INTERVAL_S)
        yield held.close


@contextlib.contextmanager
def locked_briefly(file: Path, seconds: float) -> Iterator[None]:
    """Hold the lock of `file` briefly, as `locked` does, without an event loop; then remove it."""
    held: list[int] = []

    def try_it() -> bool:
        descriptor = os.open(file, os.O_RDWR | os.O_CREAT, 0o600)
        if take(descriptor, EXCLUSIVE) != "busy" and _has(file, descriptor):
            held.append(descriptor)
        else:
            os.close(descriptor)
        return bool(held)

    with contextlib.suppress(OSError):
        poll_until(try_it, seconds, 0.01)
    try:
        yield
    finally:
        for descriptor in held:
            with contextlib.suppress(OSError):
                file.unlink()
            release(descriptor)  # a child forked meanwhile would still hold it
            with contextlib.suppress(OSError):
                os.close(descriptor)


def _has(file: Path, descriptor: int) -> bool:
    """Return whether an open file still has its name: the lock's last holder removes it."""
    try:
        return os.path.samestat(os.fstat(descriptor), file.stat())
    except OSError:
        return False
