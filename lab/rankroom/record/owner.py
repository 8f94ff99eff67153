"""Who writes a record, and whether that process still lives."""

from __future__ import annotations

import functools
import os
import socket
import time
from dataclasses import replace
from pathlib import Path

from rankroom.record.model import Owner, RunInfo

# A live writer on another host appends at least samples; shared file systems lag by seconds.
QUIET = 60.0
# Start times are computed from the boot time, which moves when the clock is set; to take a live
# run for lost is worse than to meet a pid again within a minute.
_DRIFT = 60.0


def this_process() -> Owner:
    """The running process as the owner of a record."""
    return replace(_owner(os.getpid()))  # a copy: changing it changes no other record


def no_process() -> Owner:
    """The owner of a record that its writer has let go: no process has the number 0."""
    return Owner(host=socket.gethostname(), pid=0)


@functools.lru_cache(maxsize=1)  # per pid: a fork must not claim to be its parent
def _owner(pid: int) -> Owner:
    return Owner(host=socket.gethostname(), pid=pid, born=_born(pid) or 0.0)


def is_live(run: RunInfo, events: Path, quiet: float = QUIET) -> bool:
    """Whether the process that writes `run` is there.

    On another host that cannot be asked; there a record untouched for `quiet` seconds is not live.
    """
    owner = run.owner
    if owner is not None and owner.host == socket.gethostname():
        if not owner.pid:
            return False
        born = _born(owner.pid)
        return born is not None and (not owner.born or abs(born - owner.born) < _DRIFT)
    try:
        return time.time() - events.stat().st_mtime < quiet
    except OSError:
        return False


def _born(pid: int) -> float | None:
    import psutil  # here, because `import rankroom` and the ranks must not pay for it

    try:
        process = psutil.Process(pid)
        if process.status() == psutil.STATUS_ZOMBIE:
            return None
        return float(process.create_time())
    except (psutil.AccessDenied, OSError):  # out of descriptors, say: it is not known to be gone
        return 0.0
    except (psutil.Error, ValueError, OverflowError):
        return None
