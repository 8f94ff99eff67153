"""The process that owns (writes) a record, and whether it is still alive."""

from __future__ import annotations

import functools
import os
import socket
import time
from dataclasses import replace
from pathlib import Path

from rankroom.record.model import Owner, RunInfo
from rankroom.system import pid_space

# Seconds: a live writer on another machine appends at least samples; shared file systems lag by
# seconds.
LIVE_WRITE_TIMEOUT_S = 60.0


def this_process() -> Owner:
    """Return this process as the owner of a record."""
    return replace(_owner(os.getpid()))  # a copy, so that changing it affects no other record


def no_process() -> Owner:
    """Return the owner of a record that its writer has given up: no process has pid 0."""
    return Owner(socket.gethostname(), 0, str(pid_space.here()))


@functools.lru_cache(maxsize=1)  # keyed by pid: a fork must not claim to be its parent
def _owner(pid: int) -> Owner:
    return owner_of(pid)


def owner_of(pid: int) -> Owner:
    """Return the process `pid` of this machine as the owner of a record."""
    from rankroom.system import process_tree  # a local import, to keep its cost out of the ranks

    space = str(pid_space.here())
    return Owner(socket.gethostname(), pid, space, process_tree.began(pid) or 0)


def is_here(owner: Owner) -> bool:
    """Whether the owner's pid can be looked up from this process."""
    if not owner.space:  # written by an earlier version
        return owner.host == socket.gethostname()
    return pid_space.is_here(pid_space.PidSpace.read(owner.space))


def is_gone(owner: Owner) -> bool:
    """Whether the owner is known to have ended; False where this process cannot tell."""
    if not owner.pid:
        return True
    if not is_here(owner):
        return pid_space.was_rebooted(pid_space.PidSpace.read(owner.space))
    from rankroom.system import process_tree

    return not process_tree.lives(owner.pid, owner.began)


def is_live(run: RunInfo, events: Path, quiet: float = LIVE_WRITE_TIMEOUT_S) -> bool:
    """Whether the process that writes `run` is alive.

    An owner in another PID space cannot be looked up: its record counts as live unless `events` has
    not been written to for `quiet` seconds.
    """
    owner = run.owner
    if owner is not None and (is_here(owner) or is_gone(owner)):
        return not is_gone(owner)
    try:
        return time.time() - events.stat().st_mtime < quiet
    except FileNotFoundError:
        return False
    except OSError:  # it is not known at the moment
        return True
