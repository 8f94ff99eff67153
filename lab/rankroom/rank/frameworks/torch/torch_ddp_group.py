"""The process group that a DDP model's reducer is given: it sees each allreduce that passes.

All of this lies on the critical path of each step, so it does next to nothing: it notes when an
operation begins, and the rest is left to when the rank reports.
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
from rankroom.rank.waiting import SHORTEST_S, Waiting
from rankroom.rank.world import ReleasedError
from rankroom.reporting.spans import recorder

WHAT = "dist.all_reduce of DistributedDataParallel"

_main = threading.main_thread().ident


def watched_group(group: Any) -> Any:
    """`group` with its allreduce seen; None if this torch does not offer what that takes."""
    dist: Any = sys.modules["torch.distributed"]
    if type(group) is not dist.ProcessGroup:
        return None  # the user's own kind
    try:
        # A GPU's work goes on after the call; whether passing it on changes anything was not tried.
        carriers = torch_internals.backends(sys.modules[torch_internals.C10D], group).values()
        if not carriers or any(each.name() != "gloo" for each in carriers):
            return None
        return _kind(dist)(group)
    except (AttributeError, RuntimeError, TypeError, ValueError):
        return None


@functools.cache  # a class per torch; it cannot be made before torch is imported
def _kind(dist: Any) -> Any:
    class Watched(dist.ProcessGroup):
        """A group on the connections of another one."""

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
            # What tells the ranks how to put gradients together, once: it is waited for at once.
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


# What backward passes have begun and was not seen to end: how to ask whether it has, since when,
# and what it averages, in which group.
_open: list[tuple[Any, int, Any, Any, Any]] = []
_passes = 0  # that go on, one within the other
left = False  # whether an error has ended one, and the reducers in it are half way
on_gpu: weakref.WeakSet[Any] = weakref.WeakSet()  # models whose groups are not watched


def hooked(hook: Any, state: Any, bucket: Any) -> Any:
    """Call a hook that averages in place of the reducer; collectives in it are seen as others."""
    start = time_ns()
    future = hook(state, bucket)
    if recorder.on:
        _open.append((future.done, start, None, None, None))
    return future


def watched_backward(original: Any) -> Any:
    """A backward pass ends when the gradients are averaged: DDP waits for that in C++."""

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
                Waiting.broken = WHAT
            raise
        finally:
            if averaging is not None:
                averaging.leave()
            _passes -= 1
            if _open and not _passes:
                _end(_open, get_ident() == _main and Waiting.current is None)

    return backward


def _averaged_on_gpu() -> list[Any]:
    """The models whose gradients a backward pass may average there."""
    return [each for each in on_gpu if each.require_backward_grad_sync]


class Averaging:
    """What a backward pass may average on a GPU: it does for the models that are part of it."""

    def __init__(self, models: list[Any]) -> None:
        self._models = models
        self._before = [_counted(each) for each in models]
        self._followed: torch_device.Followed | None = None
        self._hook: Any = None

    def begin(self, args: Any) -> None:
        """The pass begins. Have it note when its gradients could be averaged: like the reducer, in
        what the engine calls, in order, when all of them are there."""
        tensors: Any = args[0] if args else None
        loss: Any = tensors[0] if isinstance(tensors, (list, tuple)) and tensors else tensors
        if getattr(loss, "grad_fn", None) is None or torch_compile.is_compiling():
            return
        if torch_internals.autograd_is_compiled():  # which would trace our hook
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
        except (AttributeError, RuntimeError):  # of a loss, or a torch, of another kind
            self.leave()

    def has_begun(self) -> bool:
        """Whether its GPU was given any by now, or that cannot be told."""
        return bool(self._averaged())

    def end(self) -> None:
        """The pass is over."""
        averaged = self._averaged()
        if not averaged:
            return
        if self._followed is None:
            torch_device.miss()
            return
        followed, self._followed = self._followed, None
        torch_device.end(followed, WHAT, _number(averaged))

    def leave(self) -> None:
        """It is over, or an error has ended it, when its GPU may have been given some already."""
        followed, self._followed = self._followed, None
        if followed is not None and self._averaged():
            torch_device.end(followed, WHAT, -1)
        elif followed is not None:
            torch_device.drop(followed)
        if self._hook is not None:
            self._hook.remove()

    def _averaged(self) -> list[Any]:
        """The models whose groups have seen collectives since it began."""
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
    except Exception:  # the averaging only looks longer without, and the user's pass goes on
        pass


def _number(models: list[Any]) -> int:
    """That of the averaging on a GPU: of which model, is known where there is only one."""
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
    """The cell is over, and with it what it has begun: by join() for others, not in a pass."""
    global _passes
    _passes = 0
    _end(_open)


def in_flight() -> tuple[str, float] | None:
    """What a main thread that stands still is in if it averages gradients, and for how long."""
    with contextlib.suppress(IndexError):
        is_completed, start, *_ = _open[-1]
        if not is_completed():
            return WHAT, (time_ns() - start) / 1e9
    return None


def _settle() -> None:
    """End what has ended. Nothing may call us from a thread of Gloo, see `torch_works.Follower`."""
    _end([each for each in _open if each[0]()])


def _end(ended: list[tuple[Any, int, Any, Any, Any]], waits: bool = False) -> None:
    # Without what asks: that keeps tensors and connections.
    recorder.late((_averaged, [each[1:] for each in ended], time_ns(), waits))
    _open[:] = [] if ended is _open else [each for each in _open if each not in ended]


def _averaged(operations: list[Any], end: int, waits: bool) -> None:
    for start, about, shape, dtype in operations:
        if about is not None:
            key = ("gradients", about.get("group"), shape, dtype)
            number = recorder.number(key, functools.partial(_gradients, about, shape, dtype))
            recorder.add("collective", number, start // 1000, (end - start) // 1000)
    if waits:
        # The last bucket is full when the last gradient is computed: what comes then is waiting.
        seconds = (end - operations[-1][0]) / 1e9
        if seconds >= SHORTEST_S:
            recorder.waited(WHAT, end, seconds)


def _gradients(about: dict[str, Any], shape: Any, dtype: Any) -> dict[str, Any]:
    return described("all_reduce", "gradients", about, None) | {
        "bytes": math.prod(shape) * dtype.itemsize,
        "dtype": str(dtype).removeprefix("torch."),
        "shape": list(shape),
    }


def described(op: str, tensor: str, group: dict[str, Any], given: Any) -> dict[str, Any]:
    """The name of spans of a model's own collective."""
    about = {"name": f"{op} {tensor}", "op": op, "tensor": tensor, "library": "dist"}
    return about | group | torch_spans.described(given)
