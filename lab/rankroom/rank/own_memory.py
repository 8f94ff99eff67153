"""The memory of a rank, and how much of it the user's variables account for: for `%ranks who`.

As in `variables`, frameworks are looked up, never imported, and no user code is called.
"""

from __future__ import annotations

import contextlib
import os
import sys
from collections.abc import Iterable
from pathlib import Path
from typing import Any, NamedTuple

from rankroom.rank.variables import CONTAINERS, is_kind, is_tensor
from rankroom.reporting.samples import gpu_use, resident

MAX_VALUES = 100_000  # nested values that are examined
MAX_DEPTH = 20
HOST_DEVICE = "cpu"

Found = dict[tuple[str, int], int]  # bytes by device and address


class OwnMemory(NamedTuple):
    """The memory of one rank in bytes; None where it is unknown.

    `resident` is that of all its processes, `unshared` what its main process shares with no other.
    `named` is held by tensors and arrays in its variables on the host, `gpu_named` on GPUs.
    `allocated` is what torch uses for tensors, out of what it has `reserved`. `used` and `total`
    are those of the whole GPU, other processes included.
    """

    resident: int
    unshared: int | None
    named: int
    device: str = HOST_DEVICE
    gpu_named: int = 0
    allocated: int | None = None
    reserved: int | None = None
    used: int | None = None
    total: int | None = None


def own_memory(values: Iterable[Any], device: str) -> OwnMemory:
    """Return how much memory this rank uses, and how much of it `values` hold."""
    found = sizes(values)
    named = sum(size for (where, _), size in found.items() if where == HOST_DEVICE)
    made = OwnMemory(resident(os.getpid()), _unshared(), named, device)
    if not device.startswith("cuda"):
        return made
    number = int(device.partition(":")[2] or 0)
    allocated, reserved = _torch(number)
    used, total = gpu_use(number)
    return made._replace(
        gpu_named=sum(found.values()) - named, allocated=allocated, reserved=reserved,
        used=used, total=total,
    )  # fmt: skip


def sizes(values: Iterable[Any]) -> Found:
    """Return the bytes of the tensors and arrays in these values, by device and address: each
    counts once, however many views of it there are."""
    found: Found = {}
    seen: dict[int, Any] = {}  # by id; the values are kept, else a new one may get a seen one's id
    todo = [(value, MAX_DEPTH) for value in values]
    while todo and len(seen) < MAX_VALUES:
        value, depth = todo.pop()
        if id(value) in seen or depth < 0:
            continue
        seen[id(value)] = value
        with contextlib.suppress(Exception):  # a tensor that was deleted, a GPU that has failed
            todo += [(part, depth - 1) for part in _look(value, found)]
    return found


def _look(value: Any, found: Found) -> Iterable[Any]:
    """Add the memory of one value to `found`; return the values that it consists of."""
    if is_tensor(value):
        held = value.to_local() if hasattr(value, "to_local") else value
        if not held.is_meta:
            storage = held.untyped_storage()
            found[held.device.type, storage.data_ptr()] = storage.nbytes()
        return [value.grad] if value.is_leaf and value.grad is not None else []
    if is_kind(value, "numpy", "ndarray"):
        while is_kind(value.base, "numpy", "ndarray"):
            value = value.base
        if value.base is None or not is_tensor(value.base):
            found[HOST_DEVICE, value.ctypes.data] = value.nbytes
        return []
    if is_kind(value, "torch.nn", "Module"):
        return [*value.parameters(), *value.buffers()]
    if is_kind(value, "torch.optim", "Optimizer"):
        return [dict(value.state)]
    if is_kind(value, "keras", "Model"):
        return [each.value for each in value.weights]
    if is_kind(value, "tensorflow", "Tensor") or is_kind(value, "tensorflow", "Variable"):
        where = value.device.rpartition("device:")[2].partition(":")[0].lower() or HOST_DEVICE
        found[where, id(value)] = value.shape.num_elements() * value.dtype.size
        return []
    if type(value) is dict:
        return value.values()
    return value if type(value) in CONTAINERS else ()


def _torch(number: int) -> tuple[int | None, int | None]:
    """Return the bytes that torch has allocated and reserved on a GPU: 0 before it has used one,
    None without torch."""
    torch = sys.modules.get("torch")
    with contextlib.suppress(Exception):
        if torch is not None:
            return int(torch.cuda.memory_allocated(number)), int(torch.cuda.memory_reserved(number))
    return None, None


def _unshared(place: Path = Path("/proc/self/smaps_rollup")) -> int | None:
    """Return the bytes of this process that no other shares; None if the kernel does not say."""
    try:
        lines = place.read_text().splitlines()
    except OSError:
        return None
    private = [line.split()[1] for line in lines if line.startswith("Private_")]
    return 1024 * sum(map(int, private)) if private else None
