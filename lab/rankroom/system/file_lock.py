"""Locks on files, and what to make of file systems that have none.

Homes on NFS without its lock service, and on Lustre without `-o flock`, refuse every lock.
"""

from __future__ import annotations

import errno
import fcntl
from typing import Literal

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
    fcntl.flock(descriptor, fcntl.LOCK_UN)
