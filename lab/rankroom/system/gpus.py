"""How many GPUs there are, as NVIDIA's driver counts them and as CUDA programs see them."""

from __future__ import annotations

import os


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


def visible_gpus() -> int:
    """GPUs of this machine that CUDA programs may use: CUDA_VISIBLE_DEVICES counts."""
    visible = os.environ.get("CUDA_VISIBLE_DEVICES")
    count = gpus_of_driver()
    if visible is None:
        return count
    return min(count, len([each for each in visible.split(",") if each.strip() not in ("", "-1")]))
