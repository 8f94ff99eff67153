"""A line of a process' own log, with the time of day."""

from __future__ import annotations

import contextlib
import time


def say(*words: object) -> None:
    """Print `words` to the log that standard output is, where its disk has room for them."""
    with contextlib.suppress(OSError):
        print(time.strftime("%H:%M:%S"), *words, flush=True)
