"""How many cores a process may keep busy, according to its control groups."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from rankroom.system.control_groups import cores

V1 = "sys/fs/cgroup/cpu,cpuacct/box/cpu.cfs_"
LIMITS: dict[str, tuple[dict[str, str], int]] = {
    "v2": ({"proc/self/cgroup": "0::/box\n", "sys/fs/cgroup/box/cpu.max": "150000 100000\n"}, 2),
    "v2, of a group above": (
        {
            "proc/self/cgroup": "0::/box/own\n",
            "sys/fs/cgroup/box/cpu.max": "50000 100000\n",
            "sys/fs/cgroup/box/own/cpu.max": "max 100000\n",
        },
        1,
    ),
    "v1": (
        {
            "proc/self/cgroup": "3:cpu,cpuacct:/box\n0::/\n",
            f"{V1}quota_us": "250000\n",
            f"{V1}period_us": "100000\n",
        },
        3,
    ),
    "no limit": (
        {
            "proc/self/cgroup": "3:cpu,cpuacct:/box\n",
            f"{V1}quota_us": "-1\n",
            f"{V1}period_us": "100000\n",
        },
        8,
    ),
    "nothing": ({}, 8),
}


@pytest.mark.parametrize("name", LIMITS)
def test_the_lowest_core_limit_counts(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, name: str):
    files, expected = LIMITS[name]
    for path, text in files.items():
        (tmp_path / path).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / path).write_text(text)
    monkeypatch.setattr(os, "sched_getaffinity", lambda pid: set(range(8)))
    assert cores(tmp_path) == expected
