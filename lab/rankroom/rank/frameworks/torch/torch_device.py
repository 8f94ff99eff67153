"""NCCL's collectives, which run on this rank's GPU when their calls have returned.

Two events on the GPU go with each: one is done when the GPU has come to it, the other when it is
over. From them come its span, in the host's time, and what a rank waits in whose peers do not join:
its main thread stands somewhere else by then, in `item()` or `synchronize()`. Nothing waits for the
GPU here but the end of a cell, and that not for long.
"""

from __future__ import annotations

import contextlib
import functools
import sys
import threading
import time
from collections import deque
from collections.abc import Callable
from typing import Any

from rankroom.rank.import_hooks import when_imported
from rankroom.rank.world import ReleasedError
from rankroom.reporting.spans import recorder

# After these the driver refuses everything that this process asks of the GPU, in the same words.
# PyTorch ends each of its errors with a mention of "device-side assertions", which is none.
_STICKY = (
    "device-side assert triggered", "illegal memory access", "illegal instruction",
    "misaligned address", "unspecified launch failure", "uncorrectable", "hardware stack error",
    "invalid program counter", "launch timed out", "not supported on global/shared address space",
    "CUDA_ERROR_ILLEGAL", "CUDA_ERROR_ASSERT", "CUDA_ERROR_LAUNCH_FAILED",
    "CUDA_ERROR_LAUNCH_TIMEOUT", "CUDA_ERROR_MISALIGNED", "CUDA_ERROR_HARDWARE_STACK",
    "CUDA_ERROR_INVALID_PC", "CUDA_ERROR_INVALID_ADDRESS_SPACE", "CUDA_ERROR_ECC_UNCORRECTABLE",
)  # fmt: skip
MOST = 256  # collectives that are followed at a time: which is the first counts
PRUNED = 32  # of them, when those that are over are let go
LAST_S = 0.5  # at the end of a cell, for those that go on
# Between two looks at the GPU's clock, of which only the time between events is told, as a float of
# 32 bits: exact to a microsecond for so long.
CLOCK_S = 10.0
AGAIN_S = 0.5  # until that is tried again where another's work was in its way


class Followed:
    """A collective that was given to the GPU, or is about to be."""

    __slots__ = (
        "after", "before", "clock", "could_begin", "device", "is_given", "number", "stream", "what",
    )  # fmt: skip

    def __init__(self, before: Any, after: Any, device: Any = None) -> None:
        self.before, self.after, self.device = before, after, device
        self.what, self.number = "", -1
        self.is_given: Callable[[], bool] | None = None  # None: it is, or is about to be
        self.clock: Clock | None = None
        self.stream: Any = None
        self.could_begin = 0.0  # when that was seen, monotonic; 0 before


class Clock:
    """A moment of the GPU whose time on the host is known."""

    def __init__(self, cuda: Any, stream: Any) -> None:
        self.event = cuda.Event(enable_timing=True)
        self.event.record(stream)  # which has nothing else to do
        self.event.synchronize()
        self.us = time.time_ns() // 1000
        self.until = time.monotonic() + CLOCK_S


_begun: set[Followed] = set()  # whose calls have not returned
_followed: deque[Followed] = deque()
_spare: dict[Any, list[Followed]] = {}  # by device: an event is of one
_clocks: dict[Any, Clock] = {}
_lock = threading.RLock()
_failed = False  # as something here did; nothing is followed any more
_missed = False  # a collective of this cell is not followed
_in_graphs = False  # nor are those of a graph, which runs at any time
_captures = 0  # graphs that are recorded now: a GPU that is asked anything meanwhile ends that


def install() -> None:
    """Prepare for the user's `import torch`; nothing is imported now."""
    when_imported("torch.cuda.graphs", _watch_captures)


def _watch_captures(module: Any) -> None:
    """Know when a graph is recorded."""
    graph = getattr(module, "CUDAGraph", None)
    begins, ends = getattr(graph, "capture_begin", None), getattr(graph, "capture_end", None)
    if graph is None or begins is None or ends is None:
        return

    @functools.wraps(begins)
    def capture_begin(self: Any, *args: Any, **kwargs: Any) -> Any:
        _count_captures(1)
        try:
            return begins(self, *args, **kwargs)
        except BaseException:
            _count_captures(-1)
            raise

    @functools.wraps(ends)
    def capture_end(self: Any, *args: Any, **kwargs: Any) -> Any:
        try:
            return ends(self, *args, **kwargs)
        finally:
            _count_captures(-1)

    graph.capture_begin, graph.capture_end = capture_begin, capture_end


def _count_captures(more: int) -> None:
    global _captures
    with _lock:  # held by those who ask the GPU
        _captures = max(0, _captures + more)


def device_of(tensor: Any) -> Any:
    """The GPU that a tensor is on, or the first of a list of them; None for the CPU's."""
    while type(tensor) in (list, tuple) and tensor:
        tensor = tensor[0]
    return tensor.device if getattr(tensor, "is_cuda", False) else None


def current() -> Any:
    """The GPU that this thread has chosen; None where the process uses none."""
    torch: Any = sys.modules.get("torch")
    if torch is None or not torch.cuda.is_initialized():
        return None
    return torch.device("cuda", torch.cuda.current_device())


def begin(device: Any, is_given: Callable[[], bool] | None = None) -> Followed | None:
    """The GPU is about to be given a collective; None where that is not followed.

    Where it may come to none, `is_given()` says whether it was given any by now.
    """
    if device is None or _failed:
        return None
    try:
        cuda: Any = sys.modules["torch"].cuda
        if _captures or cuda.is_current_stream_capturing():
            _see_graph()
            return None
        if len(_followed) >= MOST and not _has_room():
            miss()
            return None
        clock = _clock(cuda, device)
        with _lock:
            spare = _spare.get(device)
            each = spare.pop() if spare else None
        if each is None:
            before, after = (cuda.Event(enable_timing=True) for _ in range(2))
            each = Followed(before, after, device)
        each.clock, each.could_begin, each.is_given = clock, 0.0, is_given
        each.stream = cuda.current_stream(device)
        each.before.record(each.stream)
        _begun.add(each)
    except ReleasedError:  # the cell ends in here
        raise
    except Exception as error:
        _give_up(error)
        return None
    return each


def begin_again(each: Followed, device: Any) -> None:
    """What it sends is there only after what the GPU has been given by now."""
    try:
        each.stream = sys.modules["torch"].cuda.current_stream(device)
        each.before.record(each.stream)
    except ReleasedError:
        raise
    except Exception as error:
        _give_up(error)


def end(each: Followed, what: str, number: int) -> None:
    """It was given to the GPU; `number` is that of its span's name."""
    each.what, each.number, each.is_given = what, number, None
    try:
        each.after.record(each.stream)
        with _lock:
            _followed.append(each)
            _begun.discard(each)
            if len(_followed) % PRUNED == 0:
                _prune()
    except ReleasedError:
        raise
    except Exception as error:
        _give_up(error)


def drop(each: Followed) -> None:
    """It was not given to the GPU, or is waited for later."""
    with _lock:
        _begun.discard(each)
        _keep(each)


def miss() -> None:
    """A GPU was given a collective that is not followed."""
    global _missed
    _missed = True


def finish() -> None:
    """The cell is over: what it gave to the GPU is seen to end, unless that takes long."""
    global _missed
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
    _begun.clear()
    _missed = False


def waits_in() -> tuple[str, float] | None:
    """The collective that is the first in which this rank's GPU waits for others, and for how many
    seconds that has been seen; None while it computes, or has nothing to do."""
    with _lock, contextlib.suppress(Exception):  # a GPU that has failed says so in the cell
        _prune()
        if _followed and not _captures:
            first = _followed[0]
            if first.could_begin or first.before.query():
                now = time.monotonic()
                first.could_begin = first.could_begin or now
                return f"{first.what} on its GPU", now - first.could_begin
    return None


def is_in_collective() -> bool:
    """Whether one that is followed, of any of this rank's GPUs and streams, is not over."""
    with _lock, contextlib.suppress(Exception):  # a GPU that has failed says so in the cell
        if any(each.is_given is None or each.is_given() for each in list(_begun)):
            return True
        if _captures:
            return bool(_followed)
        return any(not each.after.query() for each in _followed)
    return False


def sees_all() -> bool:
    """Whether all collectives that the GPUs were given are followed: not those of compiled code."""
    is_compiled = "torch._inductor.compile_fx" in sys.modules
    return recorder.on and not (_failed or _missed or _in_graphs or is_compiled)


def is_busy(device: str) -> bool:
    """Whether a GPU has something to do, which may be a collective that others do not join."""
    torch: Any = sys.modules.get("torch")
    with _lock, contextlib.suppress(Exception):
        if torch is not None and torch.cuda.is_initialized():
            return bool(_captures) or not torch.cuda.default_stream(torch.device(device)).query()
    return False


def is_over(work: Any) -> bool:
    """Whether what was begun on a GPU with `async_op=True` has ended there."""
    with _lock, contextlib.suppress(Exception):
        return not _captures and bool(work.is_completed())
    return True


def let_end(device: str, seconds: float) -> None:
    """Wait until a GPU has nothing to do, but not for long."""
    until = time.monotonic() + seconds
    while is_busy(device) and time.monotonic() < until:
        time.sleep(0.01)


def is_lost(error: str) -> bool:
    """Whether an error's words say that this process can no longer use its GPU."""
    return any(sign in error for sign in _STICKY) and ("CUDA" in error or "HIP" in error)


def forget() -> None:
    """The cell is over, or its collectives are to be aborted. Events are kept: to destroy one may
    take as long as what it waits for."""
    with _lock:
        for each in _followed:
            _keep(each)
        _followed.clear()


def _keep(each: Followed) -> None:
    each.is_given = None  # which may keep a model
    _spare.setdefault(each.device, []).append(each)


def _see_graph() -> None:
    """A collective is recorded: it runs when the graph does, any number of times."""
    global _in_graphs
    _in_graphs = True


def _has_room() -> bool:
    with _lock:
        _prune()
    return len(_followed) < MOST


def _clock(cuda: Any, device: Any) -> Clock | None:
    """A moment of the GPU that is not long ago, as a rule; None if there was none yet."""
    clock, now = _clocks.get(device), time.monotonic()
    if clock is None or clock.until < now:
        # Of a pool that NCCL and the user draw from, too: what it has to do may never end.
        stream = cuda.Stream(device)
        if stream.query():
            clock = _clocks[device] = Clock(cuda, stream)
        elif clock is not None:
            clock.until = now + AGAIN_S
    return clock


def _prune() -> None:
    if _captures:
        return
    while _followed and _followed[0].after.query():
        each = _followed.popleft()
        _keep(each)
        if each.number >= 0 and each.clock is not None:
            start = each.clock.us + 1000 * each.clock.event.elapsed_time(each.before)
            took = 1000 * each.before.elapsed_time(each.after)
            recorder.add("collective", each.number, int(start), int(took))


def _give_up(error: Exception) -> None:
    """The cell goes on as it would without us. A GPU that is lost says so in the cell."""
    global _failed
    forget()
    _begun.clear()
    if not is_lost(str(error)):
        _failed = True
        recorder.note(NOT_FOLLOWED.format(error=f"{type(error).__name__}: {error}"))


NOT_FOLLOWED = "collectives on the GPU are no longer in the timeline: {error}"
LOST = (
    "rank {rank} has lost its GPU: whatever it tries there now fails with the same error. "
    "`%cluster restart --ranks {rank}` starts it again. The line at fault may be an earlier one, "
    "as calls do not wait for a GPU: with os.environ['CUDA_LAUNCH_BLOCKING'] = '1' in the first "
    "cell after that, the error is raised where it is made"
)
