"""Locks on files, which the system takes away when the process ends that has them, and what to make
of file systems that have none.

Homes on NFS without its lock service, and on Lustre without `-o flock`, refuse every lock.
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

LOOK_S = 0.05
SHARED, EXCLUSIVE = fcntl.LOCK_SH, fcntl.LOCK_EX
Outcome = Literal["taken", "busy", "none"]


def take(descriptor: int, how: int, wait: bool = False) -> Outcome:
    """Lock an open file until it is closed. `busy` if others have it and we do not `wait`; `none`
    where the file system has no locks, or refuses this one: who has it cannot be told then."""
    try:
        fcntl.flock(descriptor, how if wait else how | fcntl.LOCK_NB)
    except OSError as error:
        return "busy" if error.errno in (errno.EWOULDBLOCK, errno.EACCES) else "none"
    return "taken"


def release(descriptor: int) -> None:
    """Give a lock back before the file is closed."""
    with contextlib.suppress(OSError):
        fcntl.flock(descriptor, fcntl.LOCK_UN)


@contextlib.asynccontextmanager
async def locked(
    file: Path, seconds: float = math.inf, tell: Callable[[], None] = lambda: None
) -> AsyncIterator[Callable[[], None]]:
    """Have the lock of `file`, which is made; go on without it where who has it is stopped or
    hangs for so many seconds, and where there can be no file, or the file system has no locks.

    Calls `tell` while it waits. What it gives ends the lock early.
    """
    with contextlib.ExitStack() as held:
        with contextlib.suppress(OSError):
            descriptor = os.open(file, os.O_RDWR | os.O_CREAT, 0o600)
            held.callback(os.close, descriptor)
            deadline = time.monotonic() + seconds
            while take(descriptor, EXCLUSIVE) == "busy" and time.monotonic() < deadline:
                tell()
                await asyncio.sleep(LOOK_S)
        yield held.close


@contextlib.contextmanager
def in_turn(file: Path, seconds: float) -> Iterator[None]:
    """The same for a moment, without an event loop; the file is gone afterwards."""
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
            release(descriptor)  # a process that forks meanwhile would keep it
            with contextlib.suppress(OSError):
                os.close(descriptor)


def _has(file: Path, descriptor: int) -> bool:
    """Whether an open file still has its name: who had its lock before has removed it."""
    try:
        return os.path.samestat(os.fstat(descriptor), file.stat())
    except OSError:
        return False
