"""The stop button, pressed while a cell is being sent: kept until there is a run to interrupt."""

from __future__ import annotations

import signal
import threading
from collections.abc import Iterator
from contextlib import contextmanager


@contextmanager
def deferred() -> Iterator[list[int]]:
    """Interrupts that come inside are put into the list instead of breaking off what is under way.

    A cell that has reached some ranks must not be left running there without being followed.
    """
    pressed: list[int] = []
    if threading.current_thread() is not threading.main_thread():
        yield pressed  # where no interrupt comes
        return
    before = signal.signal(signal.SIGINT, lambda number, frame: pressed.append(number))
    try:
        yield pressed
    finally:
        signal.signal(signal.SIGINT, before)
