"""Polling: waiting, for a limited time, for a condition that sends no notification."""

from __future__ import annotations

import time
from collections.abc import Callable


def poll_until(holds: Callable[[], bool], seconds: float, every: float = 0.05) -> bool:
    """Call `holds` every `every` seconds until it is true; return False after `seconds`."""
    deadline = time.monotonic() + seconds
    while not holds():
        if time.monotonic() >= deadline:
            return False
        time.sleep(every)
    return True


def skip_repeats(tell: Callable[..., None]) -> Callable[..., None]:
    """Wrap `tell` so that a call with the same arguments as the one before is skipped."""
    last: list[tuple[object, ...]] = []

    def told(*what: object) -> None:
        if last != [what]:
            last[:] = [what]
            tell(*what)

    return told
