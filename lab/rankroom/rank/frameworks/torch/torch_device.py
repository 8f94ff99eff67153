"""What this rank's GPU has yet to do: NCCL's collectives run there, when their calls have returned.

A rank whose peers do not join in stands somewhere else by then, in `item()` or `synchronize()`. So
two events on the GPU go with each collective: one is done when it could begin, the other when it is
over. They are asked for only if the main thread does not move on, and cost some microseconds.
"""

from __future__ import annotations

import contextlib
import sys
import threading
import time
from _thread import get_ident
from collections import deque
from typing import Any

# After these the driver refuses everything that this process asks of the GPU, in the same words.
_STICKY = (
    "device-side assert", "illegal memory access", "illegal instruction", "misaligned address",
    "unspecified launch failure", "uncorrectable", "CUDA_ERROR_ILLEGAL", "CUDA_ERROR_ASSERT",
    "CUDA_ERROR_LAUNCH_FAILED",
)  # fmt: skip
MOST = 256  # collectives that are followed at a time: which is the first counts
PRUNED = 32  # of them, when those that are over are let go

_main = threading.main_thread().ident


class Followed:
    """A collective that was given to the GPU."""

    __slots__ = ("after", "before", "could_begin", "stream", "what")

    def __init__(self, before: Any, after: Any) -> None:
        self.before, self.after = before, after
        self.what, self.stream = "", None
        self.could_begin = 0.0  # when that was seen, monotonic; 0 before


_followed: deque[Followed] = deque()
_spare: list[Followed] = []
_lock = threading.Lock()


def begin(tensor: Any) -> Followed | None:
    """A collective of `tensor` is about to be called; None unless it runs on a GPU."""
    while type(tensor) in (list, tuple) and tensor:
        tensor = tensor[0]
    if not getattr(tensor, "is_cuda", False) or get_ident() != _main or len(_followed) >= MOST:
        return None
    cuda: Any = sys.modules["torch"].cuda
    if cuda.is_current_stream_capturing():  # it will run when the graph does, any number of times
        return None
    each = _spare.pop() if _spare else Followed(cuda.Event(), cuda.Event())
    each.stream, each.could_begin = cuda.current_stream(tensor.device), 0.0
    each.before.record(each.stream)
    return each


def begin_again(each: Followed, device: Any) -> None:
    """What it sends is there only after what the GPU has been given by now."""
    each.stream = sys.modules["torch"].cuda.current_stream(device)
    each.before.record(each.stream)


def end(each: Followed, what: str) -> None:
    """It was called, or waited for if it was begun with `async_op=True`."""
    each.what = what
    each.after.record(each.stream)
    with _lock:
        _followed.append(each)
        if len(_followed) % PRUNED == 0:
            _prune()


def waits_in() -> tuple[str, float] | None:
    """The collective that is the first in which this rank's GPU waits for others, and for how many
    seconds that has been seen; None while it computes, or has nothing to do."""
    with _lock, contextlib.suppress(Exception):  # a GPU that has failed says so in the cell
        _prune()
        if _followed:
            first = _followed[0]
            if first.could_begin or first.before.query():
                now = time.monotonic()
                first.could_begin = first.could_begin or now
                return f"{first.what} on its GPU", now - first.could_begin
    return None


def is_busy(device: str) -> bool:
    """Whether a GPU has something to do, which may be a collective that others do not join."""
    torch: Any = sys.modules.get("torch")
    with contextlib.suppress(Exception):
        if torch is not None and torch.cuda.is_initialized():
            return not torch.cuda.default_stream(torch.device(device)).query()
    return False


def is_lost(error: str) -> bool:
    """Whether an error's words say that this process can use its GPU no more."""
    return any(sign in error for sign in _STICKY) and ("CUDA" in error or "HIP" in error)


def forget() -> None:
    """The cell is over, or its collectives have been aborted."""
    with _lock:
        _followed.clear()


def _prune() -> None:
    while _followed and _followed[0].after.query():
        _spare.append(_followed.popleft())


LOST = (
    "rank {rank} can use its GPU no more: whatever it tries there fails in the same words. "
    "`%cluster restart {rank}` starts it again. The line at fault may be an earlier one, as nobody "
    "waits for a GPU: with os.environ['CUDA_LAUNCH_BLOCKING'] = '1' in the first cell after that, "
    "the error comes where it is made"
)
