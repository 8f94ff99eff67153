"""NCCL's collectives, which run on this rank's GPU when their calls have returned.

Two events on the GPU go with each: one is done when the GPU has come to it, the other when it is
over. From them come its span, in the host's time, and what a rank waits in whose peers do not join:
its main thread stands somewhere else by then, in `item()` or `synchronize()`. Nothing waits for the
GPU here but the end of a cell, and that not for long.
"""

from __future__ import annotations

import contextlib
import sys
import threading
import time
from _thread import get_ident
from collections import deque
from typing import Any

from rankroom.reporting.spans import recorder

# After these the driver refuses everything that this process asks of the GPU, in the same words.
_STICKY = (
    "device-side assert", "illegal memory access", "illegal instruction", "misaligned address",
    "unspecified launch failure", "uncorrectable", "CUDA_ERROR_ILLEGAL", "CUDA_ERROR_ASSERT",
    "CUDA_ERROR_LAUNCH_FAILED",
)  # fmt: skip
MOST = 256  # collectives that are followed at a time: which is the first counts
PRUNED = 32  # of them, when those that are over are let go
LAST_S = 0.5  # at the end of a cell, for those that go on
# Between two looks at the GPU's clock, of which only the time between events is told, as a float of
# 32 bits: exact to a microsecond for so long.
CLOCK_S = 10.0

_main = threading.main_thread().ident


class Followed:
    """A collective that was given to the GPU."""

    __slots__ = ("after", "before", "clock", "could_begin", "number", "stream", "what")

    def __init__(self, before: Any, after: Any) -> None:
        self.before, self.after = before, after
        self.what, self.number = "", -1
        self.clock: Clock | None = None
        self.stream: Any = None
        self.could_begin = 0.0  # when that was seen, monotonic; 0 before


class Clock:
    """A moment of the GPU whose time on the host is known."""

    def __init__(self, cuda: Any, device: Any) -> None:
        self.event = cuda.Event(enable_timing=True)
        # On a stream of its own, which has nothing else to do.
        self.event.record(cuda.Stream(device))
        self.event.synchronize()
        self.us = time.time_ns() // 1000
        self.until = time.monotonic() + CLOCK_S


_followed: deque[Followed] = deque()
_spare: list[Followed] = []
_clocks: dict[Any, Clock] = {}
_lock = threading.RLock()
_failed = False  # as something here did; nothing is followed any more


def device_of(tensor: Any) -> Any:
    """The GPU that a tensor is on, or the first of a list of them; None for the CPU's."""
    while type(tensor) in (list, tuple) and tensor:
        tensor = tensor[0]
    return tensor.device if getattr(tensor, "is_cuda", False) else None


def begin(device: Any) -> Followed | None:
    """The GPU is about to be given a collective; None where that is not followed."""
    if device is None or _failed or get_ident() != _main or len(_followed) >= MOST:
        return None
    try:
        cuda: Any = sys.modules["torch"].cuda
        if cuda.is_current_stream_capturing():  # it runs when the graph does, any number of times
            return None
        clock = _clocks.get(device)
        if clock is None or clock.until < time.monotonic():
            clock = _clocks[device] = Clock(cuda, device)
        with _lock:
            each = _spare.pop() if _spare else None
        if each is None:
            each = Followed(cuda.Event(enable_timing=True), cuda.Event(enable_timing=True))
        each.clock, each.could_begin = clock, 0.0
        each.stream = cuda.current_stream(device)
        each.before.record(each.stream)
    except Exception as error:
        _give_up(error)
        return None
    return each


def begin_again(each: Followed, device: Any) -> None:
    """What it sends is there only after what the GPU has been given by now."""
    try:
        each.stream = sys.modules["torch"].cuda.current_stream(device)
        each.before.record(each.stream)
    except Exception as error:
        _give_up(error)


def end(each: Followed, what: str, number: int) -> None:
    """It was given to the GPU; `number` is that of its span's name."""
    each.what, each.number = what, number
    try:
        each.after.record(each.stream)
        with _lock:
            _followed.append(each)
            if len(_followed) % PRUNED == 0:
                _prune()
    except Exception as error:
        _give_up(error)


def drop(each: Followed) -> None:
    """It was not given to the GPU, or is waited for later."""
    with _lock:
        _spare.append(each)


def finish() -> None:
    """The cell is over: what it gave to the GPU is seen to end, unless that takes long."""
    until = time.monotonic() + LAST_S
    try:
        with _lock:
            _prune()
        while _followed and time.monotonic() < until:
            time.sleep(0.001)
            with _lock:
                _prune()
    except Exception as error:
        _give_up(error)
    forget()


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
        each = _followed.popleft()
        _spare.append(each)
        if each.number >= 0 and each.clock is not None:
            start = each.clock.us + 1000 * each.clock.event.elapsed_time(each.before)
            took = 1000 * each.before.elapsed_time(each.after)
            recorder.add("collective", each.number, int(start), int(took))


def _give_up(error: Exception) -> None:
    """The cell goes on as it would without us. A GPU that is lost says so in the cell."""
    global _failed
    forget()
    if not is_lost(str(error)):
        _failed = True
        recorder.note(NOT_FOLLOWED.format(error=f"{type(error).__name__}: {error}"))


NOT_FOLLOWED = "collectives on the GPU are not in the timeline any more: {error}"
LOST = (
    "rank {rank} can use its GPU no more: whatever it tries there fails in the same words. "
    "`%cluster restart {rank}` starts it again. The line at fault may be an earlier one, as calls "
    "do not wait for a GPU: with os.environ['CUDA_LAUNCH_BLOCKING'] = '1' in the first cell after "
    "that, the error comes where it is made"
)
