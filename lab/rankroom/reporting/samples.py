"""How busy a rank is: the CPU time and memory of all its processes, and the use of its GPU."""

from __future__ import annotations

import contextlib
import os
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

_PROC = Path("/proc")
_TICKS_PER_S = os.sysconf("SC_CLK_TCK")
_PAGE_BYTES = os.sysconf("SC_PAGE_SIZE")
# A child's memory is cached for this many times as long as reading it took.
MEMORY_CACHE_FACTOR = 100
MAX_CACHED_PROCESSES = 4096
_own: dict[int, tuple[float, int]] = {}  # by pid: when the cached value expires, and its bytes
# By pid: CUDA_VISIBLE_DEVICES when the rank started, as its cells may change it.
_visible: dict[int, str | None] = {}


class Sampler:
    """Measures what one rank uses, from one call to the next; without /proc, only of its own
    process.

    `pid` is the rank's process if it is not this one.
    """

    def __init__(self, device: str, pid: int = 0) -> None:
        self._device = device
        self._pid = pid or os.getpid()
        if not pid:
            _visible[self._pid] = os.environ.get("CUDA_VISIBLE_DEVICES")
        self._gpu: Callable[[], dict[str, int]] | None = None
        self._at = 0.0
        self._used: dict[int, float] = {}

    def start(self) -> None:
        """Start the period that the next sample covers."""
        self._at = time.monotonic()
        self._used = {pid: used for pid, (used, _) in _usage(self._pid).items()}

    @property
    def seconds(self) -> float:
        """Seconds since the last sample, or since `start`."""
        return time.monotonic() - self._at

    def sample(self) -> dict[str, Any]:
        """Return the fields of a sample event, for the time since the last call or `start`."""
        before, since = self._used, self._at
        now, usage = time.monotonic(), _usage(self._pid)
        self._at, self._used = now, {pid: used for pid, (used, _) in usage.items()}
        # A new process has used all of its CPU time since then; one that has ended is left out.
        seconds = sum(used - before.get(pid, 0.0) for pid, used in self._used.items())
        return {
            "cpu": round(100 * max(0.0, seconds) / max(now - since, 1e-3), 1),
            "memory": sum(memory for _, memory in usage.values()),
            **self._gpu_fields(),
        }

    def _gpu_fields(self) -> dict[str, int]:
        if not self._device.startswith("cuda"):
            return {}
        if self._gpu is None:
            self._gpu = _gpu(int(self._device.partition(":")[2] or 0))
        return self._gpu()


def resident(pid: int) -> int:
    """Return the resident bytes of a rank's process and all its descendants."""
    return sum(memory for _, memory in _usage(pid).values())


def gpu_use(number: int) -> tuple[int | None, int | None]:
    """Return the used and total bytes of the GPU that frameworks call `number`; None if unknown."""
    try:
        pynvml, handle = _handle(number)
        info = pynvml.nvmlDeviceGetMemoryInfo(handle)
        return int(info.used), int(info.total)
    except Exception:  # no driver, no such GPU
        return None, None


def _usage(rank: int) -> dict[int, tuple[float, int]]:
    """Return, by pid, the CPU seconds and memory bytes of a rank's process and all descendants."""
    found = {}
    todo = [rank]
    while todo:
        pid = todo.pop()
        with contextlib.suppress(OSError, ValueError, IndexError):
            found[pid] = (_seconds(pid), _memory(pid, shared=pid == rank))
            todo += _children(pid)
    return found


def _seconds(pid: int) -> float:
    """Return the CPU seconds that a process has used; for this process, from a finer clock."""
    if pid == os.getpid():
        return time.process_time()
    # The process's name, in parentheses, may contain any characters.
    fields = (_PROC / f"{pid}/stat").read_text().rpartition(")")[2].split()
    return (int(fields[11]) + int(fields[12])) / _TICKS_PER_S


def _memory(pid: int, shared: bool) -> int:
    """Return the bytes that a process has in memory. Pages shared with other processes (files, or
    those it was forked with) are counted only once: with the rank's own process, as `shared`."""
    try:
        if not shared and (own := _own_memory(pid)) is not None:
            return own
        numbers = (_PROC / f"{pid}/statm").read_text().split()
        return (int(numbers[1]) - (0 if shared else int(numbers[2]))) * _PAGE_BYTES
    except (OSError, ValueError, IndexError):
        return 0


def _own_memory(pid: int) -> int | None:
    """Return the bytes private to a process; None where the system does not report them."""
    known = _own.get(pid)
    now = time.monotonic()
    if known is not None and now < known[0]:
        return known[1]
    own = 0
    try:
        for line in (_PROC / f"{pid}/smaps_rollup").read_text().splitlines():
            if line.startswith("Private_"):
                own += int(line.split()[1]) * 1024
    except FileNotFoundError:  # the process has ended, or the kernel is too old
        return None
    except PermissionError:
        return None
    # Cached, as the kernel walks all pages of the process for this.
    if len(_own) > MAX_CACHED_PROCESSES:
        _own.clear()
    _own[pid] = now + MEMORY_CACHE_FACTOR * (time.monotonic() - now), own
    return own


def _children(pid: int) -> list[int]:
    """Return the pids of a process's children, started by any of its threads."""
    found = []
    with contextlib.suppress(OSError, ValueError):
        for thread in os.listdir(_PROC / f"{pid}/task"):  # noqa: PTH208 - once a second
            with contextlib.suppress(OSError):
                text = (_PROC / f"{pid}/task/{thread}/children").read_text()
                found += [int(each) for each in text.split()]
    return found


def _gpu(number: int) -> Callable[[], dict[str, int]]:
    """Return a function that measures the GPU that frameworks call `number`; it returns nothing if
    the GPU is unknown."""
    try:
        pynvml, handle = _handle(number)
    except Exception:  # no driver, no such GPU
        return dict

    def ask() -> dict[str, int]:
        found = {}
        with contextlib.suppress(pynvml.NVMLError):
            found["gpu_memory"] = int(pynvml.nvmlDeviceGetMemoryInfo(handle).used)
        with contextlib.suppress(pynvml.NVMLError):  # a MIG instance has no utilization rate
            found["gpu"] = int(pynvml.nvmlDeviceGetUtilizationRates(handle).gpu)
        return found

    return ask


def _handle(number: int) -> tuple[Any, Any]:
    """Return NVIDIA's library and its handle of that GPU. Raises its errors, or ImportError."""
    import pynvml

    pynvml.nvmlInit()
    visible = _visible.get(os.getpid(), os.environ.get("CUDA_VISIBLE_DEVICES"))
    name = visible.split(",")[number].strip() if visible else str(number)
    if name.isdigit():
        return pynvml, pynvml.nvmlDeviceGetHandleByIndex(int(name))
    return pynvml, pynvml.nvmlDeviceGetHandleByUUID(name)
