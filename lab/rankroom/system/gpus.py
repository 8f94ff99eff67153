"""How many GPUs there are, as NVIDIA's driver counts them and as CUDA programs see them."""

from __future__ import annotations

import itertools
import os
from collections.abc import Mapping

VISIBLE = "CUDA_VISIBLE_DEVICES"
MIG = "MIG-"  # begins the name of an instance: a part of a GPU


def gpus_of_driver() -> int:
    """GPUs of this machine; 0 without a driver. CUDA_VISIBLE_DEVICES does not count."""
    try:
        import pynvml

        pynvml.nvmlInit()
        count = int(pynvml.nvmlDeviceGetCount())
        pynvml.nvmlShutdown()
    except Exception:
        return 0  # no driver, no library, no permission: whatever it is, there is none to use
    return count


def visible_gpus(env: Mapping[str, str] = os.environ) -> int:
    """GPUs of this machine that ranks may use: CUDA_VISIBLE_DEVICES counts, as CUDA reads it.

    Of what is listed there, the first that is no GPU of this machine hides all that follow.
    """
    count, visible = gpus_of_driver(), env.get(VISIBLE)
    if visible is None or not count:
        return count

    def is_here(name: str) -> bool:
        return name.startswith(("GPU-", MIG)) or (name.isdigit() and int(name) < count)

    return len(list(itertools.takewhile(is_here, _names(visible))))


def own_instance(visible: str, local_rank: int) -> str:
    """The MIG instance of a rank, of those in CUDA_VISIBLE_DEVICES; empty if there are none.

    A process sees the first instance that is listed there and no other: each rank is given one.
    """
    instances = [name for name in _names(visible) if name.startswith(MIG)]
    return instances[local_rank % len(instances)] if instances else ""


def _names(visible: str) -> list[str]:
    return [name.strip() for name in visible.split(",")]
