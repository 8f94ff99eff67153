"""Private names of PyTorch and DeepSpeed that ranks need, used here and nowhere else.

If a release lacks one of them, only the feature that needs it is lost, never the user's own code:
a note in the run says what is missing.
`python -m rankroom.rank.frameworks.torch.torch_internals` lists what the installed PyTorch lacks.
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
DDP_MODULE = "torch.nn.parallel.distributed"
_NO_GRADIENTS = "the timeline lacks the gradients of DDP"
# Each name, by module, and what is lost without it.
PRIVATE_NAMES = {
    C10D: {
        "_world.pg_map": "collectives of groups that are gone are not distinguished",
        "_world.pg_names": "groups have no names, and ranks that are out of step are not noticed",
        "_world.group_count": "after initialization failed on some ranks, the next one may hang",
        "_world.pg_coalesce_state": "operations begun in a batch on a GPU appear to end at once",
        "_resolve_process_group": "collectives inside compiled code name no group",
        "_abort_process_group": "a collective of NCCL is not released",
        "_new_process_group_helper": "a collective of Gloo is not released",
        "BackendConfig": "a group is kept even if another backend is requested",
        "ProcessGroup._get_sequence_number_for_group": "ranks that are out of step are not noticed",
        "ProcessGroup._device_types": _NO_GRADIENTS,
        "ProcessGroup._get_backend": _NO_GRADIENTS,
        "ProcessGroup._set_group_name": _NO_GRADIENTS,
        "ProcessGroup._set_group_desc": _NO_GRADIENTS,
        "ProcessGroup._register_backend": _NO_GRADIENTS,
        "ProcessGroup._set_default_backend": _NO_GRADIENTS,
    },
    DDP_MODULE: {
        "DistributedDataParallel._ddp_init_helper": _NO_GRADIENTS,
        "DistributedDataParallel._distributed_broadcast_coalesced": (
            "the timeline lacks the buffers of DDP"
        ),
        "_verify_param_shape_across_processes": "the timeline lacks the construction of DDP models",
        "_sync_module_states": "the timeline lacks the construction of DDP models",
    },
    "torch.autograd": {
        "_profiler_enabled": "--profile may end a profiler of your own",
    },
}


def has(module: Any, name: str) -> bool:
    """Return whether a module has a name of PRIVATE_NAMES; if not, a note says what is lost."""
    try:
        operator.attrgetter(name)(module)
    except AttributeError:
        lost = PRIVATE_NAMES[module.__name__][name]
        recorder.note(
            NAME_MISSING.format(version=_version(), name=f"{module.__name__}.{name}", lost=lost)
        )
        return False
    return True


def patch(module: Any, name: str, wrap: Callable[[Any], Any]) -> None:
    """Replace a name of PRIVATE_NAMES by `wrap(original)`, if the module has it."""
    if has(module, name):
        owner, _, own = name.rpartition(".")
        where = operator.attrgetter(owner)(module) if owner else module
        setattr(where, own, wrap(getattr(where, own)))


def group_names(c10d: Any) -> Mapping[Any, str]:
    """Return the current groups of this rank, with the names that torch gives them."""
    names: Mapping[Any, str] = c10d._world.pg_names if has(c10d, "_world.pg_names") else {}
    return names


def count_groups_anew(c10d: Any) -> None:
    """Restart the numbering of groups: it differs if initialization failed on some ranks only."""
    if has(c10d, "_world.group_count"):
        c10d._world.group_count = 0


def is_present(c10d: Any, group: Any) -> bool:
    """Return whether a group of this rank exists, and has not been destroyed."""
    return group in c10d._world.pg_map if has(c10d, "_world.pg_map") else group is not None


def resolved(c10d: Any, name: str) -> Any:
    """Return the group that compiled code knows by a name; if unknown, that of all ranks."""
    if has(c10d, "_resolve_process_group"):
        return c10d._resolve_process_group(name)
    return c10d.GroupMember.WORLD


def collectives_so_far(c10d: Any, group: Any) -> int:
    """Return how many collectives a group has had; 0 if it does not count them."""
    return counted(c10d, group) or 0


def counted(c10d: Any, group: Any) -> int | None:
    """Return how many collectives a group has had; None if it does not count them."""
    if has(c10d, "ProcessGroup._get_sequence_number_for_group"):
        try:
            return int(group._get_sequence_number_for_group())
        except ReleasedError:  # which ends the cell
            raise
        except RuntimeError:
            pass
    return None


def is_coalescing(c10d: Any) -> bool:
    """Return whether collectives are being coalesced: collected now, and begun together later."""
    return has(c10d, "_world.pg_coalesce_state") and bool(c10d._world.pg_coalesce_state)


def aborts(c10d: Any) -> bool:
    """Return whether NCCL can abort what is running on the GPU."""
    return has(c10d, "_abort_process_group")


def abort(c10d: Any) -> None:
    """Abort what NCCL runs on the GPU, which destroys all groups."""
    if aborts(c10d):
        with contextlib.suppress(RuntimeError, ValueError, AssertionError):  # they are gone already
            # WORLD, not None: in some releases, None aborts only this group, and does not drop it.
            c10d._abort_process_group(c10d.GroupMember.WORLD)


def backends_asked_for(c10d: Any, backend: str | None) -> dict[str, str]:
    """Return the backend by kind of device that `init_process_group(backend)` asks for.

    Empty if torch may choose. Raises ValueError if `backend` is not valid.
    """
    if backend is None or not has(c10d, "BackendConfig"):
        return {}
    return _by_device(c10d.BackendConfig(c10d.Backend(backend)))


def backends_in_use(c10d: Any) -> dict[str, str]:
    """Return the default group's backend by kind of device."""
    return _by_device(c10d.get_backend_config())


def uses_nccl(c10d: Any) -> bool:
    """Return whether the default group uses NCCL; `get_backend` is silent if PyTorch chose it."""
    with contextlib.suppress(AttributeError, ValueError):  # this rank is not in the group
        return "nccl" in backends_in_use(c10d).values()
    return False


def is_on_nccl(c10d: Any, group: Any) -> bool:
    """Return whether a group uses NCCL; None is the default group."""
    try:
        found = backends(c10d, group or c10d.GroupMember.WORLD).values()
        return any(each.name() == "nccl" for each in found)
    except ReleasedError:
        raise
    except (AttributeError, RuntimeError, TypeError, ValueError):  # there is no such group
        return False


def _by_device(config: Any) -> dict[str, str]:
    pairs = (each.partition(":") for each in str(config).split(","))
    return {device: name for device, _, name in pairs}


def backends(c10d: Any, group: Any) -> dict[Any, Any]:
    """Return the backends of a group by device; empty if this torch does not provide them."""
    if not (has(c10d, "ProcessGroup._device_types") and has(c10d, "ProcessGroup._get_backend")):
        return {}
    return {device: group._get_backend(device) for device in group._device_types}


def put_on(c10d: Any, group: Any, own: Any) -> None:
    """Make `group`, a Python object, use the backends of `own`. Raises AttributeError, with a note,
    if this torch cannot."""
    needs = "_set_group_name", "_set_group_desc", "_register_backend", "_set_default_backend"
    for name in needs:
        if not has(c10d, f"ProcessGroup.{name}"):
            raise AttributeError(name)
    kinds = c10d.ProcessGroup.BackendType
    group._set_group_name(own.group_name)
    group._set_group_desc(own.group_desc)
    for device, backend in backends(c10d, own).items():
        kind = getattr(kinds, backend.name().upper(), kinds.CUSTOM)
        group._register_backend(device, kind, backend)
        group._set_default_backend(kind)


def tracing(module: Any) -> Callable[[], bool]:
    """Return a function that tells whether functional collectives, of `module`, are being traced.

    Before PyTorch 2.13, `torch.compiler.is_compiling` is False for those of a DTensor.
    """
    return getattr(module, "_are_we_tracing", bool)


def autograd_is_compiled() -> bool:
    """Return whether backward passes are traced now, and their hooks with them."""
    module = sys.modules.get("torch._dynamo.compiled_autograd")
    # The second one is of some earlier releases.
    names = "compiled_autograd_enabled", "compiled_autograd_enabled_count"
    return any(getattr(module, name, False) for name in names)


def profiler_is_on(torch: Any) -> bool:
    """Return whether a profiler of the user's own is running."""
    return has(torch.autograd, "_profiler_enabled") and bool(torch.autograd._profiler_enabled())


def keep_hook(ddp: Any, hook: Any, state: object) -> None:
    """Make a pickled DDP model contain the user's own hook, not its wrapper."""
    if getattr(ddp, "_comm_hooks", None):
        ddp._comm_hooks[-1] = (hook, state)


def groups_are_kept() -> bool:
    """Return whether something holds the default group and cannot be given a new one: an FSDP
    model, or DeepSpeed. FSDP's module proves nothing, as PyTorch's own optimizers import it."""
    deepspeed: Any = sys.modules.get("deepspeed.comm.comm")
    if getattr(deepspeed, "cdb", None) is not None:
        return True
    fsdp = sys.modules.get("torch.distributed.fsdp")
    names = "FullyShardedDataParallel", "FSDPModule"
    kinds = tuple(getattr(fsdp, name) for name in names if hasattr(fsdp, name))
    return any(issubclass(kind, kinds) for kind in set(map(type, gc.get_objects())))


def forget_groups_of_deepspeed() -> None:
    """Clear DeepSpeed's own groups, so that deepspeed.initialize makes new ones."""
    groups = sys.modules.get("deepspeed.utils.groups")
    comm: Any = sys.modules.get("deepspeed.comm.comm")
    if groups is None or comm is None:
        return
    comm.cdb = None
    for name, value in list(vars(groups).items()):
        if name.startswith("_") and "GROUP" in name:
            setattr(groups, name, {} if isinstance(value, dict) else None)


def lacking() -> Iterator[str]:
    """Yield a sentence for each of PRIVATE_NAMES that the installed PyTorch lacks."""
    for module, names in PRIVATE_NAMES.items():
        found = importlib.import_module(module)
        for name, lost in names.items():
            try:
                operator.attrgetter(name)(found)
            except AttributeError:
                yield NAME_MISSING.format(version=_version(), name=f"{module}.{name}", lost=lost)


def _version() -> str:
    return str(getattr(sys.modules.get("torch"), "__version__", "?"))


NAME_MISSING = "this PyTorch ({version}) has no {name}: {lost}"

if __name__ == "__main__":
    found = list(lacking())
    print("\n".join(found) or "nothing is missing")
    sys.exit(bool(found))
