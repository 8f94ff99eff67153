"""torch's collectives on a rank: refused where they would wait for ranks that do not run the cell.

A collective is any public function with a parameter `group`: there are dozens, more with each
release, and all of them wait for the group's ranks.
"""

from __future__ import annotations

import functools
import inspect
import sys
from collections.abc import Callable
from types import FunctionType
from typing import Any

from rankroom.rank.frameworks.torch import (
    torch_compile,
    torch_ddp,
    torch_device,
    torch_internals,
    torch_spans,
    torch_works,
)
from rankroom.rank.import_hooks import when_imported
from rankroom.rank.waiting import Waiting
from rankroom.rank.world import World

_NOT_COLLECTIVE_PREFIXES = (
    "get_",
    "is_",
    "destroy_",
    "supports_",
    "shrink_",
)  # these end or query a group
_PEER_PARAMETERS = {
    "send": "dst", "isend": "dst", "send_object_list": "dst",
    "recv": "src", "irecv": "src", "recv_object_list": "src",
}  # fmt: skip
_GROUP_MAKERS = ("new_group", "new_subgroups", "new_subgroups_by_enumeration", "split_group")
_REMEDY = "Pass a group of these ranks (dist.new_group in a cell on all ranks), or use all ranks."
_DDP_REMEDY = "Run the cell on all ranks, or compute with the model inside: `model.module(…)`."

# Whether the user has made the default group, so that its ranks need not be Rankroom's.
default_is_own = False


def install(world: World, models: Any) -> None:
    """Prepare for the import of modules with collectives; DDP models on the default group are added
    to `models`."""
    when_imported(
        "torch.distributed._functional_collectives",
        lambda module: _guard_functional(module, world),
    )
    when_imported("torch.nn.parallel.distributed", lambda module: _guard_ddp(module, world, models))


def guard(c10d: Any, world: World) -> None:
    """Guard torch.distributed's own functions, in a module that has just been imported."""
    _guard_functions(c10d, world, c10d)
    torch_works.watch_works(c10d, world)
    for name in _GROUP_MAKERS:
        if hasattr(c10d, name):
            setattr(c10d, name, _always(getattr(c10d, name), name, world))
    batch = c10d.batch_isend_irecv

    @functools.wraps(batch)
    def batch_isend_irecv(p2p_op_list: Any) -> Any:
        if world.partial and any(each.peer not in world.present for each in p2p_op_list):
            raise world.refuse("dist.batch_isend_irecv()", _REMEDY)
        works = batch(p2p_op_list)
        device = torch_device.device_of(p2p_op_list[0].tensor) if works else None
        if device is not None:
            torch_works.keep_batch(works, device, world)
        return works

    c10d.batch_isend_irecv = batch_isend_irecv


def revive(model: Any) -> None:
    """Give a DDP model the current default group and a new reducer."""
    before, group = model.process_group, _c10d().GroupMember.WORLD
    model.process_group = group
    if not any(each.requires_grad for each in model.module.parameters()):
        return  # no gradients to reduce, and so no reducer
    # As unpickling a DDP model does: new reducer, new hooks, the same parameters. That does not
    # restore the rest of a reducer's state.
    model._static_graph_delay_allreduce_enqueued = False
    hooks, model._comm_hooks = getattr(model, "_comm_hooks", []), []
    model.__setstate__(model.__getstate__())
    if getattr(model, "mixed_precision", None) is not None:
        model.reducer._set_mixed_precision_param_dtype(model.mixed_precision.param_dtype)
    for hook, state in hooks:
        if getattr(state, "process_group", None) is before:
            state.process_group = group
        _forget_buckets(state)
        model.register_comm_hook(group if state is before else state, hook)


def _forget_buckets(state: Any) -> None:
    """Reset PowerSGD's state, which is kept by bucket: a new reducer has other buckets, and will
    rebuild them once more."""
    for name in ("error_dict", "p_memory_dict", "q_memory_dict"):
        if isinstance(kept := getattr(state, name, None), dict):
            kept.clear()
    if hasattr(state, "error_dict") and hasattr(state, "iter"):
        state.iter = 0  # it reduces uncompressed until buckets are final


def _c10d() -> Any:
    return sys.modules[torch_internals.C10D]


def _guard_functional(module: Any, world: World) -> None:
    _guard_functions(module, world, _c10d())
    original, is_tracing = module.wait_tensor, torch_internals.tracing(module)

    @functools.wraps(original)
    def wait_tensor(tensor: Any) -> Any:
        if torch_compile.is_compiling() or is_tracing():
            return original(tensor)
        return torch_spans.wait_for(original, tensor)

    module.wait_tensor = wait_tensor


def _guard_functions(module: Any, world: World, c10d: Any) -> None:
    is_tracing = torch_internals.tracing(module)
    for name, function in list(vars(module).items()):
        # Not isinstance: torch has objects that warn when their class is queried.
        if type(function) is not FunctionType or name.startswith(("_", *_NOT_COLLECTIVE_PREFIXES)):
            continue
        if function.__module__ != module.__name__ or name in _GROUP_MAKERS:
            continue
        parameters = list(inspect.signature(function).parameters)
        if "group" in parameters:
            guarded = _guarded(function, name, parameters, c10d, world, is_tracing)
            setattr(module, name, guarded)


def _guarded(
    function: Callable[..., Any],
    name: str,
    parameters: list[str],
    c10d: Any,
    world: World,
    is_tracing: Callable[[], bool],
) -> Any:
    position = parameters.index("group")
    timed = torch_spans.Operation(name, parameters, c10d, world)

    @functools.wraps(function)
    def guarded(*args: Any, **kwargs: Any) -> Any:
        if world.partial:
            group = args[position] if len(args) > position else kwargs.get("group")
            waits_for = _members(group, c10d, world)
            if name in _PEER_PARAMETERS and (waits_for or group is None):
                peer = _peer(_PEER_PARAMETERS[name], args, kwargs, c10d)
                waits_for = waits_for if peer is None else {int(peer)}
            if not waits_for <= set(world.present):
                raise world.refuse(f"dist.{name}()", _REMEDY)
        if torch_compile.is_compiling() or is_tracing():
            return function(*args, **kwargs)
        return timed(function, args, kwargs)

    return guarded


def _peer(parameter: str, args: Any, kwargs: Any, c10d: Any) -> Any:
    """Return the rank with which a message is exchanged; None if it may be any."""
    peer = args[1] if len(args) > 1 else kwargs.get(parameter)
    return torch_spans.peer_in_group(parameter, kwargs, c10d) if peer is None else peer


def _always(function: Callable[..., Any], name: str, world: World) -> Any:
    @functools.wraps(function)
    def guarded(*args: Any, **kwargs: Any) -> Any:
        if world.partial and not (default_is_own or _is_for_present(args, kwargs, world)):
            raise world.refuse(f"dist.{name}()", "Make groups in a cell on all ranks.")
        with Waiting(f"dist.{name}"):
            return function(*args, **kwargs)

    return guarded


def _is_for_present(args: Any, kwargs: Any, world: World) -> bool:
    """Return whether a group is made that only its members wait for, and all of them are here."""
    ranks = args[0] if args else kwargs.get("ranks")
    is_local = bool(kwargs.get("use_local_synchronization")) and ranks is not None
    return is_local and set(ranks) <= set(world.present)


def _members(group: Any, c10d: Any, world: World) -> set[int]:
    """Return the ranks of `group`, in any form torch accepts; empty if this rank is not in it, or
    if groups have the numbers of a default group of the user's own."""
    if default_is_own:
        return set()
    if group is None:
        return set(range(world.size)) if c10d.is_initialized() else set()
    if group is c10d.GroupMember.NON_GROUP_MEMBER:
        return set()
    group = torch_spans.object_of(group, c10d)
    if isinstance(group, list):
        return {int(each) for each in group}
    # A destroyed group waits for no rank; torch reports the error.
    is_present = torch_internals.is_present(c10d, group)
    return set(c10d.get_process_group_ranks(group)) if is_present else set()


def _guard_ddp(module: Any, world: World, models: Any) -> None:
    ddp = module.DistributedDataParallel
    initialise, forward, restore = ddp.__init__, ddp.forward, ddp.__setstate__
    signature = inspect.signature(initialise)

    @functools.wraps(initialise)
    def init(self: Any, *args: Any, **kwargs: Any) -> None:
        c10d = _c10d()
        if world.partial:
            given = signature.bind(self, *args, **kwargs).arguments
            group = given.get("process_group")
            group = given.get("device_mesh") if group is None else group
            if not _members(group, c10d, world) <= set(world.present):
                raise world.refuse("DistributedDataParallel()", "Run the cell on all ranks.")
        initialise(self, *args, **kwargs)
        if self.process_group == c10d.GroupMember.WORLD:
            models.add(self)

    @functools.wraps(restore)
    def setstate(self: Any, state: Any) -> None:
        restore(self, state)
        models.add(self)  # a copy, to which torch gives the default group

    @functools.wraps(forward)
    def guarded(self: Any, *args: Any, **kwargs: Any) -> Any:
        if (
            world.partial
            and _synchronises(self)
            and not _members(self.process_group, _c10d(), world) <= set(world.present)
        ):
            raise world.refuse("a DistributedDataParallel model", _DDP_REMEDY)
        return forward(self, *args, **kwargs)

    ddp.__init__, ddp.forward, ddp.__setstate__ = init, guarded, setstate
    torch_ddp.watch(module)


def _synchronises(model: Any) -> bool:
    """Return whether a forward pass, or the backward pass after it, needs the other ranks."""
    torch = sys.modules["torch"]
    backward = torch.is_grad_enabled() and model.require_backward_grad_sync
    return bool(backward or model.will_sync_module_buffers())
