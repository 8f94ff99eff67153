"""A rank fails while ranks set up a library, or before a peer begins: no rank is left waiting."""

from __future__ import annotations

import signal
import subprocess
import threading
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from cells import failure, finish, states, values
from rankroom.cluster.local import Cluster
from rankroom.system.polling import poll_until

pytestmark = pytest.mark.cluster

BUSY_S = 15.0  # even on a busy machine; Gloo alone would wait for 30 s, and torch for many minutes
SETUP = """
import os, time
import torch, torch.distributed as dist
import horovod.torch as hvd
from rankroom.rank.frameworks.torch import torch_adapter
from rankroom.rank.world import World
ones = torch.ones(2)
"""
# The function that a rank calls when all have announced the setup, before they connect; and code
# that sets the library up and uses it.
POINTS = {
    "hvd.init()": ("World.open_store", "hvd.init(); hvd.allreduce(ones, op=hvd.Sum).tolist()"),
    "init_process_group()": (
        "torch_adapter._master",
        "dist.init_process_group('gloo'); dist.all_reduce(sent := ones.clone()); sent.tolist()",
    ),
}
FAILS = {
    "raises": "raise ValueError('mine')",
    "is killed": f"os.kill(os.getpid(), {int(signal.SIGKILL)})",
}


@pytest.fixture
def ranks(home: object) -> Iterator[Cluster]:
    made = Cluster.local(ranks=2, preload="torch,horovod.torch")
    try:
        yield made
    finally:
        made.stop()


@pytest.mark.parametrize(
    ("library", "how"),
    [
        ("hvd.init()", "is killed"),
        ("init_process_group()", "raises"),
        pytest.param("hvd.init()", "raises", marks=pytest.mark.thorough),
        pytest.param("init_process_group()", "is killed", marks=pytest.mark.thorough),
    ],
)
def test_a_rank_that_connects_to_a_failing_rank_is_released(ranks: Cluster, library: str, how: str):
    point, used = POINTS[library]
    finish(ranks, SETUP)
    run = ranks.run(f"""
if rank == 1:
    kept = {point}
    def fail(*about):
        {point} = kept
        time.sleep(0.5)  # the other waits by then
        {FAILS[how]}
    {point} = fail
{used}
""")
    begun = time.monotonic()
    assert run.wait(60)
    assert time.monotonic() - begun < BUSY_S
    if how == "raises":
        assert failure(run) == "rank 1: ValueError: mine"
        assert states(run) == {0: "released", 1: "error"}
    else:
        assert failure(run).startswith("rank 1: RankLost: rank 1 was killed by SIGKILL")
        ranks.restart([1])
        finish(ranks, SETUP)
    assert values(ranks, used) == 2 * [[2.0, 2.0]]


def test_a_rank_that_was_busy_when_its_peer_failed_is_released_from_hvd_init(
    ranks: Cluster, tmp_path: Path
):
    """A request, such as another notebook's, keeps rank 1 busy until rank 0 has long failed."""
    finish(ranks, SETUP)
    asked = ["sh", "-c", f"touch {tmp_path}/begun; sleep 3"]
    busy = threading.Thread(target=ranks.apply, args=(1, subprocess.run, asked))
    busy.start()
    assert poll_until((tmp_path / "begun").exists, 60.0)
    run = ranks.run("if rank == 0:\n    raise ValueError('mine')\nhvd.init()")
    assert run.wait(3.0 + BUSY_S)
    busy.join()
    assert failure(run) == "rank 0: ValueError: mine"
    assert states(run) == {0: "error", 1: "released"}
    assert values(ranks, "hvd.init(); hvd.allreduce(ones, op=hvd.Sum).tolist()") == 2 * [[2.0, 2.0]]
