"""Many ranks: from the request to their first allreduce; their memory; and the restart of one.

Frameworks are preloaded, as they are for users from their second cluster on. The peers start
processes that each import for themselves: horovodrun, torchrun, and ipyparallel's engines.
"""

from __future__ import annotations

import contextlib
import os
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import psutil

from kernel import MARK, processes
from sides import Px, Rankroom, alternate, workplace
from table import NotMeasured, Row
from training import plain_horovod

HOROVOD = """
import torch, horovod.torch as hvd
hvd.init()
total = float(hvd.allreduce(torch.ones(1), op=hvd.Sum))
"""
DIST = """
import os, torch, torch.distributed as dist
dist.init_process_group("gloo", **meeting)
dist.all_reduce(summed := torch.ones(1))
total = float(summed)
"""
SCRIPT = """
meeting = {{}}
{source}
import os, pathlib, time
pathlib.Path(f"told.{{os.environ['{rank}']}}").write_text(f"{{total}} {{time.time()}}")
"""
PRELOAD = "torch,horovod.torch"
MOST_MEMORY = 6 << 30  # of 64 ranks with PyTorch and Horovod, and the cluster's other processes


class Forked(Rankroom):
    """Rankroom, with ranks that are forked after the import of `preload`."""

    preload = PRELOAD

    @property
    def starting(self) -> str:  # type: ignore[override]
        return f"{super().starting} --preload {self.preload}"


class Apart(Forked):
    """The same, but each rank is started by exec and imports for itself."""

    preload = "none"


def measure(quick: bool) -> list[Row]:
    """Measure all rows; samples of both sides of a row are taken alternately."""
    os.environ.setdefault("RANKROOM_START_SECONDS", "240")
    rows = _to_allreduce(4, 3.5, quick) + _to_allreduce(16, 9.0, quick)
    rows += [*_without_horovod(4, quick), _bare(64, quick), *_many(64, quick)]
    return [*rows, *_restart_and_memory(quick)]


def _to_allreduce(ranks: int, at_most: float, quick: bool) -> list[Row]:
    """Measure Horovod, compared with plain Horovod under horovodrun."""
    with _side(Forked, ranks) as side:
        ours, peers = alternate(
            1 if quick else 5,
            lambda: _start(side, HOROVOD, ranks),
            lambda: _launched(side.kernel.folder, ranks, "horovod"),
        )
    what = f"{ranks} ranks, start to first allreduce"
    return [Row(f"{what}, Horovod", "s", ours, peers, at_most=at_most, peer="horovodrun")]


def _without_horovod(ranks: int, quick: bool) -> list[Row]:
    """Measure torch.distributed, compared with torchrun and ipyparallel."""
    source = f"meeting = {{}}{DIST}"
    with _side(Forked, ranks) as side, _side(Px, ranks) as engines:
        ours, launched, started = alternate(
            1 if quick else 5,
            lambda: _start(side, source, ranks),
            lambda: _launched(side.kernel.folder, ranks, "torch"),
            lambda: _start_engines(engines, ranks),
        )
    what = f"{ranks} ranks, start to first allreduce, torch.distributed"
    return [
        Row(what, "s", ours, launched, peer="torchrun"),
        Row(what, "s", ours, started, peer="ipp.Cluster"),
    ]


def _bare(ranks: int, quick: bool) -> Row:
    with _side(Rankroom, ranks) as side:
        ours = [_start(side, "total = size", ranks) for _ in range(1 if quick else 3)]
    return Row(f"{ranks} bare ranks, start and first cell", "s", ours, at_most=8.0)


def _many(ranks: int, quick: bool) -> list[Row]:
    taken, memory = [], []
    with _side(Forked, ranks) as side:
        for _ in range(1 if quick else 3):
            taken.append(_start(side, HOROVOD, ranks, memory))
    return [
        Row(f"{ranks} ranks, start to first allreduce, Horovod", "s", taken, at_most=25.0),
        Row(f"{ranks} ranks at their first allreduce, memory in all (PSS)", "MB", memory,
            at_most=MOST_MEMORY),
    ]  # fmt: skip


def _restart_and_memory(quick: bool) -> list[Row]:
    """Measure the restart of a rank with PyTorch and Horovod, and its memory by fork and exec."""
    taken: list[float] = []
    memory: dict[str, list[float]] = {}
    for kind in (Forked, Apart):
        with _side(kind, 2) as side:
            side.start()
            side.cell(HOROVOD)
            memory[kind.preload] = [_pss(psutil.Process(pid)) for pid in side.rank_pids()]
            if kind is Forked:
                for _ in range(2 if quick else 10):
                    taken.append(side.kernel.run("%cluster restart --ranks 1").ok().seconds)
    return [
        Row("restart of a rank with PyTorch", "s", taken, at_most=0.7),
        Row("memory of a rank at its first allreduce (PSS)", "MB", memory[PRELOAD], memory["none"],
            ratio_at_most=0.5, peer="by exec"),
    ]  # fmt: skip


@contextlib.contextmanager
def _side(kind: type, ranks: int) -> Iterator[Rankroom]:
    with workplace() as folder:
        side = kind(folder / kind.__name__, ranks)
        try:
            yield side
        finally:
            side.close()


def _start(side: Rankroom, source: str, ranks: int, memory: list[float] | None = None) -> float:
    """Return the seconds from the request for ranks until a cell has run on all of them."""
    try:
        taken = side.start() + side.cell(source, timeout=300).seconds
        side.kernel.run("%ranks pull total").ok()
        totals = side.kernel.value("list(total.values())")
        if totals != [ranks] * ranks:
            raise NotMeasured(f"not {ranks} ranks: {totals}")
        if memory is not None:
            own = side.kernel.process
            found = [each for each in processes(side.kernel.folder) if each != own]
            memory.append(sum(map(_pss, found)))
        return taken
    finally:
        side.stop()


def _start_engines(side: Px, ranks: int) -> float:
    meeting = side.kernel.folder / f"meeting-{time.time_ns()}"
    try:
        source = f'meeting = dict(init_method="file://{meeting}", rank=rank, world_size=size){DIST}'
        taken = side.start() + side.cell(source, timeout=300).seconds
        totals = side.kernel.value("view['total']")
        if totals != [ranks] * ranks:
            raise NotMeasured(f"not {ranks} engines: {totals}")
        return taken
    finally:
        side.stop()


def _launched(folder: Path, ranks: int, what: str) -> float:
    """Return the seconds from a launcher's start until the last rank has done its allreduce."""
    here = folder / f"{what}-{time.time_ns()}"
    here.mkdir()
    env = os.environ | {MARK: str(here)}
    if what == "horovod":
        source, rank = HOROVOD, "HOROVOD_RANK"
        words = ["-m", "horovod.runner.launch", "-np", str(ranks), "--gloo", sys.executable]
        env["PYTHONPATH"] = str(plain_horovod())
    else:
        source, rank = DIST, "RANK"
        words = ["-m", "torch.distributed.run", "--standalone", f"--nproc-per-node={ranks}"]
    (here / "first.py").write_text(SCRIPT.format(source=source, rank=rank))
    begun = time.time()
    done = subprocess.run(
        [sys.executable, *words, "first.py"],
        env=env, cwd=here, capture_output=True, timeout=600, check=False,
    )  # fmt: skip
    told = [list(map(float, path.read_text().split())) for path in here.glob("told.*")]
    if [total for total, _ in told] != [ranks] * ranks:
        raise NotMeasured(f"{what}: {len(told)} of {ranks} have met: {done.stderr[-400:]!r}")
    return max(at for _, at in told) - begun


def _pss(process: psutil.Process) -> float:
    return float(process.memory_full_info().pss)
