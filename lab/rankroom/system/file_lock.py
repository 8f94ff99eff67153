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
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Literal

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
async def locked(file: Path, seconds: float = math.inf) -> AsyncIterator[None]:
    """Have the lock of `file`, which is made; go on without it where who has it is stopped or
    hangs for so many seconds, and where there can be no file, or the file system has no locks."""
    try:
        descriptor = os.open(file, os.O_RDWR | os.O_CREAT, 0o600)
    except OSError:
        yield
        return
    try:
        deadline = time.monotonic() + seconds
        while take(descriptor, EXCLUSIVE) == "busy" and time.monotonic() < deadline:
            await asyncio.sleep(LOOK_S)
        yield
    finally:
        os.close(descriptor)
