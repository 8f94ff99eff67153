"""The process group that a DDP model's reducer is given, which sees each of its allreduces.

All of this is on the critical path of each training step, so it only notes when an operation
begins; the rest is done when the rank reports.
"""

from __future__ import annotations

import contextlib
import functools
import math
import sys
import threading
import weakref
from _thread import get_ident
from time import time_ns
from typing import Any

from rankroom.rank.frameworks.torch import (
    torch_compile,
    torch_device,
    torch_internals,
    torch_spans,
)
from rankroom.rank.waiting import MIN_RECORDED_WAIT_S, Waiting
from rankroom.rank.world import ReleasedError
from rankroom.reporting.spans import recorder

GRADIENT_ALLREDUCE = "dist.all_reduce of DistributedDataParallel"

_main = threading.main_thread().ident


def watched_group(group: Any) -> Any:
    """Return a wrapper of `group` that sees its allreduces; None if that is not possible."""
    dist: Any = sys.modules["torch.distributed"]
    if type(group) is not dist.ProcessGroup:
        return None  # a class of the user's own
    try:
        # Work on a GPU outlasts the call; whether passing it on changes anything is untested.
        carriers = torch_internals.backends(sys.modules[torch_internals.C10D], group).values()
        if not carriers or any(each.name() != "gloo" for each in carriers):
            return None
        return _kind(dist)(group)
    except (AttributeError, RuntimeError, TypeError, ValueError):
        return None


@functools.cache  # once: the class cannot be made before torch is imported
def _kind(dist: Any) -> Any:
    class Watched(dist.ProcessGroup):
        """A process group that uses the connections of another one."""

        def __init__(self, group: Any) -> None:
            super().__init__(group.rank(), group.size())
            self._group = group
            self._about = torch_spans.members(group)
            torch_internals.put_on(sys.modules[torch_internals.C10D], self, group)

        def allreduce(self, tensors: Any, *args: Any) -> Any:
            if not recorder.on:
                return self._group.allreduce(tensors, *args)
            if _open:
                _settle()
            start = time_ns()
            work = self._group.allreduce(tensors, *args)
            tensor = tensors[0]
            _open.append((work.is_completed, start, self._about, tensor.shape, tensor.dtype))
            return work

        def broadcast(self, tensors: Any, *args: Any) -> Any:
            # How gradients are put into buckets: sent once, and waited for immediately.
            if not recorder.on:
                return self._group.broadcast(tensors, *args)
            about = self._about
            number = recorder.number(
                ("buckets", about.get("group"), tensors[0].shape),
                lambda: described("broadcast", "buckets", about, tensors[0]),
            )
            start = time_ns() // 1000
            with Waiting("dist.broadcast of DistributedDataParallel"):
                work = self._group.broadcast(tensors, *args)
                work.wait()
            recorder.add("collective", number, start, time_ns() // 1000 - start)
            return work

    return Watched


# Operations that backward passes have begun and that were not seen to end: a function that returns
# whether it has ended, the start in ns, and the group (None for a hook), shape and dtype.
_open: list[tuple[Any, int, Any, Any, Any]] = []
_passes = 0  # that are running, nested in one another
left = False  # True if an error has ended one, so that its reducers are half finished
on_gpu: weakref.WeakSet[Any] = weakref.WeakSet()  # models whose groups are not watched


def hooked(hook: Any, state: Any, bucket: Any) -> Any:
    """Call a hook that reduces in place of the reducer; its collectives are recorded as usual."""
    start = time_ns()
    future = hook(state, bucket)
    if recorder.on:
        _open.append((future.done, start, None, None, None))
    return future


def watched_backward(original: Any) -> Any:
    """Wrap a backward pass: its end is that of the reduction, for which DDP waits in C++."""

    @functools.wraps(original)
    def backward(*args: Any, **kwargs: Any) -> None:
        global _passes, left
        _passes += 1
        averaging: Averaging | None = None
        try:
            if on_gpu and _passes == 1 and recorder.on and (averaged := _averaged_on_gpu()):
                averaging = Averaging(averaged)
                averaging.begin(args)
            original(*args, **kwargs)
            if averaging is not None:
                averaging.end()
        except BaseException as error:
            left = True
            if isinstance(error, Exception) and _open and get_ident() == _main:
                Waiting.broken = GRADIENT_ALLREDUCE
            raise
        finally:
            if averaging is not None:
                averaging.leave()
            _passes -= 1
            if _open and not _passes:
                _end(_open, get_ident() == _main and Waiting.current is None)

    return backward


def _averaged_on_gpu() -> list[Any]:
    """Return the models whose gradients a backward pass may reduce on a GPU."""
    return [each for each in on_gpu if each.require_backward_grad_sync]


class Averaging:
    """The reduction in a backward pass on a GPU, for those of `models` that take part in it."""

    def __init__(self, models: list[Any]) -> None:
        self._models = models
        self._before = [_counted(each) for each in models]
        self._followed: torch_device.Followed | None = None
        self._hook: Any = None

    def begin(self, args: Any) -> None:
        """Follow the pass, and note when its gradients could be reduced: like the reducer, in a
        callback of the autograd engine, which calls them in order once all gradients exist."""
        tensors: Any = args[0] if args else None
        loss: Any = tensors[0] if isinstance(tensors, (list, tuple)) and tensors else tensors
        if getattr(loss, "grad_fn", None) is None or torch_compile.is_compiling():
            return
        if torch_internals.autograd_is_compiled():  # which would trace the hook below
            return
        device = torch_device.device_of(loss)
        self._followed = followed = torch_device.begin(device, self.has_begun)
        if followed is None:
            return
        again = functools.partial(torch_device.begin_again, followed, device)
        try:
            queue = sys.modules["torch"].autograd.Variable._execution_engine.queue_callback
            self._hook = loss.register_hook(functools.partial(_queue, queue, again))
        except ReleasedError:
            raise
        except (AttributeError, RuntimeError):  # this loss or this torch does not offer it
            self.leave()

    def has_begun(self) -> bool:
        """Return whether the GPU was given a reduction by now; True if that is unknown."""
        return bool(self._averaged())

    def end(self) -> None:
        """Record the reduction when the pass is over."""
        averaged = self._averaged()
        if not averaged:
            return
        if self._followed is None:
            torch_device.miss()
            return
        followed, self._followed = self._followed, None
        torch_device.end(followed, GRADIENT_ALLREDUCE, _number(averaged))

    def leave(self) -> None:
        """Clean up after the pass; if it failed, the GPU may have been given one already."""
        followed, self._followed = self._followed, None
        if followed is not None and self._averaged():
            torch_device.end(followed, GRADIENT_ALLREDUCE, -1)
        elif followed is not None:
            torch_device.drop(followed)
        if self._hook is not None:
            self._hook.remove()

    def _averaged(self) -> list[Any]:
        """Return the models whose groups have had collectives since the pass began."""
        return [
            each
            for each, before in zip(self._models, self._before, strict=True)
            if before is None or _counted(each) != before
        ]


def _counted(model: Any) -> int | None:
    c10d = sys.modules[torch_internals.C10D]
    return torch_internals.counted(c10d, model.process_group)


def _queue(queue: Any, again: Any, gradient: Any) -> None:
    try:
        queue(again)
    except ReleasedError:
        raise
    except Exception:  # only makes the reduction look longer: the user's pass must go on
        pass


def _number(models: list[Any]) -> int:
    """Return the number of the reduction's name; it describes the model if there is only one."""
    if len(models) > 1:
        return recorder.number(
            ("averaging",), lambda: described("all_reduce", "gradients", {}, None)
        )
    [model] = models

    def define() -> dict[str, Any]:
        about = torch_spans.members(model.process_group)
        gradients = [each for each in model.parameters() if each.requires_grad]
        return described("all_reduce", "gradients", about, gradients)

    return recorder.number(("averaging", id(model)), define)


def finish() -> None:
    """End what is open when the cell is over: begun by join() for other ranks, not in a pass."""
    global _passes
    _passes = 0
    _end(_open)


def in_flight() -> tuple[str, float] | None:
    """Return the reduction in which a blocked main thread waits, and for how many seconds."""
    with contextlib.suppress(IndexError):
        is_completed, start, *_ = _open[-1]
        if not is_completed():
            return GRADIENT_ALLREDUCE, (time_ns() - start) / 1e9
    return None


def _settle() -> None:
    """Poll, and record what has ended. Gloo must not call back, see `torch_works.Follower`."""
    _end([each for each in _open if each[0]()])


def _end(ended: list[tuple[Any, int, Any, Any, Any]], waits: bool = False) -> None:
    # Without `is_completed`, which keeps tensors and connections alive.
    recorder.late((_averaged, [each[1:] for each in ended], time_ns(), waits))
    _open[:] = [] if ended is _open else [each for each in _open if each not in ended]


def _averaged(operations: list[Any], end: int, waits: bool) -> None:
    for start, about, shape, dtype in operations:
        if about is not None:
            key = ("gradients", about.get("group"), shape, dtype)
            number = recorder.number(key, functools.partial(_gradients, about, shape, dtype))
            recorder.add("collective", number, start // 1000, (end - start) // 1000)
    if waits:
        # The last bucket is full when the last gradient is computed: the rest is waiting.
        seconds = (end - operations[-1][0]) / 1e9
        if seconds >= MIN_RECORDED_WAIT_S:
            recorder.waited(GRADIENT_ALLREDUCE, end, seconds)


def _gradients(about: dict[str, Any], shape: Any, dtype: Any) -> dict[str, Any]:
    return described("all_reduce", "gradients", about, None) | {
        "bytes": math.prod(shape) * dtype.itemsize,
        "dtype": str(dtype).removeprefix("torch."),
        "shape": list(shape),
    }


def described(op: str, tensor: str, group: dict[str, Any], given: Any) -> dict[str, Any]:
    """Return the fields that name the spans of a model's own collective."""
    about = {"name": f"{op} {tensor}", "op": op, "tensor": tensor, "library": "dist"}
    return about | group | torch_spans.described(given)
