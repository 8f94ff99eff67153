"""Waking a thread from code that may be interrupted at any moment."""

from __future__ import annotations

import contextlib
import threading


class Wake:
    """Like threading.Event, but safe if an interrupt is raised in the middle of `set`: an Event
    takes a lock in Python code, which could stay locked, so that the next `set` blocks forever.
    Only one thread may wait."""

    def __init__(self) -> None:
        self._is_not_set = threading.Lock()
        self._is_not_set.acquire()

    def set(self) -> None:
        """Wake the waiting thread; if none is waiting, the next `wait` returns at once."""
        if self._is_not_set.locked():
            with contextlib.suppress(RuntimeError):  # another thread was faster
                self._is_not_set.release()

    def wait(self, timeout: float = -1) -> None:
        """Block until it is set, or for `timeout` seconds (default: no timeout); then clear it."""
        self._is_not_set.acquire(timeout=timeout)
