"""A file's lock, which the system takes away when the process ends that has it."""

from __future__ import annotations

import asyncio
import contextlib
import fcntl
import math
import os
import time
from collections.abc import AsyncIterator
from pathlib import Path

LOOK_S = 0.05


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
        while not _took(descriptor) and time.monotonic() < deadline:
            await asyncio.sleep(LOOK_S)
        yield
    finally:
        os.close(descriptor)


def _took(descriptor: int) -> bool:
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        return False
    except OSError:
        return True  # a file system without locks: each does it for itself
    return True
