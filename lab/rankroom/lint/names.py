"""The names by which cells call collectives, and by which they tell their rank."""

from __future__ import annotations

import ast
import re

_HOROVOD_COLLECTIVES = re.compile(
    r"(grouped_)?(allreduce|allgather|broadcast|alltoall|reducescatter)(_async)?_?"
    r"|sparse_allreduce_async|join|barrier|init|shutdown|add_process_set|remove_process_set"
    r"|broadcast_(object|object_fn|parameters|optimizer_state|variables|global_variables)"
    r"|allgather_object"
)
# The position of each one's argument for its group. Sends and receives are for two ranks by design.
_TORCH_GROUP_POSITIONS = {
    "all_gather": 2, "all_gather_coalesced": 2, "all_gather_into_tensor": 2,
    "all_gather_object": 2, "all_gather_single": 2, "all_reduce": 2, "all_reduce_coalesced": 2,
    "all_to_all": 2, "all_to_all_single": 4, "barrier": 0, "broadcast": 2,
    "broadcast_object_list": 2, "gather": 3, "gather_object": 3, "init_process_group": None,
    "monitored_barrier": 0, "new_group": None, "new_subgroups": None,
    "new_subgroups_by_enumeration": None, "reduce": 3, "reduce_scatter": 3,
    "reduce_scatter_single": 3, "reduce_scatter_tensor": 3, "scatter": 3, "scatter_object_list": 3,
}  # fmt: skip
# Collectives that ranks in hvd.join() take part in, so that other ranks may do more of them.
JOINABLE_COLLECTIVES = re.compile(
    r"hvd\.(grouped_)?allreduce|optimizer\.\w+|tape\.gradient|model\.fit"
)
RANK_NAME = re.compile(r"(?i)(my_?|global_?|world_?|local_?|dist_?|ddp_?|hvd_?)?rank(_?id)?")
MAIN_RANK_NAME = re.compile(
    r"(?i)(self\._?)?_?(is_?)(local_|world_|global_)?"
    r"(main|master|root|chief|primary|coordinator|leader|zero|rank_?0|rank_?zero|first_?rank)"
    r"(_?(process|proc|rank|worker|node))?"
    r"|(local_)?main_(process|rank)"
)
SIZE_NAME = re.compile(r"(?i)size|n_?ranks|num_ranks|world_?size")
_RANK_VARIABLE = re.compile(
    r"(LOCAL_|OMPI_COMM_WORLD_|PMI_|HOROVOD_|SLURM_)?(LOCAL_)?(RANK|PROCID)"
)
# Objects whose attribute `rank` is that of this process, not of one of many objects in a loop.
_RANK_OWNERS = {
    "self", "args", "cfg", "config", "conf", "opt", "opts", "params", "hparams", "trainer", "ctx",
    "context", "accelerator", "engine", "env", "state", "FLAGS", "model_engine", "strategy", "comm",
}  # fmt: skip


def known_before(name: str) -> str | None:
    """Return what a name that the cell does not bind stands for, by custom: an import of an earlier
    cell."""
    if name.startswith("hvd") or name.endswith("hvd"):
        return "horovod.torch"
    return {
        "horovod": "horovod", "torch": "torch", "dist": "torch.distributed", "os": "os",
        "DDP": "torch.nn.parallel.DistributedDataParallel",
        "DistributedDataParallel": "torch.nn.parallel.DistributedDataParallel",
    }.get(name)  # fmt: skip


def operation(dotted: str) -> str | None:
    """Return the collective that `dotted` names, the same for its variants; None if it is none."""
    library, _, name = dotted.rpartition(".")
    if library.split(".")[0] == "horovod" and _HOROVOD_COLLECTIVES.fullmatch(name):
        return f"hvd.{name.rstrip('_').removesuffix('_async')}"
    if library.startswith("torch.distributed") and name in _TORCH_GROUP_POSITIONS:
        return f"dist.{name}"
    if dotted.startswith("torch.nn.parallel") and name == "DistributedDataParallel":
        return "DistributedDataParallel"
    return None


def is_in_place(dotted: str) -> bool:
    """True for a collective that makes its first argument the same on all ranks."""
    library, _, name = dotted.rpartition(".")
    if library.split(".")[0] == "horovod":
        return name.endswith("_")
    return library.startswith("torch.distributed") and name.startswith(("broadcast", "all_"))


_OUTPUT_ARGUMENTS = (
    "tensor",
    "tensor_list",
    "object_list",
    "output",
    "output_tensor",
    "output_tensor_list",
)


def written_by(call: ast.Call) -> ast.expr | None:
    """Return the argument that an in-place collective writes to."""
    named = (each.value for each in call.keywords if each.arg in _OUTPUT_ARGUMENTS)
    return call.args[0] if call.args else next(named, None)


def is_for_some(call: ast.Call, dotted: str) -> bool:
    """True if a call names the ranks that it is for, or may do so, or is a method of some other
    object."""
    if any(isinstance(arg, ast.Starred) for arg in call.args):
        return True
    for keyword in call.keywords:
        if keyword.arg is None:
            return True
        if keyword.arg in ("process_set", "group", "process_group", "comm", "device_mesh"):
            return not _names_all(keyword.value)
        if keyword.arg in ("dim", "use_local_synchronization"):
            return True
    name = dotted.rpartition(".")[2]
    if dotted.startswith("horovod") and name == "barrier":
        return bool(call.args) and not _names_all(call.args[0])
    if not dotted.startswith("torch.distributed"):
        return False
    first = call.args[0] if call.args else None
    if name in ("gather", "scatter", "reduce") and _is_number(first):
        return True  # the method of a tensor called `dist`
    place = _TORCH_GROUP_POSITIONS.get(name)
    return place is not None and len(call.args) > place and not _names_all(call.args[place])


def goes_alone(node: ast.expr) -> bool:
    """True for the contexts in which a rank with DDP computes without the others: for a while, in
    `with model.no_sync()`; for more steps than they have, in `with model.join()` or
    `with Join([model])`."""
    return _called(node) in ("no_sync", "join", "Join")


def keeps_errors(node: ast.expr) -> bool:
    """True for a context after which a rank goes on if an error is raised in it, such as
    `with suppress(OSError)`."""
    return _called(node) in ("suppress", "raises", "assertRaises", "assertRaisesRegex")


def _called(node: ast.expr) -> str:
    called = node.func if isinstance(node, ast.Call) else None
    return called.attr if isinstance(called, ast.Attribute) else getattr(called, "id", "")


def is_own_rank(dotted: str, call: ast.Call) -> bool:
    """True for hvd.rank() and the like."""
    library, _, name = dotted.rpartition(".")
    if call.args or call.keywords:
        return False
    if library.split(".")[0] == "horovod":
        return name in ("rank", "local_rank")
    return name in ("get_rank", "get_local_rank", "get_node_local_rank")


def is_size(dotted: str, call: ast.Call) -> bool:
    """True for hvd.size() and the like."""
    library, _, name = dotted.rpartition(".")
    horovod = library.split(".")[0] == "horovod"
    return not call.args and name == ("size" if horovod else "get_world_size")


def is_rank_attribute(owner: ast.expr, name: str) -> bool:
    """True for `args.local_rank` and the like; False for `tensor.shape.rank`."""
    while isinstance(owner, ast.Attribute) and owner.attr in _RANK_OWNERS:
        owner = owner.value
    mine = isinstance(owner, ast.Name) and owner.id in _RANK_OWNERS
    return mine and RANK_NAME.fullmatch(name) is not None


def rank_variable(node: ast.expr | None) -> bool:
    """True for the name of an environment variable that holds the rank."""
    return (
        isinstance(node, ast.Constant)
        and isinstance(node.value, str)
        and _RANK_VARIABLE.fullmatch(node.value) is not None
    )


def _names_all(node: ast.expr) -> bool:
    if isinstance(node, ast.Constant):
        return node.value is None
    last = node.attr if isinstance(node, ast.Attribute) else getattr(node, "id", "")
    return last in ("global_process_set", "WORLD")


def _is_number(node: ast.expr | None) -> bool:
    if isinstance(node, ast.UnaryOp):
        node = node.operand
    return isinstance(node, ast.Constant) and isinstance(node.value, int)
