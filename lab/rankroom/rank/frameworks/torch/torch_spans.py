"""Record torch.distributed's collectives as spans, from this rank's call to the operation's end.

The n-th `all_reduce` of a rank in a group is also the n-th of every other rank, so it is named by
its number. An operation begun with `async_op=True` ends when its work does; for a message, that is
known at `wait()`. NCCL's operations run on the GPU: a span is the time that one takes there or, if
it was begun with `async_op=True`, the time that the GPU waits for it.
"""

from __future__ import annotations

import sys
import time
import weakref
from collections import Counter
from collections.abc import Callable
from typing import Any

from rankroom.rank.frameworks.torch import (
    torch_connecting,
    torch_device,
    torch_internals,
    torch_works,
)
from rankroom.rank.frameworks.torch.torch_works import PendingCollective
from rankroom.rank.waiting import Waiting
from rankroom.rank.world import World
from rankroom.reporting import call_line
from rankroom.reporting.spans import recorder

MAX_NUMBERED_CALLS = 500  # calls of an operation in a group; later ones share a name
MAX_SUMMED_TENSORS = 64  # tensors of a list of which the sizes are added up

# The parameters that may hold what a rank contributes, in order of preference.
_INPUT_PARAMETERS = (
    "input", "input_tensor", "input_list", "input_tensor_list", "inputs", "tensor", "tensors",
    "self",
)  # fmt: skip
_SENDING = {"send": "send", "isend": "send", "send_object_list": "send_objects"}
_RECEIVING = {"recv": "send", "irecv": "send", "recv_object_list": "send_objects"}


_counts: Counter[Any] = Counter()  # of calls in the current run
_run = ""
# By the memory of their results, which are waited for: functional collectives.
_results: dict[int, PendingCollective] = {}


class Operation:
    """One of torch.distributed's functions, whose calls are named and timed."""

    def __init__(self, name: str, parameters: list[str], c10d: Any, world: World) -> None:
        self.name = _SENDING.get(name) or _RECEIVING.get(name) or name
        self._called = name
        self._peer = "dst" if name in _SENDING else "src" if name in _RECEIVING else ""
        self._group_at = parameters.index("group")
        given = [each for each in _INPUT_PARAMETERS if each in parameters]
        self._tensor = given[0] if given else ""
        self._tensor_at = parameters.index(self._tensor) if given else 0
        self._c10d, self._world = c10d, world

    def __call__(self, function: Callable[..., Any], args: Any, kwargs: Any) -> Any:
        """Call `function`, and record the call as a span."""
        if torch_works.thread.inside or not recorder.on:
            return function(*args, **kwargs)
        what, number, tensor, among = self._number(args, kwargs)
        device = torch_device.device_of(tensor) if self._tensor else self._device(args, kwargs)
        key = (among, device is None)
        followed: torch_device.Followed | None = None
        result = None
        start = time.time_ns() // 1000
        try:
            torch_works.thread.inside = True
            if device is not None and number >= 0:
                followed = self._begin(device)
            with Waiting(what):
                if key in torch_connecting.connected:
                    result = function(*args, **kwargs)
                else:
                    result = torch_connecting.first(key, function, args, kwargs)
        finally:
            torch_works.thread.inside = False
            goes_on = result is not None and self._goes_on(result)
            if followed is not None and goes_on:
                torch_device.drop(followed)
            elif followed is not None:
                torch_device.end(followed, what, number)
            elif number >= 0 and result is None:
                recorder.add("collective", number, start, time.time_ns() // 1000 - start)
        if result is not None and (followed is None or goes_on):
            self._later(result, PendingCollective(what, number, start, self._world, device), tensor)
        return result

    def _begin(self, device: Any) -> torch_device.Followed | None:
        # A coalesced operation begins later, and is followed when it is waited for.
        is_coalescing = torch_internals.is_coalescing(self._c10d)
        return None if is_coalescing else torch_device.begin(device)

    def _device(self, args: Any, kwargs: Any) -> Any:
        """Return the GPU that an operation without a tensor uses, if its group uses NCCL."""
        device = torch_device.current()
        if device is None:
            return None
        at = self._group_at
        group = object_of(args[at] if len(args) > at else kwargs.get("group"), self._c10d)
        return device if torch_internals.is_on_nccl(self._c10d, group) else None

    def _goes_on(self, result: Any) -> bool:
        """Return whether the operation may still be running when its call has returned."""
        return issubclass(type(result), self._c10d.Work) or _element(result) is not None

    def _later(self, result: Any, begun: PendingCollective, tensor: Any) -> None:
        """Handle an operation that may still be running, as its call has returned."""
        if type(result) is self._c10d.Work:
            # A message counts as done when it is waited for.
            torch_works.keep(result, begun, not self._peer and _is_on_cpu(tensor))
            return
        element = _element(result)
        if element is None:
            begun.end()
        else:
            _results[_memory(element)] = begun
            begun.has_result = _existence(element)

    def _number(self, args: Any, kwargs: Any) -> tuple[str, int, Any, tuple[str | None, str]]:
        """Return the call's name for users, the number of its span's name (-1: do not record it),
        its tensor, and whom it involves: the group's name, and a message's sender and receiver."""
        global _run
        if _run != self._world.run:
            _run = self._world.run
            _counts.clear()
            _results.clear()
        at = self._group_at
        group = args[at] if len(args) > at else kwargs.get("group")
        name = None if group is None else _resolved(group, self._c10d)
        peers = self._peers(args, kwargs) if self._peer else ""
        key = (self.name, name, peers)
        count = _counts[key] = _counts[key] + 1
        what = f"dist.{self._called} #{count}"
        if name == "":
            return what, -1, None, (name, peers)
        tensor = None  # as where objects of the user are sent, which may be of any kind
        if self._tensor:
            at = self._tensor_at
            tensor = args[at] if len(args) > at else kwargs.get(self._tensor)
        if count <= MAX_NUMBERED_CALLS:
            number = recorder.number(
                (self, key, count), lambda: self._define(group, peers, count, tensor)
            )
        else:
            size = _bytes(tensor)
            number = recorder.number(
                (self, key, "of", size), lambda: self._define(group, peers, 0, tensor)
            )
        return what, number, tensor, (name, peers)

    def _peers(self, args: Any, kwargs: Any) -> str:
        """Return a message's sender and receiver, in the same words on both: `0→1`."""
        peer = args[1] if len(args) > 1 else kwargs.get(self._peer)
        if peer is None:
            peer = peer_in_group(self._peer, kwargs, self._c10d)
        other = peer if isinstance(peer, int) else "?"
        mine = self._world.rank
        return f"{mine}→{other}" if self._peer == "dst" else f"{other}→{mine}"

    def _define(self, group: Any, peers: str, count: int, tensor: Any) -> dict[str, Any]:
        label = f"#{count}" if count else f"after #{MAX_NUMBERED_CALLS}"
        label = f"{peers} {label}" if peers else label
        about: dict[str, Any] = {
            "name": f"{self.name} {label}",
            "op": self.name,
            "tensor": label,
            "library": "dist",
        }
        if group is not None:
            about |= members(group)
        if peers:
            about["ranks"] = sorted(int(each) for each in peers.split("→") if each != "?")
        about |= described(tensor)
        line = call_line.cell_line()
        return about | {"line": line} if line and count else about


def peer_in_group(parameter: str, kwargs: Any, c10d: Any) -> Any:
    """Return the rank of a peer given by its rank in the group, as batch_isend_irecv does; None if
    it is not given. `parameter` is `dst` or `src`."""
    place, group = kwargs.get(f"group_{parameter}"), kwargs.get("group")
    if place is None or group is None:
        return place
    return c10d.get_global_rank(object_of(group, c10d), place)


def _element(result: Any) -> Any:
    """Return the tensor that an AsyncCollectiveTensor, or the last of a list of them, wraps."""
    last = result[-1] if type(result) is list and result else result
    return getattr(last, "elem", None)


def described(tensor: Any) -> dict[str, Any]:
    """Return the fields that describe a tensor, or a list of tensors: bytes, dtype, shape."""
    first = tensor[0] if isinstance(tensor, (list, tuple)) and tensor else tensor
    if not hasattr(first, "element_size"):
        return {}
    about = {"bytes": _bytes(tensor), "dtype": str(first.dtype).removeprefix("torch.")}
    # Tensors of compiled code, and nested ones, may have symbolic sizes.
    if first is tensor and all(type(size) is int for size in tensor.shape):
        about["shape"] = list(tensor.shape)
    return about


def _bytes(tensor: Any) -> int:
    if isinstance(tensor, (list, tuple)):
        return sum(_bytes(each) for each in tensor[:MAX_SUMMED_TENSORS])
    if not hasattr(tensor, "element_size"):
        return 0
    count = tensor.numel()
    # Converting a symbolic size would make torch compile the code for this number only.
    return int(count * tensor.element_size()) if type(count) is int else 0


def _resolved(group: Any, c10d: Any) -> str | None:
    """Return the name of a group: None for all ranks, "" if this rank is not in it."""
    if group is c10d.GroupMember.NON_GROUP_MEMBER:
        return ""
    group = object_of(group, c10d)
    if isinstance(group, list):
        return "ranks " + ", ".join(map(str, group))
    if group is c10d.GroupMember.WORLD:
        return None
    return str(torch_internals.group_names(c10d).get(group, ""))


def object_of(group: Any, c10d: Any) -> Any:
    """Convert a group, in any form torch accepts, to torch's own object or a list of ranks."""
    if isinstance(group, str):
        return torch_internals.resolved(c10d, group)
    if isinstance(group, tuple):
        return group[0].get_group(group[1])
    return group.get_group() if hasattr(group, "get_group") else group


def members(group: Any) -> dict[str, Any]:
    """Return the fields that name a group and its ranks; empty for the group of all ranks."""
    c10d: Any = sys.modules[torch_internals.C10D]
    name = _resolved(group, c10d)
    if not name:
        return {}
    if not isinstance(group, list):
        group = c10d.get_process_group_ranks(object_of(group, c10d))
    return {"group": name, "ranks": sorted(int(rank) for rank in group)}


def _is_on_cpu(tensor: Any) -> bool:
    while isinstance(tensor, (list, tuple)) and tensor:
        tensor = tensor[0]
    return bool(getattr(tensor, "is_cpu", False))


def _memory(tensor: Any) -> int:
    """Return what a tensor and its views have in common: torch may wait for a view of a result."""
    try:
        return tensor.untyped_storage().data_ptr() or id(tensor)
    except (AttributeError, RuntimeError):  # such as a tensor without data
        return id(tensor)


def _existence(tensor: Any) -> Callable[[], bool]:
    """Return a function that returns whether the tensor, or a view of it, still exists."""
    try:
        memory = sys.modules["torch"].multiprocessing.reductions.StorageWeakRef(
            tensor.untyped_storage()
        )
    except (AttributeError, KeyError, RuntimeError):
        reference = weakref.ref(tensor)
        return lambda: reference() is not None
    return lambda: not memory.expired()


def is_awaited() -> bool:
    """Return whether a functional collective on a GPU has a live result not yet waited for."""
    pending = [each for each in list(_results.values()) if each.is_present]
    return any(each.device is not None and each.has_result() for each in pending)


def wait_for(original: Callable[[Any], Any], tensor: Any) -> Any:
    """Wait for the result of a functional collective, as torch does when the result is used."""
    begun = _results.pop(_memory(tensor), None)
    if begun is None or not begun.has_result():  # other memory may have had that address before
        return original(tensor)
    with begun.waited_for(), Waiting(begun.what):
        return original(tensor)
