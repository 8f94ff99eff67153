"""What this rank waits for: noted by whoever calls a collective, read by the guard's thread."""

from __future__ import annotations

import threading
import time
from typing import Any

_main = threading.main_thread().ident


class Waiting:
    """While its block runs, the main thread of this rank waits in `what`.

    One object per call costs about half a microsecond; calls of other threads are not noted, as
    they do not keep the cell.
    """

    __slots__ = ("before", "since", "what")

    current: Waiting | None = None
    broken: str = ""  # the last collective that ended with an error

    def __init__(self, what: str) -> None:
        self.what = what

    def __enter__(self) -> Waiting:
        self.since = time.monotonic()
        self.before = Waiting.current
        if threading.get_ident() == _main:
            Waiting.current = self
        return self

    def __exit__(self, kind: Any, error: Any, trace: Any) -> None:
        if threading.get_ident() == _main:
            Waiting.current = self.before
            if kind is not None and issubclass(kind, Exception):
                Waiting.broken = self.what
