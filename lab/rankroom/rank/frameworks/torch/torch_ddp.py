"""Record DistributedDataParallel's reduction of gradients as spans.

It happens in C++, in the middle of the backward pass. A model's reducer is given a process group
that behaves like the model's own, but sees each allreduce and passes it on unchanged. So tensors,
order and arithmetic stay the same.
"""

from __future__ import annotations

import functools
import inspect
import sys
import time
import weakref
from typing import Any

from rankroom.rank.frameworks.torch import (
    torch_connecting,
    torch_ddp_group,
    torch_device,
    torch_internals,
    torch_spans,
)
from rankroom.rank.frameworks.torch.torch_ddp_group import described, watched_group
from rankroom.rank.frameworks.torch.torch_internals import patch
from rankroom.rank.waiting import Waiting
from rankroom.reporting.spans import recorder

DDP_CLASS = "DistributedDataParallel"
# By model, the group that its reducer uses from C++ only: Python has to keep it alive.
_groups: weakref.WeakKeyDictionary[Any, Any] = weakref.WeakKeyDictionary()
# Collective functions that make a model, and what they exchange; the rest is done by each rank.
_CONSTRUCTION_COLLECTIVES = {
    "_verify_param_shape_across_processes": "shapes",
    "_sync_module_states": "parameters",
}


def watch(module: Any) -> None:
    """Record the collectives of DDP models: of gradients, of buffers, and of making a model."""
    patch(module, f"{DDP_CLASS}._ddp_init_helper", _watched_reducer)
    patch(module, f"{DDP_CLASS}._distributed_broadcast_coalesced", _watched_buffers)
    for name, what in _CONSTRUCTION_COLLECTIVES.items():
        patch(module, name, functools.partial(_watched_making, what=what))
    _watch_hooks(module.DistributedDataParallel)
    autograd: Any = sys.modules["torch.autograd"]
    autograd.backward = torch_ddp_group.watched_backward(autograd.backward)


def _watched_making(original: Any, what: str) -> Any:
    parameters = list(inspect.signature(original).parameters)

    @functools.wraps(original)
    def together(*args: Any, **kwargs: Any) -> Any:
        if not recorder.on:
            return original(*args, **kwargs)
        given = dict(zip(parameters, args, strict=False)) | kwargs
        about = torch_spans.members(given.get("process_group"))
        op = "all_gather" if what == "shapes" else "broadcast"
        number = recorder.number(
            ("making", what, about.get("group")), lambda: described(op, what, about, None)
        )
        tensors = given.get("tensors") or [*getattr(given.get("module"), "parameters", tuple)()]
        timed = _Timed("DistributedDataParallel()", number, about.get("group"), tensors)
        return timed(original, args, kwargs)

    return together


class _Timed:
    """Records a collective in C++: what it is called, in which group, and on which tensors."""

    def __init__(self, what: str, number: int, group: str | None, tensors: Any) -> None:
        self._what, self._number = what, number
        self._device = torch_device.device_of(tensors)
        self._key = (group, ""), self._device is None

    def __call__(self, original: Any, args: Any, kwargs: Any) -> Any:
        """Call `original` and record its time, that on the GPU if it runs there."""
        followed: torch_device.Followed | None = None
        start = time.time_ns() // 1000
        try:
            followed = torch_device.begin(self._device)
            with Waiting(self._what):
                if self._key in torch_connecting.connected:
                    return original(*args, **kwargs)
                return torch_connecting.first(self._key, original, args, kwargs)
        finally:
            if followed is not None:
                torch_device.end(followed, self._what, self._number)
            else:
                now = time.time_ns() // 1000
                recorder.add("collective", self._number, start, now - start)


def _watched_buffers(original: Any) -> Any:
    @functools.wraps(original)
    def broadcast(self: Any, tensors: Any, *args: Any, **kwargs: Any) -> Any:
        if not recorder.on or not tensors:
            return original(self, tensors, *args, **kwargs)
        about = torch_spans.members(self.process_group)
        key = ("buffers", about.get("group"), len(tensors), tensors[0].shape)
        number = recorder.number(key, lambda: described("broadcast", "buffers", about, tensors))
        what = "dist.broadcast of DistributedDataParallel"
        timed = _Timed(what, number, about.get("group"), tensors)
        timed(original, (self, tensors, *args), kwargs)

    return broadcast


def _watched_reducer(original: Any) -> Any:
    @functools.wraps(original)
    def make_reducer(self: Any, *args: Any, **kwargs: Any) -> Any:
        own = self.process_group
        watched = watched_group(own)
        if watched is None:
            torch_ddp_group.on_gpu.add(self)
            return original(self, *args, **kwargs)
        _groups[self] = self.process_group = watched
        try:
            return original(self, *args, **kwargs)
        finally:
            self.process_group = own

    return make_reducer


def _watch_hooks(ddp: Any) -> None:
    """Record communication hooks: they reduce for the reducer, which waits for their futures."""
    original = ddp.register_comm_hook

    @functools.wraps(original)
    def register_comm_hook(self: Any, state: object, hook: Any) -> None:
        if self not in _groups:
            original(self, state, hook)
            return

        @functools.wraps(hook)
        def seen(state: object, bucket: Any) -> Any:
            return torch_ddp_group.hooked(hook, state, bucket)

        original(self, state, seen)
        torch_internals.keep_hook(self, hook, state)

    ddp.register_comm_hook = register_comm_hook
