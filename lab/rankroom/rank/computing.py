"""What computes for a rank while its main thread stands still: other threads, child processes.

A cell that compiles, or that has a framework's threads work on one long operation, is not stuck.
"""

from __future__ import annotations

import contextlib
import os
import time

SHARE = 0.1  # of one core: who uses more, computes; on a busy machine it does not get a whole one
MOST_CHILDREN = 500  # that are looked at
_TICKS = os.sysconf("SC_CLK_TCK")
# Of the fields in /proc/PID/stat that follow the name: processor time, with that of children that
# have ended, in ticks.
_USED = slice(11, 15)


class Computing:
    """Compares two looks at the processor time of this process and of those it has started."""

    def __init__(self) -> None:
        self._at = 0.0
        self._threads = 0.0
        self._children: dict[int, float] = {}

    def forget(self) -> None:
        """The main thread moves: nothing is to be compared with."""
        self._at = 0.0

    def look(self, main: float) -> str | None:
        """What has computed since the last look; `main` is the main thread's own time in seconds.

        None if nothing has, or this is the first look.
        """
        now = time.monotonic()
        threads = time.process_time() - main
        children = child_times()
        before, least = self._children, SHARE * (now - self._at)
        is_first, more = not self._at, threads - self._threads
        self._at, self._threads = now, threads
        self._children = {pid: used for pid, (used, _) in children.items()}
        if is_first:
            return None
        gained = {pid: used - before.get(pid, 0.0) for pid, (used, _) in children.items()}
        busiest = max(gained, key=lambda pid: gained[pid], default=None)
        if busiest is not None and sum(gained.values()) > least:
            return f"a child process ({children[busiest][1]}) computes"
        return "other threads compute" if more > least else None


def child_times() -> dict[int, tuple[float, str]]:
    """Seconds of processor time and the name of each process below this one, by its id.

    Empty where the system does not tell who a process's children are.
    """
    found: dict[int, tuple[float, str]] = {}
    parents = [os.getpid()]
    while parents and len(found) < MOST_CHILDREN:
        for child in _children(parents.pop()):
            with contextlib.suppress(OSError, ValueError, IndexError):  # it may end meanwhile
                before, _, after = _read(f"/proc/{child}/stat").rpartition(b") ")
                used = sum(map(int, after.split()[_USED])) / _TICKS
                found[child] = used, before.partition(b"(")[2].decode("utf-8", "replace")
                parents.append(child)
    return found


def _children(pid: int) -> list[int]:
    children: list[int] = []
    with contextlib.suppress(OSError):
        for thread in os.listdir(f"/proc/{pid}/task"):  # noqa: PTH208 - it may be often
            with contextlib.suppress(OSError, ValueError):
                children += map(int, _read(f"/proc/{pid}/task/{thread}/children").split())
    return children


def _read(path: str) -> bytes:
    with open(path, "rb") as file:  # noqa: PTH123
        return file.read()
