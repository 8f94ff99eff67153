"""What this rank waits for: recorded by the caller of a collective, read by the watchdog."""

from __future__ import annotations

import threading
from _thread import get_ident
from time import monotonic, time_ns
from typing import Any

from rankroom.reporting.spans import recorder

# A shorter wait is not recorded: the result was there already, as for five of six gradients.
MIN_RECORDED_WAIT_S = 1e-5

_main = threading.main_thread().ident


# Words in the error of a collective that was blocked when another rank shut its library down or
# closed a connection.
RELEASED_WORDS = (
    "Horovod has been shut down",
    "Connection closed by peer",
    "Connection reset by peer",
    "Broken pipe",
    "Collective ops is aborted",
    "NCCL communicator was aborted",
    "Default process group has not been initialized",  # NCCL's is gone once it was aborted
)


def looks_released(ename: str, evalue: str) -> bool:
    """Return whether this is the error of a collective that another rank's release has ended."""
    return ename in ("HorovodInternalError", "ReleasedError") or any(
        words in evalue for words in RELEASED_WORDS
    )


class Waiting:
    """While its block runs, the main thread of this rank waits in `what`.

    It costs about half a microsecond per call. Calls of other threads are not recorded, as they do
    not block the cell.
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
            if seconds >= MIN_RECORDED_WAIT_S:
                recorder.late((recorder.waited, self.what, time_ns(), seconds))
