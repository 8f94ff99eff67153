"""What PyTorch and DeepSpeed keep to themselves, and ranks need: touched here and nowhere else.

A release without one of these names costs what it was for, never the user's own code: a note in the
run says what is missing. `python -m rankroom.rank.frameworks.torch.torch_internals` lists what the
PyTorch that is installed lacks.
"""

from __future__ import annotations

import contextlib
import gc
import importlib
import operator
import sys
from collections.abc import Callable, Iterator, Mapping
from typing import Any

from rankroom.rank.world import ReleasedError
from rankroom.reporting.spans import recorder

C10D = "torch.distributed.distributed_c10d"
DDP = "torch.nn.parallel.distributed"
_GRADIENTS = "the timeline lacks the gradients of DDP"
# Each name, by module, and what is lost without it.
NAMES = {
    C10D: {
        "_world.pg_map": "collectives of groups that are gone are not distinguished",
        "_world.pg_names": "groups have no names, and ranks that are out of step are not noticed",
        "_world.group_count": "after a set-up that failed on some ranks, the next one may hang",
        "_world.pg_coalesce_state": "what begins in a batch on a GPU looks over at once",
        "_resolve_process_group": "collectives inside compiled code name no group",
        "_abort_process_group": "a collective of NCCL is not released",
        "_new_process_group_helper": "a collective of Gloo is not released",
        "BackendConfig": "a group is kept where another backend is asked for",
        "ProcessGroup._get_sequence_number_for_group": "ranks that are out of step are not noticed",
        "ProcessGroup._device_types": _GRADIENTS,
        "ProcessGroup._get_backend": _GRADIENTS,
        "ProcessGroup._set_group_name": _GRADIENTS,
        "ProcessGroup._set_group_desc": _GRADIENTS,
        "ProcessGroup._register_backend": _GRADIENTS,
        "ProcessGroup._set_default_backend": _GRADIENTS,
    },
    DDP: {
        "DistributedDataParallel._ddp_init_helper": _GRADIENTS,
        "DistributedDataParallel._distributed_broadcast_coalesced": (
            "the timeline lacks the buffers of DDP"
        ),
        "_verify_param_shape_across_processes": "the timeline lacks the making of DDP models",
        "_sync_module_states": "the timeline lacks the making of DDP models",
    },
    "torch.autograd": {
        "_profiler_enabled": "--profile may end a profiler of your own",
    },
}


def has(module: Any, name: str) -> bool:
    """Whether a module has a name of NAMES; where it has not, a note says what is lost."""
    try:
        operator.attrgetter(name)(module)
    except AttributeError:
        lost = NAMES[module.__name__][name]
        recorder.note(LACKS.format(version=_version(), name=f"{module.__name__}.{name}", lost=lost))
        return False
    return True


def patch(module: Any, name: str, wrap: Callable[[Any], Any]) -> None:
    """Put `wrap(original)` in place of a name of NAMES, if there is such a thing."""
    if has(module, name):
        owner, _, own = name.rpartition(".")
        where = operator.attrgetter(owner)(module) if owner else module
        setattr(where, own, wrap(getattr(where, own)))


def group_names(c10d: Any) -> Mapping[Any, str]:
    """The present groups of this rank, and what torch calls them."""
    names: Mapping[Any, str] = c10d._world.pg_names if has(c10d, "_world.pg_names") else {}
    return names


def count_groups_anew(c10d: Any) -> None:
    """Have the first group have the same name on all ranks, where a set-up failed on some only."""
    if has(c10d, "_world.group_count"):
        c10d._world.group_count = 0


def is_present(c10d: Any, group: Any) -> bool:
    """Whether a group of this rank has not been destroyed."""
    return group in c10d._world.pg_map if has(c10d, "_world.pg_map") else group is not None


def resolved(c10d: Any, name: str) -> Any:
    """The group that compiled code knows by a name; that of all ranks if it cannot be found."""
    if has(c10d, "_resolve_process_group"):
        return c10d._resolve_process_group(name)
    return c10d.GroupMember.WORLD


def collectives_so_far(c10d: Any, group: Any) -> int:
    """How many collectives a group has seen; 0 if it does not count them."""
    return counted(c10d, group) or 0


def counted(c10d: Any, group: Any) -> int | None:
    """The same; None if it does not count them."""
    if has(c10d, "ProcessGroup._get_sequence_number_for_group"):
        try:
            return int(group._get_sequence_number_for_group())
        except ReleasedError:  # a cell that ends in here
            raise
        except RuntimeError:
            pass
    return None


def is_coalescing(c10d: Any) -> bool:
    """Whether collectives are only taken down now, and begin together later."""
    return has(c10d, "_world.pg_coalesce_state") and bool(c10d._world.pg_coalesce_state)


def aborts(c10d: Any) -> bool:
    """Whether NCCL can be made to give up what runs on the device."""
    return has(c10d, "_abort_process_group")


def abort(c10d: Any) -> None:
    """Have NCCL give up what runs on the device; all groups are gone then."""
    if aborts(c10d):
        with contextlib.suppress(RuntimeError, ValueError, AssertionError):  # they are gone already
            # By its name: in some releases None is that group only, which they do not forget then.
            c10d._abort_process_group(c10d.GroupMember.WORLD)


def backends_asked_for(c10d: Any, backend: str | None) -> dict[str, str]:
    """What `init_process_group(backend)` gives each kind of device; empty where it may choose.

    Raises ValueError for what is no backend.
    """
    if backend is None or not has(c10d, "BackendConfig"):
        return {}
    return _by_device(c10d.BackendConfig(c10d.Backend(backend)))


def backends_in_use(c10d: Any) -> dict[str, str]:
    """What each kind of device has in the default group."""
    return _by_device(c10d.get_backend_config())


def uses_nccl(c10d: Any) -> bool:
    """Whether the default group has NCCL; where PyTorch chose that, `get_backend` does not say."""
    with contextlib.suppress(AttributeError, ValueError):  # the group is another's
        return "nccl" in backends_in_use(c10d).values()
    return False


def is_on_nccl(c10d: Any, group: Any) -> bool:
    """Whether a group, None for the default one, has NCCL."""
    try:
        found = backends(c10d, group or c10d.GroupMember.WORLD).values()
        return any(each.name() == "nccl" for each in found)
    except ReleasedError:
        raise
    except (AttributeError, RuntimeError, TypeError, ValueError):  # no group that is there
        return False


def _by_device(config: Any) -> dict[str, str]:
    pairs = (each.partition(":") for each in str(config).split(","))
    return {device: name for device, _, name in pairs}


def backends(c10d: Any, group: Any) -> dict[Any, Any]:
    """What carries a group's collectives, by device; empty if that cannot be found out."""
    if not (has(c10d, "ProcessGroup._device_types") and has(c10d, "ProcessGroup._get_backend")):
        return {}
    return {device: group._get_backend(device) for device in group._device_types}


def put_on(c10d: Any, group: Any, own: Any) -> None:
    """Have `group`, made in Python, be carried by what carries `own`. Raises AttributeError."""
    kinds = c10d.ProcessGroup.BackendType
    group._set_group_name(own.group_name)
    group._set_group_desc(own.group_desc)
    for device, backend in backends(c10d, own).items():
        kind = getattr(kinds, backend.name().upper(), kinds.CUSTOM)
        group._register_backend(device, kind, backend)
        group._set_default_backend(kind)


def tracing(module: Any) -> Callable[[], bool]:
    """What says whether functional collectives, those of `module`, are called to be compiled.

    Before PyTorch 2.13, `torch.compiler.is_compiling` is False for those of a DTensor.
    """
    return getattr(module, "_are_we_tracing", bool)


def autograd_is_compiled() -> bool:
    """Whether backward passes are traced now, and what is hooked into them with them."""
    module = sys.modules.get("torch._dynamo.compiled_autograd")
    # The second one is what some releases had.
    names = "compiled_autograd_enabled", "compiled_autograd_enabled_count"
    return any(getattr(module, name, False) for name in names)


def profiler_is_on(torch: Any) -> bool:
    """Whether a profiler of the user's own is on."""
    return has(torch.autograd, "_profiler_enabled") and bool(torch.autograd._profiler_enabled())


def keep_hook(ddp: Any, hook: Any, state: object) -> None:
    """The hook that a pickled DDP model takes along is the user's own."""
    if getattr(ddp, "_comm_hooks", None):
        ddp._comm_hooks[-1] = (hook, state)


def groups_are_kept() -> bool:
    """Whether something here keeps the default group and cannot be given a new one: a model of
    FSDP, or DeepSpeed. That FSDP is imported says nothing: PyTorch's own optimizers do that."""
    deepspeed: Any = sys.modules.get("deepspeed.comm.comm")
    if getattr(deepspeed, "cdb", None) is not None:
        return True
    fsdp = sys.modules.get("torch.distributed.fsdp")
    names = "FullyShardedDataParallel", "FSDPModule"
    kinds = tuple(getattr(fsdp, name) for name in names if hasattr(fsdp, name))
    return any(issubclass(kind, kinds) for kind in set(map(type, gc.get_objects())))


def forget_groups_of_deepspeed() -> None:
    """DeepSpeed keeps groups of its own; without them it makes new ones in deepspeed.initialize."""
    groups = sys.modules.get("deepspeed.utils.groups")
    comm: Any = sys.modules.get("deepspeed.comm.comm")
    if groups is None or comm is None:
        return
    comm.cdb = None
    for name, value in list(vars(groups).items()):
        if name.startswith("_") and "GROUP" in name:
            setattr(groups, name, {} if isinstance(value, dict) else None)


def lacking() -> Iterator[str]:
    """What the PyTorch that is installed lacks, one sentence each."""
    for module, names in NAMES.items():
        found = importlib.import_module(module)
        for name, lost in names.items():
            try:
                operator.attrgetter(name)(found)
            except AttributeError:
                yield LACKS.format(version=_version(), name=f"{module}.{name}", lost=lost)


def _version() -> str:
    return str(getattr(sys.modules.get("torch"), "__version__", "?"))


LACKS = "this PyTorch ({version}) has no {name}: {lost}"

if __name__ == "__main__":
    found = list(lacking())
    print("\n".join(found) or "nothing is missing")
    sys.exit(bool(found))
