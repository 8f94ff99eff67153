"""Record what a PyTorch training loop does between collectives: optimizer steps, data loading."""

from __future__ import annotations

import functools
import sys
import threading
from time import time_ns
from types import CodeType
from typing import Any
from weakref import ref

from rankroom.rank.frameworks.torch import torch_compile
from rankroom.rank.import_hooks import when_imported
from rankroom.reporting.spans import recorder


class _Thread(threading.local):
    loading = False  # loaders may be nested: only the outermost is timed
    # The optimizer in its step, since when (ns), and the depth of its bases' steps within that; not
    # other optimizers that it calls.
    step: list[Any] | None = None


_thread = _Thread()
_NO_STEP: Any = (lambda: None, 0, 0)
_called: set[tuple[ref[Any], ref[Any]]] = set()  # optimizers; the first calls the second
_inner: dict[type, int] = {}  # results of `_inner_steps`


def install() -> None:
    """Prepare for the user's `import torch`; nothing is imported now."""
    when_imported("torch.optim.optimizer", _watch_optimizers)
    when_imported("torch.utils.data.dataloader", _watch_loaders)


def _watch_optimizers(module: Any) -> None:
    if hasattr(module, "register_optimizer_step_pre_hook"):
        module.register_optimizer_step_pre_hook(_begin_step)
        module.register_optimizer_step_post_hook(_end_step)


def _begin_step(optimizer: Any, *_: Any) -> None:
    if torch_compile.is_compiling() or not recorder.on:
        return
    step = _thread.step or _NO_STEP
    outer = step[0]()
    if outer is optimizer:
        if step[2] < _inner_steps(type(optimizer)):
            step[2] += 1
            return
    elif outer is not None:
        pair = step[0], ref(optimizer)
        # Cached, as finding it out takes longer than the rest of this function.
        if pair in _called:
            return
        if _is_nested(sys._getframe(1).f_code):
            _called.add(pair)
            return
    # If a step is noted already, an error has ended that.
    _thread.step = [ref(optimizer), time_ns(), 0]


def _end_step(optimizer: Any, *_: Any) -> None:
    if torch_compile.is_compiling():
        return
    step = _thread.step
    if step is None or step[0]() is not optimizer:
        return
    if step[2]:
        step[2] -= 1
        return
    _thread.step = None
    if recorder.on:
        recorder.late((_add_step, type(optimizer), step[1], time_ns()))


def _add_step(kind: type, since: int, end: int) -> None:
    number = recorder.number(("step", kind), lambda: {"name": f"{kind.__name__}.step"})
    recorder.add("step", number, since // 1000, (end - since) // 1000)


def _inner_steps(kind: type) -> int:
    """Return how many nested steps of its base classes a class's step calls at most.

    Horovod's DistributedOptimizer is a subclass of the class of another optimizer.
    """
    found = _inner.get(kind, 0)
    if not found:  # a base class may have been hooked since
        hooked = [each for each in kind.__mro__ if hasattr(vars(each).get("step"), "hooked")]
        found = _inner[kind] = max(0, len(hooked) - 1)
    return found


def _is_nested(code: CodeType) -> bool:
    """Return whether a step that calls hooks from `code` is running above the current one: an
    optimizer may call the step of another."""
    frame = sys._getframe(2).f_back
    while frame is not None:
        if frame.f_code is code:
            return True
        frame = frame.f_back
    return False


def _watch_loaders(module: Any) -> None:
    kind = module._BaseDataLoaderIter
    original = kind.__next__

    @functools.wraps(original)
    def __next__(self: Any) -> Any:  # noqa: N807 - a method of torch's class
        if not recorder.on or _thread.loading:
            return original(self)
        if threading.current_thread() is not threading.main_thread():
            return original(self)  # reading ahead does not block the training
        _thread.loading = True
        samples = None  # the last call of an epoch has none
        begin = time_ns()
        try:
            batch = original(self)
            samples = getattr(getattr(self, "_index_sampler", None), "batch_size", None)
            return batch
        finally:
            dur = (time_ns() - begin) // 1000
            _thread.loading = False
            if type(samples) is not int:
                samples = None
            number = recorder.number(("DataLoader", samples), functools.partial(_loader, samples))
            recorder.add("data", number, begin // 1000, dur)

    kind.__next__ = __next__


def _loader(samples: int | None) -> dict[str, Any]:
    return {"name": "DataLoader"} | ({} if samples is None else {"samples": samples})
