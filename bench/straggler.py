"""A rank that is late on purpose: whether the profile names it, and how accurate its cost is.

The last rank sleeps 20 ms before each of 50 allreduces and measures how long it really slept, which
is what it costs the others. With PyTorch and in TensorFlow's graph mode, on 2 and on 4 ranks.
"""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import contextmanager

from rankroom.analysis.profile import Profile
from rankroom.cluster.local import Cluster
from sides import workplace
from table import NotMeasured, Row

CALLS = 50
SETUP = {
    "torch": """
import horovod.torch as hvd, torch
torch.set_num_threads(1)
hvd.init()
ones = torch.ones(1000)
def reduce():
    return hvd.allreduce(ones, name="gradient")
reduce()
""",
    "tensorflow": """
import os
os.environ["TF_CPP_MIN_LOG_LEVEL"] = "3"
import tensorflow as tf, horovod.tensorflow as htf
htf.init()
ones = tf.ones(1000)
@tf.function
def reduce():
    return htf.allreduce(ones, name="gradient")
reduce()
""",
}
LATE = f"""
import time
slept = 0.0
for _ in range({CALLS}):
    if rank == size - 1:
        begin = time.perf_counter()
        time.sleep(0.02)
        slept += time.perf_counter() - begin
    reduce()
slept
"""


def measure(quick: bool) -> list[Row]:
    """Compare the cost that the profile states with the time that was really slept."""
    rows = []
    with workplace() as folder:
        os.environ["RANKROOM_HOME"] = str(folder / "home")
        for size in (2, 4):
            with ranks(size) as cluster:
                for framework, setup in SETUP.items():
                    done(cluster, setup)
                    found = [late(cluster, size - 1) for _ in range(1 if quick else 5)]
                    rows.append(
                        Row(
                            f"straggler on {size} ranks, {framework}",
                            "s",
                            [cost for cost, _, _ in found],
                            [slept for _, slept, _ in found],
                            ratio_at_least=0.9,
                            ratio_at_most=1.1,
                            peer="slept",
                            detail={"diagnoses": [words for _, _, words in found]},
                        )
                    )
    return rows


def late(cluster: Cluster, rank: int) -> tuple[float, float, str]:
    """Return the straggler's cost in the profile, how long it slept, and the diagnosis."""
    profile, results = done(cluster, LATE)
    if not profile.stragglers or profile.stragglers[0].rank != rank:
        raise NotMeasured(f"rank {rank} is not the first straggler:\n{profile}")
    if f": rank {rank} arrives last in " not in profile.diagnosis:
        raise NotMeasured(f"rank {rank} is not named: {profile.diagnosis}")
    if profile.stragglers[0].of != CALLS:
        raise NotMeasured(f"{profile.stragglers[0].of} collectives, not {CALLS}")
    return profile.stragglers[0].cost / 1e6, float(results[rank]), profile.diagnosis


def done(cluster: Cluster, source: str) -> tuple[Profile, dict[int, str]]:
    """Run a cell on all ranks; return its profile and its results by rank."""
    run = cluster.run(source)
    if not run.wait(180) or run.state != "done":
        raise NotMeasured(f"the cell ended as {run.state}: {run.info.failure}")
    return run.profile(), run.results


@contextmanager
def ranks(size: int) -> Iterator[Cluster]:
    """Start a cluster of `size` ranks."""
    cluster = Cluster.local(ranks=size)
    try:
        yield cluster
    finally:
        cluster.stop()
