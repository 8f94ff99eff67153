"""Memory of processes (USS): the kernel after a flood, a rank compared with a bare engine."""

from __future__ import annotations

import psutil

from flood import LINES, check, source
from kernel import processes
from sides import Px, Rankroom, Side, both
from table import NotMeasured, Row

MOST_PROCESSES = 9  # of a cluster of two ranks, apart from these and the kernel


def measure(quick: bool) -> list[Row]:
    """Measure the growth of fresh kernels by a flood, and idle ranks and engines before it."""
    lines = LINES // 10 if quick else LINES
    ours: list[float] = []
    peers: list[float] = []
    kept: list[list[float]] = [[], []]
    idle: list[list[float]] = [[], []]
    for _ in range(1 if quick else 3):
        with both() as (px, rankroom):
            for side in (px, rankroom):
                side.cell("pass")
            idle[0] += _idle(rankroom)
            idle[1] += _idle(px)
            for side, kernel, rank in ((px, peers, kept[1]), (rankroom, ours, kept[0])):
                before = _idle(side)
                kernel.append(_growth(side, lines))
                rank += [after - b for b, after in zip(before, _idle(side), strict=True)]
            check(rankroom, lines)
            around = {side.name: _around(side) for side in (px, rankroom)}
    over = [a - b for a, b in zip(sorted(idle[0]), sorted(idle[1]), strict=True)]
    return [
        Row(f"kernel grows by, {2 * lines:,} lines", "MB", ours, peers, at_most=50e6),
        Row(f"a rank grows by, its {lines:,} lines", "MB", *kept, peer="engine"),
        Row("a rank's process, idle", "MB", *idle, peer="engine"),
        Row("a rank's process over a bare engine", "MB", over, at_most=15e6),
        *[
            Row(
                f"all processes beside kernel and ranks: {what}", unit,
                [around["rankroom"][what]], [around["%%px"][what]],
                at_most=most, peer="ipyparallel",
            )
            for what, unit, most in (("memory", "MB", None), ("number", "", MOST_PROCESSES))
        ],
    ]  # fmt: skip


def _uss(process: psutil.Process) -> int:
    return process.memory_full_info().uss


def _idle(side: Side) -> list[float]:
    return [float(_uss(psutil.Process(pid))) for pid in side.rank_pids()]


def _growth(side: Px | Rankroom, lines: int) -> float:
    before = _uss(side.kernel.process)
    side.cell(source(lines))
    after = _uss(side.kernel.process)
    if after <= 0 or before <= 0:
        raise NotMeasured("the kernel's memory cannot be read")
    return float(after - before)


def _around(side: Side) -> dict[str, float]:
    """Measure the other processes of a cluster: controller, schedulers, node agent, supervisor."""
    own = {side.kernel.process.pid, *side.rank_pids()}
    rest = [process for process in processes(side.kernel.folder) if process.pid not in own]
    return {"memory": float(sum(_uss(process) for process in rest)), "number": float(len(rest))}
