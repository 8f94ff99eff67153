"""A simulated NVIDIA driver, as far as Rankroom uses it: 8 GPUs, and MIG instances of any name."""

from types import SimpleNamespace

GPUS = 8


class NVMLError(Exception):
    """The driver's error for what it does not have or support."""


def nvmlInit():  # noqa: N802 - the library's names
    """Succeed: there is a driver."""


def nvmlShutdown():  # noqa: N802
    """Do nothing."""


def nvmlDeviceGetCount():  # noqa: N802
    return GPUS


def nvmlDeviceGetHandleByIndex(index):  # noqa: N802
    if not 0 <= index < GPUS:
        raise NVMLError("Invalid Argument")
    return index


def nvmlDeviceGetHandleByUUID(name):  # noqa: N802
    if name.startswith("MIG-"):
        return name
    return nvmlDeviceGetHandleByIndex(int(name.removeprefix("GPU-")))


def nvmlDeviceGetMemoryInfo(handle):  # noqa: N802
    used = 5 << 30 if isinstance(handle, str) else (1 + handle) << 30
    return SimpleNamespace(used=used, total=80 << 30)


def nvmlDeviceGetUtilizationRates(handle):  # noqa: N802
    if isinstance(handle, str):
        raise NVMLError("Not Supported")
    return SimpleNamespace(gpu=10 * handle)
