"""The cores and memory that this process's control groups, version 1 or 2, allow it."""

from __future__ import annotations

import contextlib
import math
import os
from pathlib import Path

import psutil


def groups(controller: str, root: Path = Path("/")) -> list[Path]:
    """Return this process's groups for a controller (`memory`, `cpu`) as folders, its own first."""
    try:
        lines = (root / "proc/self/cgroup").read_text().splitlines()
    except OSError:
        return []
    mounted = root / "sys/fs/cgroup"
    found = []
    for line in lines:
        number, _, rest = line.partition(":")
        names, _, path = rest.partition(":")
        if number == "0" and not names:
            bases = [mounted, mounted / "unified"]
        elif controller in names.split(","):
            bases = [mounted / controller, mounted / names]
        else:
            continue
        for base in bases:
            # In a container the path may be the host's; then the mount's root is the container's
            # group.
            own = base / path.lstrip("/")
            chain = [own, *own.parents]
            found += [each for each in chain if each == base or base in each.parents]
    return [each for each in dict.fromkeys(found) if each.is_dir()]


def cores(root: Path = Path("/")) -> int:
    """Return how many cores this process can keep busy: those it may run on or, if that is less,
    its quota of CPU time, by which containers are limited."""
    most = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count()
    shares = [float(most or 1)]
    for folder in groups("cpu", root):
        with contextlib.suppress(OSError, ValueError):
            quota, period = (folder / "cpu.max").read_text().split()
            shares.append(int(quota) / int(period))
        with contextlib.suppress(OSError, ValueError):
            names = ("cpu.cfs_quota_us", "cpu.cfs_period_us")
            quota_us, period_us = (int((folder / name).read_text()) for name in names)
            if quota_us > 0:
                shares.append(quota_us / period_us)
    return max(1, math.ceil(min(shares)))


def free_memory(folders: list[Path]) -> int:
    """Return the bytes still available: within the tightest limit of the groups `folders` for
    `memory`, or on the machine."""
    left = [int(psutil.virtual_memory().available)]
    for folder in folders:
        for names in (
            ("memory.max", "memory.current", "inactive_file"),
            ("memory.limit_in_bytes", "memory.usage_in_bytes", "total_inactive_file"),
        ):
            with contextlib.suppress(OSError, ValueError):
                most, used = (int((folder / name).read_text()) for name in names[:2])
                stat = (folder / "memory.stat").read_text().splitlines()
                dropped = dict(line.split() for line in stat).get(names[2], "0")
                left.append(most - used + int(dropped))
    return max(0, min(left))
