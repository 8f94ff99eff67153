"""Find what computes for a rank while its main thread is idle: other threads, child processes.

A cell that compiles, or that waits for a framework's threads to finish one long operation, is not
stuck.
"""

from __future__ import annotations

import contextlib
import os
import time

# Of one core: using more counts as computing; a busy machine grants no whole core.
COMPUTING_CPU_SHARE = 0.1
MAX_PROCESSES = 500  # processes that are examined
_TICKS_PER_S = os.sysconf("SC_CLK_TCK")
# The fields with processor time in /proc/PID/stat, counted after the name: user and system time, of
# the process and of its children that have ended, in ticks.
_CPU_TIME_FIELDS = slice(11, 15)


class Computing:
    """Compares successive samples of the processor time of this process and its descendants."""

    def __init__(self) -> None:
        self._at = 0.0
        self._threads = 0.0
        self._children: dict[int, float] = {}

    def forget(self) -> None:
        """Discard the last sample, as the main thread has moved."""
        self._at = 0.0

    def look(self, main: float) -> str | None:
        """Return what has computed since the last sample, in words.

        `main` is the main thread's own processor time in seconds. None if nothing has computed, or
        if this is the first sample.
        """
        now = time.monotonic()
        threads = time.process_time() - main
        children = child_times()
        before, least = self._children, COMPUTING_CPU_SHARE * (now - self._at)
        is_first, more = not self._at, threads - self._threads
        self._at, self._threads = now, threads
        self._children = {pid: used for pid, (used, _) in children.items()}
        if is_first:
            return None
        gained = {pid: used - before.get(pid, 0.0) for pid, (used, _) in children.items()}
        busiest = max(gained, key=lambda pid: gained[pid], default=None)
        if busiest is not None and sum(gained.values()) > least:
            return f"a child process ({children[busiest][1]}) is computing"
        return "other threads are computing" if more > least else None


def child_times() -> dict[int, tuple[float, str]]:
    """Return seconds of processor time and the name of each descendant of this process, by id.

    Empty where the system does not list the children of a process.
    """
    found: dict[int, tuple[float, str]] = {}
    parents = [os.getpid()]
    while parents and len(found) < MAX_PROCESSES:
        for child in _children(parents.pop()):
            with contextlib.suppress(OSError, ValueError, IndexError):  # it may have ended
                before, _, after = _read(f"/proc/{child}/stat").rpartition(b") ")
                used = sum(map(int, after.split()[_CPU_TIME_FIELDS])) / _TICKS_PER_S
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
