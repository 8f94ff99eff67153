"""The number of GPUs, as NVIDIA's driver counts them and as CUDA programs see them."""

from __future__ import annotations

import itertools
import os
from collections.abc import Mapping

VISIBLE = "CUDA_VISIBLE_DEVICES"
MIG = "MIG-"  # prefix of the name of an instance, which is part of a GPU


def gpus_of_driver() -> int:
    """Return the number of GPUs here, ignoring CUDA_VISIBLE_DEVICES; 0 without a driver."""
    try:
        import pynvml

        pynvml.nvmlInit()
        count = int(pynvml.nvmlDeviceGetCount())
        pynvml.nvmlShutdown()
    except Exception:
        return 0  # no driver, no library or no permission: in any case there is none to use
    return count


def visible_gpus(env: Mapping[str, str] = os.environ) -> int:
    """Return the number of GPUs here that ranks may use, reading CUDA_VISIBLE_DEVICES as CUDA does.

    The first entry in it that is not a GPU of this machine hides all that follow.
    """
    count, visible = gpus_of_driver(), env.get(VISIBLE)
    if visible is None or not count:
        return count

    def is_here(name: str) -> bool:
        return name.startswith(("GPU-", MIG)) or (name.isdigit() and int(name) < count)

    return len(list(itertools.takewhile(is_here, _names(visible))))


def own_instance(visible: str, local_rank: int) -> str:
    """Return a rank's MIG instance out of CUDA_VISIBLE_DEVICES (`visible`); empty if it has none.

    A process sees only the first instance that is listed there, so each rank is given one.
    """
    instances = [name for name in _names(visible) if name.startswith(MIG)]
    return instances[local_rank % len(instances)] if instances else ""


def _names(visible: str) -> list[str]:
    return [name.strip() for name in visible.split(",")]
