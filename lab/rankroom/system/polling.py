"""Polling: waiting, for a limited time, for what sends no signal."""

from __future__ import annotations

import time
from collections.abc import Callable


def poll_until(holds: Callable[[], bool], seconds: float, every: float = 0.05) -> bool:
    """Look until something holds; False if it does not within `seconds`."""
    deadline = time.monotonic() + seconds
    while not holds():
        if time.monotonic() >= deadline:
            return False
        time.sleep(every)
    return True


def changes(tell: Callable[..., None]) -> Callable[..., None]:
    """Tells only what was not told just before."""
    last: list[tuple[object, ...]] = []

    def told(*what: object) -> None:
        if last != [what]:
            last[:] = [what]
            tell(*what)

    return told
