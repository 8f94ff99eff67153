"""The cost of idle ranks between two cells: Horovod is initialized, and polls for work."""

from __future__ import annotations

import time
from collections.abc import Sequence

import psutil

from sides import Rankroom, workplace
from table import Row

SETTLE_S = 2.0
HOROVOD = "import horovod.torch as hvd, torch\nhvd.init()\nhvd.allreduce(torch.ones(4))"


def measure(quick: bool) -> list[Row]:
    """Measure the processor time that each idle rank takes per second."""
    seconds, times = (3.0, 2) if quick else (10.0, 6)
    with workplace() as folder:
        side = Rankroom(folder / "rankroom")
        try:
            side.start()
            side.cell(HOROVOD)
            time.sleep(SETTLE_S)
            found = []
            for _ in range(times):
                before = _used(side.rank_pids())
                time.sleep(seconds)
                after = _used(side.rank_pids())
                found += [(b - a) / seconds for a, b in zip(before, after, strict=True)]
        finally:
            side.close()
    return [Row("a rank that does nothing, with Horovod, a second", "ms", found, at_most=0.005)]


def _used(pids: Sequence[int]) -> list[float]:
    """Return the processor time of each process so far, in seconds."""
    times = [psutil.Process(pid).cpu_times() for pid in pids]
    return [each.user + each.system for each in times]
