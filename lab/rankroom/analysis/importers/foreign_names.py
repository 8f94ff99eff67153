"""What other programs call the things that Rankroom has a name for."""

from __future__ import annotations

import json
import math
import re
from typing import Any

from rankroom.text.rank_ranges import format_ranks

Json = dict[str, Any]

RANKROOM_CATEGORIES = (
    "cell", "setup", "import", "step", "data", "user", "wait", "collective", "phase", "op",
    "kernel",
)  # fmt: skip
STRAGGLER_CATEGORY = "straggler"  # category of instants in an export, which an import derives again

_CATEGORIES = {
    "cpu_op": "op",
    "operator": "op",
    "gpu_memcpy": "kernel",
    "gpu_memset": "kernel",
    "user_annotation": "user",
}
# When the kernels launched within an annotation ran, under the annotation's own name. Kineto has
# used two spellings.
_ON_GPU = "gpu_user_annotation"
# Words in NCCL's kernels, in annotations such as `nccl:all_reduce` and in `Collective name`.
_OPERATIONS = {
    "allreduce": "allreduce",
    "allgather": "allgather",
    "allgatherbase": "allgather",
    "allgatherintotensorcoalesced": "allgather",
    "reducescatter": "reducescatter",
    "reducescatterbase": "reducescatter",
    "reducescattertensorcoalesced": "reducescatter",
    "broadcast": "broadcast",
    "alltoall": "alltoall",
    "alltoallbase": "alltoall",
    "alltoallv": "alltoall",
    "barrier": "barrier",
    "reduce": "reduce",
    "gather": "gather",
    "scatter": "scatter",
}
_KERNEL = re.compile(r"^nccl(?:Dev)?Kernel_?(AllReduce|AllGather|ReduceScatter|Broadcast|Reduce)")
_ANNOTATION = re.compile(r"^(?:nccl|gloo|mpi|ucc):_?(\w+)$")
_SIZES = {
    "double": 8, "float64": 8, "long": 8, "int64": 8, "float": 4, "float32": 4, "int": 4,
    "int32": 4, "half": 2, "float16": 2, "bfloat16": 2, "short": 2, "int16": 2, "byte": 1,
    "char": 1, "uint8": 1, "int8": 1, "bool": 1, "complexfloat": 8, "complexdouble": 16,
}  # fmt: skip


def recognise(category: str, define: Json) -> tuple[str, Json]:
    """Return Rankroom's category of a span, or the file's own, and the definition to write."""
    name = define["name"]
    if category.lower() == _ON_GPU:
        return category, define  # the step or the data loading is the annotation itself
    if category in ("kernel", "user_annotation", "cpu_op") and (found := _collective(name, define)):
        return "collective", found
    if name.startswith("enumerate(DataLoader)#"):
        return "data", define
    if name.startswith("ProfilerStep#"):
        # Numbered: give them all the same name.
        return "step", {**define, "name": "ProfilerStep"}
    if name.startswith("Optimizer.step#"):
        return "step", define
    return _CATEGORIES.get(category, category), define


def is_annotation(define: Json) -> bool:
    """True for a collective that is only seen as a call; its kernel may be in the trace, too."""
    return bool(define.get("annotated"))


def is_for_gpu(define: Json) -> bool:
    """True for a collective that is only seen as a call, and runs on a GPU."""
    return str(define.get("annotated", "")).startswith("nccl")


def is_linked(define: Json) -> bool:
    """True for a collective's kernel that says which it is, as the profiler saw its launch."""
    return "Collective name" in define


def _collective(name: str, args: Json) -> Json | None:
    kernel, annotation = _KERNEL.match(name), _ANNOTATION.match(name)
    if not (kernel or annotation or (name.startswith("nccl") and "Collective name" in args)):
        return None
    words = [args.get("Collective name"), *(found[1] for found in (kernel, annotation) if found)]
    plain = (re.sub(r"[^a-z]", "", str(word).lower()) for word in words)
    operation = next((_OPERATIONS[word] for word in plain if word in _OPERATIONS), None)
    if operation is None:
        return None
    found: Json = {"name": operation, "op": operation, "library": "dist"}
    if annotation:
        found["annotated"] = name
    if name.startswith("nccl") and not annotation:
        # Its name on the GPU, for other readers of an export.
        found["kernel"] = name
        found |= {key: args[key] for key in ("device", "stream") if type(args.get(key)) is int}
    size, dtype = _shape_of(args)
    if size is not None:
        found["bytes"] = size
    if dtype:
        found["dtype"] = dtype
    group = args.get("Process Group Name")
    ranks = args.get("Process Group Ranks")
    if isinstance(ranks, str):
        try:
            ranks = json.loads(ranks)
        except ValueError:
            ranks = None  # torch shortens long lists
    if isinstance(ranks, list) and ranks and all(type(rank) is int for rank in ranks):
        found["ranks"] = ranks
    if group not in (None, "", "0", "default_pg"):
        # Groups of different ranks may share a name, as along one dimension of a DeviceMesh.
        among = f" ({format_ranks(found['ranks'])})" if "ranks" in found else ""
        found["group"] = f"{group}{among}"
    return found


def _shape_of(args: Json) -> tuple[int | None, str]:
    """Return bytes and dtype of a collective's input."""
    dtype = str(args.get("dtype") or "")
    count = args.get("In msg nelems")
    if count is None and isinstance(args.get("Input Dims"), list):
        kinds = args.get("Input type") or []
        dims = args["Input Dims"]
        dtype = dtype or str(kinds[0] if kinds else "")
        flat = dims[0] if dims and isinstance(dims[0], list) else []
        if flat and isinstance(flat[0], list):
            flat = flat[0]
        if flat and all(isinstance(each, int) for each in flat):
            count = math.prod(flat)
    width = size_of(dtype)
    if isinstance(count, bool) or not isinstance(count, int) or width is None:
        return None, dtype
    return count * width, dtype


def size_of(dtype: str) -> int | None:
    """Return the bytes of one element of this dtype; None if it is unknown."""
    return _SIZES.get(dtype.lower().removeprefix("torch.").removeprefix("c10::"))
