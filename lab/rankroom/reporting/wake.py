"""Waking a thread from code that may be interrupted at any moment."""

from __future__ import annotations

import contextlib
import threading


class Wake:
    """As threading.Event, but an interrupt in the middle of `set` leaves no lock behind: an Event's
    is taken in Python, and whoever sets it next would wait for ever. For one thread that waits."""

    def __init__(self) -> None:
        self._is_not_set = threading.Lock()
        self._is_not_set.acquire()

    def set(self) -> None:
        """Have the thread that waits go on, or the next one that does."""
        if self._is_not_set.locked():
            with contextlib.suppress(RuntimeError):  # another thread was quicker
                self._is_not_set.release()

    def wait(self, timeout: float = -1) -> None:
        """Until it is set, or for so many seconds; then it is not set any more."""
        self._is_not_set.acquire(timeout=timeout)
