"""Lines of a process's own log, with the time of day."""

from __future__ import annotations

import contextlib
import io
import sys
import time


def escape_what_cannot_be_shown() -> None:
    """Print characters that the locale cannot encode as escapes, instead of failing."""
    for stream in (sys.stdout, sys.stderr):
        if isinstance(stream, io.TextIOWrapper):
            stream.reconfigure(errors="backslashreplace")


def say(*words: object) -> None:
    """Print the time and `words` to standard output, which is the log; ignore a full disk, and
    leave out what a signal handler says in the middle of another write (RuntimeError)."""
    with contextlib.suppress(OSError, RuntimeError):
        print(time.strftime("%H:%M:%S"), *words, flush=True)
