"""What the kernel of a batch job does about the signal that ends all of the job's processes."""

from __future__ import annotations

import os
import signal
from types import FrameType


def outlive_sigterm() -> None:
    """Let SIGTERM pass this process by, and none that it starts.

    What is ignored stays so in all that a process starts: those could not be ended any more, not
    even by the `multiprocessing.Pool` whose workers they are. A handler is gone in programs that
    are started.
    """
    signal.signal(signal.SIGTERM, _pass_by)
    signal.siginterrupt(signal.SIGTERM, False)
    os.register_at_fork(after_in_child=_end_again)


def _pass_by(number: int, frame: FrameType | None) -> None:
    pass


def _end_again() -> None:
    if signal.getsignal(signal.SIGTERM) is _pass_by:
        signal.signal(signal.SIGTERM, signal.SIG_DFL)
