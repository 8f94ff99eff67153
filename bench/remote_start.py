"""From a running job to the end of the first cell, on the test cluster: at most 10 s are promised.

`python bench/remote_start.py [TIMES]` needs what tests/slurm needs. It starts a cluster of two
ranks on two nodes from the laptop, over the login node, runs one cell, and stops it.
"""

from __future__ import annotations

import statistics
import sys
from pathlib import Path

sys.path[:0] = [str(Path(__file__).parents[1] / "tests" / each) for each in ("slurm", "support")]

from labs import profile  # noqa: E402
from machines import Machines, missing  # noqa: E402
from remote import Laptop  # noqa: E402

ONE = """
times = {}
def tell(words):
    state = next(iter(all_clusters())).remote.state
    times.setdefault(state, time.monotonic())
cluster = RemoteCluster.start(site.load("test")).until_ready(tell)
ready = time.monotonic()
run = cluster.run("rank")
assert run.wait(60) and run.state == "done"
done = time.monotonic()
cluster.stop()
[ready - times["starting"], done - times["starting"], done - ready]
"""


def main(times: int) -> None:
    """Print how long each start took, and the median."""
    if why := missing():
        raise SystemExit(why)
    machines = Machines()
    took = []
    try:
        machines.up()
        with Laptop(machines, {"test": profile(nodes=2, ranks_per_node=1)}) as laptop:
            for _ in range(times):
                ready, done, cell = laptop.do(ONE, 300)
                took.append(done)
                print(f"ready after {ready:.1f} s, first cell done after {done:.1f} s"
                      f" ({cell * 1e3:.0f} ms of it the cell)")  # fmt: skip
    finally:
        machines.down()
    print(f"from RUNNING to the first cell done: {statistics.median(took):.1f} s (median)")


if __name__ == "__main__":
    main(int(sys.argv[1]) if len(sys.argv) > 1 else 3)
