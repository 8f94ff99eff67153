"""A line of a process' own log, with the time of day."""

from __future__ import annotations

import contextlib
import io
import sys
import time


def escape_what_cannot_be_shown() -> None:
    """Have this process print characters that its locale lacks as escapes, where it would fail."""
    for stream in (sys.stdout, sys.stderr):
        if isinstance(stream, io.TextIOWrapper):
            stream.reconfigure(errors="backslashreplace")


def say(*words: object) -> None:
    """Print `words` to the log that standard output is, where its disk has room for them."""
    with contextlib.suppress(OSError):
        print(time.strftime("%H:%M:%S"), *words, flush=True)
