"""A rank raises while another waits for it in a collective: time until that one is released."""

from __future__ import annotations

from sides import Rankroom, workplace
from table import NotMeasured, Row

MOST = 0.1
SETUP = """
import time
import torch, torch.distributed as dist
import horovod.torch as hvd
hvd.init(); dist.init_process_group("gloo")
ones = torch.ones(1000)
"""
# Both ranks use the same clock, as they are on one machine.
CELL = """
try:
    if rank == 1:
        time.sleep(0.3)  # the other is in its collective by then
        raise ValueError("mine")
    {blocked}
finally:
    let_go = time.time()
"""
BLOCKED = {"Horovod": "hvd.allreduce(ones)", "torch.distributed": "dist.all_reduce(ones.clone())"}
WORKS = "hvd.allreduce(ones); dist.all_reduce(ones.clone())"


def measure(quick: bool) -> list[Row]:
    """Measure from the `raise` to the error in the other rank; then the next cell must work."""
    count = 4 if quick else 20
    with workplace() as folder:
        side = Rankroom(folder / "rankroom")
        try:
            side.start()
            side.cell(SETUP)
            taken = {
                name: [_once(side, blocked) for _ in range(count)]
                for name, blocked in BLOCKED.items()
            }
        finally:
            side.close()
    return [
        Row(f"{name}: let go after a peer's error", "ms", seconds, at_most=MOST)
        for name, seconds in taken.items()
    ]


def _once(side: Rankroom, blocked: str) -> float:
    error = side.kernel.run("%%distributed\n" + CELL.format(blocked=blocked)).error
    states = [rank.state for rank in side.latest().ranks]
    if states != ["released", "error"]:
        raise NotMeasured(f"{blocked}: the ranks ended as {states}; {error}")
    side.kernel.run("%ranks pull let_go").ok()
    waited, raised = side.kernel.value("[let_go[0], let_go[1]]")
    side.cell(WORKS)
    return waited - raised
