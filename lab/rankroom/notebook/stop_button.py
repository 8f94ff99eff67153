"""Defer the stop button while a cell is being sent, until there is a run to interrupt."""

from __future__ import annotations

import signal
import threading
from collections.abc import Iterator
from contextlib import contextmanager


@contextmanager
def deferred() -> Iterator[list[int]]:
    """Append interrupts inside the block to the yielded list, instead of raising KeyboardInterrupt.

    A cell that has reached some ranks must not be left running there without being followed.
    """
    pressed: list[int] = []
    if threading.current_thread() is not threading.main_thread():
        yield pressed  # only the main thread gets interrupts
        return
    before = signal.signal(signal.SIGINT, lambda number, frame: pressed.append(number))
    try:
        yield pressed
    finally:
        signal.signal(signal.SIGINT, before)
