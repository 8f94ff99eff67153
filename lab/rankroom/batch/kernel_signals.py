"""How the kernel of a batch job handles SIGTERM, which ends all of the job's processes."""

from __future__ import annotations

import os
import signal
from types import FrameType


def outlive_sigterm() -> None:
    """Make this process survive SIGTERM, but not the processes that it starts.

    Child processes inherit an ignored signal: they could not be ended any more, not even workers by
    their `multiprocessing.Pool`. A handler instead is reset when a program is executed.
    """
    signal.signal(signal.SIGTERM, _pass_by)
    signal.siginterrupt(signal.SIGTERM, False)
    os.register_at_fork(after_in_child=_end_again)


def _pass_by(number: int, frame: FrameType | None) -> None:
    pass


def _end_again() -> None:
    if signal.getsignal(signal.SIGTERM) is _pass_by:
        signal.signal(signal.SIGTERM, signal.SIG_DFL)
