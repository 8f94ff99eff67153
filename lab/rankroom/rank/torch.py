"""torch.distributed on a rank: rendezvous by environment, released and refused like Horovod."""

from __future__ import annotations

import functools
import sys
from types import ModuleType
from typing import Any

from rankroom.rank.imports import when_imported
from rankroom.rank.world import World

_COLLECTIVES = (
    "all_gather", "all_gather_into_tensor", "all_gather_object", "all_reduce", "all_to_all",
    "all_to_all_single", "barrier", "broadcast", "broadcast_object_list", "gather",
    "gather_object", "monitored_barrier", "reduce", "reduce_scatter", "reduce_scatter_tensor",
    "scatter", "scatter_object_list", "new_group",
)  # fmt: skip
_REMEDY = "Pass a group of these ranks (dist.new_group in a cell on all ranks), or use all ranks."


def environment(
    rank: int, size: int, local_rank: int, local_size: int, address: str, port: int, interface: str
) -> dict[str, str]:
    """What `init_process_group()` and DeepSpeed read when no launcher started them."""
    return {
        "RANK": str(rank),
        "WORLD_SIZE": str(size),
        "LOCAL_RANK": str(local_rank),
        "LOCAL_WORLD_SIZE": str(local_size),
        "MASTER_ADDR": address,
        "MASTER_PORT": str(port),
        "GLOO_SOCKET_IFNAME": interface,
    }


def install(world: World) -> None:
    """Prepare for the user's `import torch.distributed`; nothing is imported now."""
    if world.size > 1:
        when_imported("torch.distributed.distributed_c10d", lambda m: _guard(m, world))
        when_imported("torch.nn.parallel.distributed", lambda m: _guard_ddp(m, world))


def release() -> list[str]:
    """Let go of a blocked collective, from any thread: peers see their connection closed."""
    distributed = sys.modules.get("torch.distributed")
    if distributed is None or not distributed.is_available() or not distributed.is_initialized():
        return []
    # For NCCL, destroying waits for the collective that is to be released; aborting does not.
    abort = getattr(distributed.distributed_c10d, "_abort_process_group", None)
    if abort is not None and distributed.get_backend() == "nccl":
        abort()
    else:
        distributed.destroy_process_group()
    return ["torch.distributed"]


def _outside(group: Any, module: Any, world: World) -> bool:
    """True if `group` has members that do not run the present cell."""
    if group is None:
        return True
    try:
        return not set(module.get_process_group_ranks(group)) <= set(world.present)
    except Exception:
        return False


def _guard(module: Any, world: World) -> None:
    for name in _COLLECTIVES:
        if hasattr(module, name):
            setattr(module, name, _guarded(getattr(module, name), name, module, world))
    original = module.init_process_group

    @functools.wraps(original)
    def init_process_group(*args: Any, **kwargs: Any) -> Any:
        explicit = {"world_size", "store", "init_method"} & set(kwargs) or len(args) > 1
        if world.partial and not explicit:
            raise world.refuse("dist.init_process_group()", "Call it in a cell on all ranks.")
        return original(*args, **kwargs)

    module.init_process_group = init_process_group


def _guarded(function: Any, name: str, module: Any, world: World) -> Any:
    @functools.wraps(function)
    def guarded(*args: Any, **kwargs: Any) -> Any:
        if world.partial:
            group = kwargs.get("group")
            if group is None:
                group = next((a for a in args if isinstance(a, module.ProcessGroup)), None)
            if name == "new_group" or _outside(group, module, world):
                raise world.refuse(f"dist.{name}()", _REMEDY)
        return function(*args, **kwargs)

    return guarded


def _guard_ddp(module: ModuleType, world: World) -> None:
    ddp: Any = module.DistributedDataParallel
    forward = ddp.forward

    @functools.wraps(forward)
    def guarded(self: Any, *args: Any, **kwargs: Any) -> Any:
        if world.partial:
            distributed = sys.modules["torch.distributed.distributed_c10d"]
            if _outside(self.process_group, distributed, world):
                raise world.refuse("DistributedDataParallel", "Run the cell on all ranks.")
        return forward(self, *args, **kwargs)

    ddp.forward = guarded
