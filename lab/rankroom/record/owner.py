"""Who writes a record, and whether that process still lives."""

from __future__ import annotations

import functools
import os
import socket
import time
from dataclasses import replace
from pathlib import Path

from rankroom.record.model import Owner, RunInfo
from rankroom.system import pid_space

# A live writer elsewhere appends at least samples; shared file systems lag by seconds.
QUIET = 60.0


def this_process() -> Owner:
    """The running process as the owner of a record."""
    return replace(_owner(os.getpid()))  # a copy: changing it changes no other record


def no_process() -> Owner:
    """The owner of a record that its writer has let go: no process has the number 0."""
    return Owner(socket.gethostname(), 0, str(pid_space.here()))


@functools.lru_cache(maxsize=1)  # per pid: a fork must not claim to be its parent
def _owner(pid: int) -> Owner:
    return owner_of(pid)


def owner_of(pid: int) -> Owner:
    """A process of this machine as an owner."""
    from rankroom.system import process_tree  # here, because ranks must not pay for it

    space = str(pid_space.here())
    return Owner(socket.gethostname(), pid, space, process_tree.began(pid) or 0)


def is_here(owner: Owner) -> bool:
    """Whether this process can look the owner up."""
    if not owner.space:  # an earlier version's
        return owner.host == socket.gethostname()
    return pid_space.is_here(pid_space.PidSpace.read(owner.space))


def is_gone(owner: Owner) -> bool:
    """Whether the owner is known to be gone; False where that cannot be told from here."""
    if not owner.pid:
        return True
    if not is_here(owner):
        return pid_space.was_rebooted(pid_space.PidSpace.read(owner.space))
    from rankroom.system import process_tree

    return not process_tree.lives(owner.pid, owner.began)


def is_live(run: RunInfo, events: Path, quiet: float = QUIET) -> bool:
    """Whether the process that writes `run` is there.

    Elsewhere that cannot be asked; a record from there that is untouched for `quiet` seconds is
    not live.
    """
    owner = run.owner
    if owner is not None and (is_here(owner) or is_gone(owner)):
        return not is_gone(owner)
    try:
        return time.time() - events.stat().st_mtime < quiet
    except FileNotFoundError:
        return False
    except OSError:  # that cannot be told now
        return True
