"""DistributedDataParallel's averaging of gradients as spans.

It happens in C++, in the middle of the backward pass. The reducer of a model is given a process
group that is the model's own in all but one: it sees each allreduce that passes, and passes it on
as it is. So tensors, order and arithmetic stay as they were.
"""

from __future__ import annotations

import contextlib
import functools
import inspect
import sys
import time
import weakref
from typing import Any

from rankroom.rank import torch_compile, torch_spans
from rankroom.rank.spans import here
from rankroom.rank.waiting import Waiting
from rankroom.rank.world import World

WHAT = "dist.all_reduce of DistributedDataParallel"

# What a reducer uses from C++ only: Python has to keep it.
_groups: weakref.WeakKeyDictionary[Any, Any] = weakref.WeakKeyDictionary()
# What ranks do together while a model is made, and what of: the rest of making one is their own.
_MAKING = {"_verify_param_shape_across_processes": "shapes", "_sync_module_states": "parameters"}


def watch(module: Any, world: World) -> None:
    """Have the reducers of DDP models made with a watched group, and their buffers seen."""
    ddp = module.DistributedDataParallel
    if hasattr(ddp, "_ddp_init_helper"):
        _watch_reducer(ddp, world)
    if hasattr(ddp, "_distributed_broadcast_coalesced"):
        _watch_buffers(ddp)
    for name, what in _MAKING.items():
        if hasattr(module, name):
            _watch_making(module, name, what)


def finish() -> None:
    """A cell is over, and a pass in it may have been broken off."""
    for watched in list(_groups.values()):
        watched.backward.settle(final=True)


def _watch_making(module: Any, name: str, what: str) -> None:
    original = getattr(module, name)
    parameters = list(inspect.signature(original).parameters)

    @functools.wraps(original)
    def together(*args: Any, **kwargs: Any) -> Any:
        if not here.on:
            return original(*args, **kwargs)
        given = dict(zip(parameters, args, strict=False)) | kwargs
        about = torch_spans.members(given.get("process_group"))
        op = "all_gather" if what == "shapes" else "broadcast"
        number = here.number(
            ("making", what, about.get("group")), lambda: _define(op, what, about, None)
        )
        start = time.time_ns() // 1000
        try:
            with Waiting("DistributedDataParallel()"):
                return original(*args, **kwargs)
        finally:
            here.add("collective", number, start, time.time_ns() // 1000 - start)

    setattr(module, name, together)


def _watch_buffers(ddp: Any) -> None:
    original = ddp._distributed_broadcast_coalesced

    @functools.wraps(original)
    def broadcast(self: Any, tensors: Any, *args: Any, **kwargs: Any) -> Any:
        if not here.on or not tensors:
            return original(self, tensors, *args, **kwargs)
        about = torch_spans.members(self.process_group)
        key = ("buffers", about.get("group"), len(tensors), tensors[0].shape)
        number = here.number(key, lambda: _define("broadcast", "buffers", about, tensors))
        start = time.time_ns() // 1000
        with Waiting("dist.broadcast of DistributedDataParallel"):
            original(self, tensors, *args, **kwargs)
        here.add("collective", number, start, time.time_ns() // 1000 - start)

    ddp._distributed_broadcast_coalesced = broadcast


def _watch_reducer(ddp: Any, world: World) -> None:
    original = ddp._ddp_init_helper

    @functools.wraps(original)
    def make_reducer(self: Any, *args: Any, **kwargs: Any) -> Any:
        own = self.process_group
        watched = _watched(own, world)
        if watched is None:
            return original(self, *args, **kwargs)
        _groups[self] = self.process_group = watched
        try:
            return original(self, *args, **kwargs)
        finally:
            self.process_group = own

    ddp._ddp_init_helper = make_reducer
    if hasattr(ddp, "register_comm_hook"):
        _watch_hooks(ddp)
    if hasattr(ddp, "_pre_forward"):
        _watch_forward(ddp)


def _watch_hooks(ddp: Any) -> None:
    """A hook averages in place of the reducer, which waits for the hook's future all the same."""
    original = ddp.register_comm_hook

    @functools.wraps(original)
    def register_comm_hook(self: Any, state: object, hook: Any) -> None:
        watched = _groups.get(self)
        if watched is None:
            return original(self, state, hook)

        @functools.wraps(hook)
        def seen(state: object, bucket: Any) -> Any:
            return watched.backward.hooked(hook, state, bucket)

        original(self, state, seen)
        if getattr(self, "_comm_hooks", None):
            self._comm_hooks[-1] = (hook, state)  # as it was given, for whoever pickles the model

    ddp.register_comm_hook = register_comm_hook


class Answer:
    """The future of a hook, which is asked like a work."""

    def __init__(self, future: Any) -> None:
        self.is_completed = future.done


def _watch_forward(ddp: Any) -> None:
    """What is open when a forward pass begins has ended, be it by an error."""
    original = ddp._pre_forward

    @functools.wraps(original)
    def pre_forward(self: Any, *args: Any, **kwargs: Any) -> Any:
        if torch_compile.is_compiling():
            return original(self, *args, **kwargs)
        watched = _groups.get(self)
        try:
            return original(self, *args, **kwargs)
        finally:
            if watched is not None:
                watched.backward.settle(final=True)

    ddp._pre_forward = pre_forward


def _watched(group: Any, world: World) -> Any:
    """`group` with its allreduce seen; None if this torch does not offer what that takes."""
    dist: Any = sys.modules["torch.distributed"]
    if type(group) is not dist.ProcessGroup:
        return None  # the user's own kind
    try:
        # A GPU's work goes on after the call; whether passing it on changes anything was not tried.
        if any(group._get_backend(device).name() != "gloo" for device in group._device_types):
            return None
        return _kind(dist)(group, Backward(group, world))
    except (AttributeError, RuntimeError, TypeError, ValueError):
        return None


@functools.cache  # a class per torch; it cannot be made before torch is imported
def _kind(dist: Any) -> Any:
    kinds = dist.ProcessGroup.BackendType

    class Watched(dist.ProcessGroup):
        """A group on the connections of another one."""

        def __init__(self, group: Any, backward: Backward) -> None:
            super().__init__(group.rank(), group.size())
            self._group, self.backward = group, backward
            self._set_group_name(group.group_name)
            self._set_group_desc(group.group_desc)
            for device in group._device_types:
                backend = group._get_backend(device)
                kind = getattr(kinds, backend.name().upper(), kinds.CUSTOM)
                self._register_backend(device, kind, backend)
                self._set_default_backend(kind)

        def allreduce(self, tensors: Any, *args: Any) -> Any:
            return self.backward.allreduce(self._group, tensors, args)

        def broadcast(self, tensors: Any, *args: Any) -> Any:
            return self.backward.broadcast(self._group, tensors, args)

    return Watched


class Backward:
    """The allreduces of a model's gradients: what is begun, and when the pass waits for it.

    The end of one is seen at the next one, or at the end of the pass: nothing may call us from a
    thread of Gloo, see `torch_spans.Follower`.
    """

    def __init__(self, group: Any, world: World) -> None:
        self._world = world
        self._about = torch_spans.members(group)
        self._open: list[tuple[Any, torch_spans.Begun]] = []
        self._waiting: Waiting | None = None
        self._run = ""

    def allreduce(self, group: Any, tensors: Any, args: Any) -> Any:
        """Pass one on, in the thread that computes gradients."""
        self.settle()
        if not here.on:
            return group.allreduce(tensors, *args)
        if not self._open:
            self._call_at_end()
        return self._begin(group.allreduce, "all_reduce", "gradients", tensors, args)

    def broadcast(self, group: Any, tensors: Any, args: Any) -> Any:
        """Pass on what tells the ranks how to put gradients together: it is waited for at once."""
        self.settle(final=True)
        if not here.on:
            return group.broadcast(tensors, *args)
        self._wait("dist.broadcast of DistributedDataParallel")
        return self._begin(group.broadcast, "broadcast", "buckets", tensors, args)

    def hooked(self, hook: Any, state: Any, bucket: Any) -> Any:
        """Call a hook; the collectives in it are seen as others are."""
        self.settle()
        if not here.on:
            return hook(state, bucket)
        if not self._open:
            self._call_at_end()
        self._run = self._world.run
        future = hook(state, bucket)
        self._open.append((Answer(future), torch_spans.Begun("", -1, 0, self._world)))
        return future

    def _begin(self, function: Any, op: str, name: str, tensors: Any, args: Any) -> Any:
        tensor = tensors[0]
        key = ("ddp", op, self._about.get("group"), tensor.shape, tensor.dtype)
        number = here.number(key, lambda: _define(op, name, self._about, tensor))
        self._run = self._world.run
        begun = torch_spans.Begun("", number, time.time_ns() // 1000, self._world)
        work = function(tensors, *args)
        self._open.append((work, begun))
        return work

    def settle(self, final: bool = False) -> None:
        """End what has ended; `final`: all that is open has."""
        if self._run != self._world.run:
            # Left over from a pass that raised, in a cell before.
            self._open, self._waiting = [], None
        if not self._open:
            return
        still = []
        for work, begun in self._open:
            if final or work.is_completed():
                begun.end()
            else:
                still.append((work, begun))
        self._open = still
        waiting = self._waiting
        if waiting is not None and not still:
            self._waiting = None
            waiting.over()

    def _wait(self, what: str) -> None:
        self._waiting = Waiting(what)
        self._waiting.__enter__()

    def _call_at_end(self) -> None:
        """Be told when the gradients are computed, and when they have been averaged."""
        # Refused outside of a backward pass, as in join() for ranks with fewer batches.
        with contextlib.suppress(RuntimeError):
            _engine().queue_callback(self._computed)

    def _computed(self) -> None:
        # DDP's own callback is in the queue by now, and waits for what is open.
        _engine().queue_callback(self._averaged)
        self.settle()
        if self._open:
            self._wait(WHAT)

    def _averaged(self) -> None:
        self.settle(final=True)


def _engine() -> Any:
    torch: Any = sys.modules["torch"]
    return torch.autograd.Variable._execution_engine


def _define(op: str, tensor: str, group: dict[str, Any], given: Any) -> dict[str, Any]:
    about = {"name": f"{op} {tensor}", "op": op, "tensor": tensor, "library": "dist"}
    return about | group | torch_spans.described(given)
