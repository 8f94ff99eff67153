"""The process group that a DDP model's reducer is given: it sees each allreduce that passes."""

from __future__ import annotations

import contextlib
import functools
import sys
import time
from typing import Any

from rankroom.rank.frameworks.torch import torch_internals, torch_spans, torch_works
from rankroom.rank.spans import recorder
from rankroom.rank.waiting import Waiting
from rankroom.rank.world import World

WHAT = "dist.all_reduce of DistributedDataParallel"


def watched_group(group: Any, world: World) -> Any:
    """`group` with its allreduce seen; None if this torch does not offer what that takes."""
    dist: Any = sys.modules["torch.distributed"]
    if type(group) is not dist.ProcessGroup:
        return None  # the user's own kind
    try:
        # A GPU's work goes on after the call; whether passing it on changes anything was not tried.
        carriers = torch_internals.backends(sys.modules[torch_internals.C10D], group).values()
        if not torch_internals.can_follow_backward(sys.modules["torch"]):
            return None
        if not carriers or any(each.name() != "gloo" for each in carriers):
            return None
        return _kind(dist)(group, Backward(group, world))
    except (AttributeError, RuntimeError, TypeError, ValueError):
        return None


@functools.cache  # a class per torch; it cannot be made before torch is imported
def _kind(dist: Any) -> Any:
    class Watched(dist.ProcessGroup):
        """A group on the connections of another one."""

        def __init__(self, group: Any, backward: Backward) -> None:
            super().__init__(group.rank(), group.size())
            self._group, self.backward = group, backward
            torch_internals.put_on(sys.modules[torch_internals.C10D], self, group)

        def allreduce(self, tensors: Any, *args: Any) -> Any:
            return self.backward.allreduce(self._group, tensors, args)

        def broadcast(self, tensors: Any, *args: Any) -> Any:
            return self.backward.broadcast(self._group, tensors, args)

    return Watched


class Answer:
    """The future of a hook, which is asked like a work."""

    def __init__(self, future: Any) -> None:
        self.is_completed = future.done


class Backward:
    """The allreduces of a model's gradients: what is begun, and when the pass waits for it.

    The end of one is seen at the next one, or at the end of the pass: nothing may call us from a
    thread of Gloo, see `torch_works.Follower`.
    """

    def __init__(self, group: Any, world: World) -> None:
        self._world = world
        self._about = torch_spans.members(group)
        self._open: list[tuple[Any, torch_works.Begun]] = []
        self._waiting: Waiting | None = None
        self._run = ""

    def allreduce(self, group: Any, tensors: Any, args: Any) -> Any:
        """Pass one on, in the thread that computes gradients."""
        self.settle()
        if not recorder.on:
            return group.allreduce(tensors, *args)
        if not self._open:
            self._call_at_end()
        return self._begin(group.allreduce, "all_reduce", "gradients", tensors, args)

    def broadcast(self, group: Any, tensors: Any, args: Any) -> Any:
        """Pass on what tells the ranks how to put gradients together: it is waited for at once."""
        self.settle(final=True)
        if not recorder.on:
            return group.broadcast(tensors, *args)
        self._wait("dist.broadcast of DistributedDataParallel")
        return self._begin(group.broadcast, "broadcast", "buckets", tensors, args)

    def hooked(self, hook: Any, state: Any, bucket: Any) -> Any:
        """Call a hook; the collectives in it are seen as others are."""
        self.settle()
        if not recorder.on:
            return hook(state, bucket)
        if not self._open:
            self._call_at_end()
        self._run = self._world.run
        future = hook(state, bucket)
        self._open.append((Answer(future), torch_works.Begun("", -1, 0, self._world)))
        return future

    def _begin(self, function: Any, op: str, name: str, tensors: Any, args: Any) -> Any:
        tensor = tensors[0]
        key = ("ddp", op, self._about.get("group"), tensor.shape, tensor.dtype)
        number = recorder.number(key, lambda: described(op, name, self._about, tensor))
        self._run = self._world.run
        begun = torch_works.Begun("", number, time.time_ns() // 1000, self._world)
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
            torch_internals.after_backward(sys.modules["torch"], self._computed)

    def _computed(self) -> None:
        # DDP's own callback is in the queue by now, and waits for what is open.
        torch_internals.after_backward(sys.modules["torch"], self._averaged)
        self.settle()
        if self._open:
            self._wait(WHAT)

    def _averaged(self) -> None:
        self.settle(final=True)


def described(op: str, tensor: str, group: dict[str, Any], given: Any) -> dict[str, Any]:
    """The name of spans of a model's own collective."""
    about = {"name": f"{op} {tensor}", "op": op, "tensor": tensor, "library": "dist"}
    return about | group | torch_spans.described(given)
