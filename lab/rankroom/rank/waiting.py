"""What this rank waits for: noted by the caller of a collective, read by the watchdog."""

from __future__ import annotations

import threading
from _thread import get_ident
from time import monotonic, time_ns
from typing import Any

from rankroom.reporting.spans import recorder

# Not a wait but a look: what was waited for was there already. Of six gradients, five are.
SHORTEST_S = 1e-5

_main = threading.main_thread().ident


# What a blocked collective says when another rank shut its library down or closed a connection.
RELEASED_WORDS = (
    "Horovod has been shut down",
    "Connection closed by peer",
    "Connection reset by peer",
    "Broken pipe",
    "Collective ops is aborted",
    "NCCL communicator was aborted",
    "Default process group has not been initialized",  # as NCCL's is gone once it was aborted
)


def looks_released(ename: str, evalue: str) -> bool:
    """True for the error of a collective that ended because another rank let go."""
    return ename in ("HorovodInternalError", "ReleasedError") or any(
        words in evalue for words in RELEASED_WORDS
    )


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
        self.since = monotonic()
        if get_ident() == _main:
            self.before, Waiting.current = Waiting.current, self
        return self

    def __exit__(self, kind: Any, error: Any, trace: Any) -> None:
        if get_ident() != _main:
            return
        Waiting.current = self.before
        if kind is not None and issubclass(kind, Exception):
            Waiting.broken = self.what
        if recorder.on and self.before is None:
            seconds = monotonic() - self.since
            if seconds >= SHORTEST_S:
                recorder.late((recorder.waited, self.what, time_ns(), seconds))
