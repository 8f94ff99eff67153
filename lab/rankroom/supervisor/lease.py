"""The lease of a cluster: how long it stays when no client holds it any more.

Every process that holds a cluster has a shared lock on a file in its folder; the system releases
the lock when the process ends, for whatever reason. Where the file system has no locks, it cannot
be known whether a client is left, and a cluster stays until it is stopped.
"""

from __future__ import annotations

import os
import time
from pathlib import Path

from rankroom.system import file_lock

LEASE_CHECK_INTERVAL_S = 30.0


def hold(folder: Path) -> int:
    """Take a shared lock on the cluster's lease; closing the returned descriptor releases it."""
    lease = os.open(folder / "lease", os.O_RDWR | os.O_CREAT, 0o600)
    # This only ever waits for the supervisor's check, which takes microseconds.
    file_lock.take(lease, file_lock.SHARED, wait=True)
    return lease


def held(file: Path) -> bool:
    """Return whether a process has a lock on `file` now, or may have one."""
    try:
        own = os.open(file, os.O_RDWR)
    except FileNotFoundError:
        return False
    except OSError:
        return True
    try:
        return file_lock.take(own, file_lock.EXCLUSIVE) != "taken"
    finally:
        os.close(own)


class Lease:
    """Expires when no client has held the cluster in `folder` for `seconds`."""

    def __init__(self, folder: Path, seconds: float) -> None:
        self._folder = folder
        self._seconds = seconds
        self.pause = min(LEASE_CHECK_INTERVAL_S, seconds / 4)  # between two checks
        self._used = self._looked = time.monotonic()

    def over(self, in_use: bool) -> bool:
        """Return whether the lease has expired: not held for so long, nor `in_use` by a run."""
        now = time.monotonic()
        if now < self._looked + self.pause:
            return False
        self._looked = now
        if in_use or held(self._folder / "lease"):
            self._used = now
        return now - self._used > self._seconds
