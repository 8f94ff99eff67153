"""Output of 1,024 simulated ranks to one supervisor, and an empty cell on 64 real ones."""

from __future__ import annotations

import os
import sys
import time
from pathlib import Path

sys.path.append(str(Path(__file__).parents[1] / "tests" / "support"))

import simulated_cluster
from simulated_ranks import Script

from rankroom.cluster.local import Cluster
from rankroom.run.run import Run
from sides import alternate, workplace
from table import NotMeasured, Row

RATE = 100  # lines a second
FEW, MANY = 2, 64


def measure(quick: bool) -> list[Row]:
    """Measure both."""
    with workplace() as folder:
        os.environ["RANKROOM_HOME"] = str(folder / "home")
        try:
            return [*_flood(256 if quick else 1024, 5 if quick else 20), *_empty(quick)]
        finally:
            del os.environ["RANKROOM_HOME"]


def _flood(ranks: int, seconds: int) -> list[Row]:
    with simulated_cluster.cluster(ranks) as cluster:
        process = simulated_cluster.supervisor_of(cluster)
        before = sum(process.cpu_times()[:2])
        most, begun = 0, time.monotonic()
        run = cluster.run(str(Script(seconds=seconds, rate=RATE)))
        while not run.wait(0.2):
            most = max(most, process.memory_info().rss)
        took = time.monotonic() - begun
        cpu = sum(process.cpu_times()[:2]) - before
    if run.state != "done" or run.info.lines != ranks * seconds * RATE or run.info.notes:
        raise NotMeasured(f"{run.info.lines:,} lines, {run.state}: {run.info.notes}")
    what = f"{ranks:,} simulated ranks × {RATE} lines/s for {seconds} s"
    return [
        Row(f"{what}: until all {run.info.lines:,} are kept", "s", [took], at_most=seconds * 1.1),
        Row(f"{what}: the supervisor's processor time", "s", [cpu], at_most=seconds * 0.5),
        Row(f"{what}: the supervisor's memory", "MB", [most], at_most=200e6),
    ]


def _empty(quick: bool) -> list[Row]:
    """Measure an empty cell, per rank, alternately on a cluster of MANY ranks and one of FEW."""
    clusters = []
    try:
        for ranks in (FEW, MANY):
            clusters.append(Cluster.local(ranks))
        for _ in range(5):
            for each in clusters:
                _cell(each)
        few, many = alternate(20 if quick else 60, *(lambda c=c: _cell(c) for c in clusters))
    finally:
        for each in clusters:
            each.stop()
    return [
        Row(
            f"empty cell for each of {MANY} ranks", "ms", many, few,
            ratio_at_most=1.5, peer=f"of {FEW}",
        )
    ]  # fmt: skip


def _cell(cluster: Cluster) -> float:
    begun = time.perf_counter()
    run: Run = cluster.run("")
    if not run.wait(60) or run.state != "done":
        raise NotMeasured(f"an empty cell is {run.state}")
    return (time.perf_counter() - begun) / cluster.size
