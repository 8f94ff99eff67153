"""Follow NCCL's collectives, which run on this rank's GPU after their calls have returned.

Two CUDA events enclose each: one completes when the GPU reaches it, the other when it has ended.
They give its span, in the host's time, and the collective in which a rank is blocked if its peers
do not join: its main thread is elsewhere by then, in `item()` or `synchronize()`. Only the end of a
cell waits for the GPU here, and only briefly.
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

# After one of these errors, every CUDA call of this process fails with the same error. PyTorch ends
# each CUDA error with a mention of "device-side assertions", which is not one of them.
_FATAL_CUDA_ERRORS = (
    "device-side assert triggered", "illegal memory access", "illegal instruction",
    "misaligned address", "unspecified launch failure", "uncorrectable", "hardware stack error",
    "invalid program counter", "launch timed out", "not supported on global/shared address space",
    "CUDA_ERROR_ILLEGAL", "CUDA_ERROR_ASSERT", "CUDA_ERROR_LAUNCH_FAILED",
    "CUDA_ERROR_LAUNCH_TIMEOUT", "CUDA_ERROR_MISALIGNED", "CUDA_ERROR_HARDWARE_STACK",
    "CUDA_ERROR_INVALID_PC", "CUDA_ERROR_INVALID_ADDRESS_SPACE", "CUDA_ERROR_ECC_UNCORRECTABLE",
)  # fmt: skip
MAX_FOLLOWED = 256  # collectives that are followed at a time: only the first matters
PRUNE_EVERY = 32  # completed ones are removed at each multiple of this count
CELL_END_TIMEOUT_S = 0.5  # at the end of a cell, for those still running
# How long a reading of the GPU's clock is used. CUDA only returns the time between two events, as
# milliseconds in a 32-bit float: exact to a microsecond for this long.
CLOCK_LIFETIME_S = 10.0
CLOCK_RETRY_DELAY_S = 0.5  # before the reading is retried if the stream was busy


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
        self.could_begin = 0.0  # when the GPU was seen to reach it, monotonic; 0 before


class Clock:
    """A moment on the GPU's clock whose time on the host is known."""

    def __init__(self, cuda: Any, stream: Any) -> None:
        self.event = cuda.Event(enable_timing=True)
        self.event.record(stream)  # which has nothing else to do
        self.event.synchronize()
        self.us = time.time_ns() // 1000
        self.until = time.monotonic() + CLOCK_LIFETIME_S


_begun: set[Followed] = set()  # whose calls have not returned
_followed: deque[Followed] = deque()
_spare: dict[Any, list[Followed]] = {}  # by device, as an event belongs to one
_clocks: dict[Any, Clock] = {}
_lock = threading.RLock()
_failed = False  # True once something here has failed: nothing is followed any more
_missed = False  # True if a collective of this cell is not followed
_in_graphs = False  # True if a CUDA graph has some: it may run at any time, unseen
_captures = 0  # CUDA graphs being captured, which querying the GPU would end


def install() -> None:
    """Prepare for the user's `import torch`; nothing is imported now."""
    when_imported("torch.cuda.graphs", _watch_captures)


def _watch_captures(module: Any) -> None:
    """Count the CUDA graphs that are being captured."""
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
    with _lock:  # held while the GPU is queried
        _captures = max(0, _captures + more)


def device_of(tensor: Any) -> Any:
    """Return the GPU of a tensor, or of the first of a list of tensors; None for the CPU."""
    while type(tensor) in (list, tuple) and tensor:
        tensor = tensor[0]
    return tensor.device if getattr(tensor, "is_cuda", False) else None


def current() -> Any:
    """Return the current GPU of this thread; None if the process uses none."""
    torch: Any = sys.modules.get("torch")
    if torch is None or not torch.cuda.is_initialized():
        return None
    return torch.device("cuda", torch.cuda.current_device())


def begin(device: Any, is_given: Callable[[], bool] | None = None) -> Followed | None:
    """Follow a collective that is about to be given to the GPU; None if it cannot be followed.

    If it may turn out that none is given, `is_given()` returns whether one has been by now.
    """
    if device is None or _failed:
        return None
    try:
        cuda: Any = sys.modules["torch"].cuda
        if _captures or cuda.is_current_stream_capturing():
            _see_graph()
            return None
        if len(_followed) >= MAX_FOLLOWED and not _has_room():
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
    except ReleasedError:  # which ends the cell
        raise
    except Exception as error:
        _give_up(error)
        return None
    return each


def begin_again(each: Followed, device: Any) -> None:
    """Move its start to now: its input exists only after the work that the GPU was given so far."""
    try:
        each.stream = sys.modules["torch"].cuda.current_stream(device)
        each.before.record(each.stream)
    except ReleasedError:
        raise
    except Exception as error:
        _give_up(error)


def end(each: Followed, what: str, number: int) -> None:
    """Note that the collective was given to the GPU; `number` is that of its span's name."""
    each.what, each.number, each.is_given = what, number, None
    try:
        each.after.record(each.stream)
        with _lock:
            _followed.append(each)
            _begun.discard(each)
            if len(_followed) % PRUNE_EVERY == 0:
                _prune()
    except ReleasedError:
        raise
    except Exception as error:
        _give_up(error)


def drop(each: Followed) -> None:
    """Stop following a collective that was not given to the GPU, or that is waited for later."""
    with _lock:
        _begun.discard(each)
        _keep(each)


def miss() -> None:
    """Note that a GPU was given a collective that is not followed."""
    global _missed
    _missed = True


def finish() -> None:
    """Record the last collectives of a cell that is over, for CELL_END_TIMEOUT_S at most."""
    global _missed
    until = time.monotonic() + CELL_END_TIMEOUT_S
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


def blocking_collective() -> tuple[str, float] | None:
    """Return the first collective in which this rank's GPU waits for others, and for how many
    seconds that has been seen; None while the GPU computes or is idle."""
    with _lock, contextlib.suppress(Exception):  # the cell itself reports a GPU that has failed
        _prune()
        if _followed and not _captures:
            first = _followed[0]
            if first.could_begin or first.before.query():
                now = time.monotonic()
                first.could_begin = first.could_begin or now
                return f"{first.what} on its GPU", now - first.could_begin
    return None


def is_in_collective() -> bool:
    """Return whether a followed collective, on any of this rank's GPUs and streams, is not over."""
    with _lock, contextlib.suppress(Exception):  # the cell itself reports a GPU that has failed
        if any(each.is_given is None or each.is_given() for each in list(_begun)):
            return True
        if _captures:
            return bool(_followed)
        return any(not each.after.query() for each in _followed)
    return False


def sees_all() -> bool:
    """Return whether all collectives on the GPUs are followed; those of compiled code are not."""
    is_compiled = "torch._inductor.compile_fx" in sys.modules
    return recorder.on and not (_failed or _missed or _in_graphs or is_compiled)


def is_busy(device: str) -> bool:
    """Return whether a GPU is busy, perhaps with a collective that peers do not join."""
    torch: Any = sys.modules.get("torch")
    with _lock, contextlib.suppress(Exception):
        if torch is not None and torch.cuda.is_initialized():
            return bool(_captures) or not torch.cuda.default_stream(torch.device(device)).query()
    return False


def is_over(work: Any) -> bool:
    """Return whether work that was begun on a GPU with `async_op=True` has ended there."""
    with _lock, contextlib.suppress(Exception):
        return not _captures and bool(work.is_completed())
    return True


def let_end(device: str, seconds: float) -> None:
    """Wait until a GPU is idle, for `seconds` at most."""
    until = time.monotonic() + seconds
    while is_busy(device) and time.monotonic() < until:
        time.sleep(0.01)


def is_lost(error: str) -> bool:
    """Return whether an error's text says that this process can no longer use its GPU."""
    return any(sign in error for sign in _FATAL_CUDA_ERRORS) and ("CUDA" in error or "HIP" in error)


def forget() -> None:
    """Stop following all collectives: the cell is over, or they are to be aborted. Events are kept:
    destroying one may block until the work before it is done."""
    with _lock:
        for each in _followed:
            _keep(each)
        _followed.clear()


def _keep(each: Followed) -> None:
    each.is_given = None  # which may keep a model alive
    _spare.setdefault(each.device, []).append(each)


def _see_graph() -> None:
    """Note that a collective is captured: it runs whenever its graph does."""
    global _in_graphs
    _in_graphs = True


def _has_room() -> bool:
    with _lock:
        _prune()
    return len(_followed) < MAX_FOLLOWED


def _clock(cuda: Any, device: Any) -> Clock | None:
    """Return a reading of the GPU's clock, usually a recent one; None if there was none yet."""
    clock, now = _clocks.get(device), time.monotonic()
    if clock is None or clock.until < now:
        # From a pool that NCCL and the user share: what runs on the stream may never end.
        stream = cuda.Stream(device)
        if stream.query():
            clock = _clocks[device] = Clock(cuda, stream)
        elif clock is not None:
            clock.until = now + CLOCK_RETRY_DELAY_S
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
    """Stop following, so that the cell goes on undisturbed. The cell itself reports a lost GPU."""
    global _failed
    forget()
    _begun.clear()
    if not is_lost(str(error)):
        _failed = True
        recorder.note(NOT_FOLLOWED.format(error=f"{type(error).__name__}: {error}"))


NOT_FOLLOWED = "collectives on the GPU are no longer in the timeline: {error}"
GPU_LOST = (
    "rank {rank} has lost its GPU: whatever it tries there now fails with the same error. "
    "`%cluster restart --ranks {rank}` restarts it. The line at fault may be an earlier one, "
    "as calls do not wait for a GPU: with os.environ['CUDA_LAUNCH_BLOCKING'] = '1' in the first "
    "cell after that, the error is raised where it occurs"
)
