"""The load of real ranks, as their supervisor reports it."""

from __future__ import annotations

import time

import pytest

from rankroom.cluster.local import Cluster
from rankroom.rpc.client import ask


@pytest.mark.cluster
def test_a_supervisor_says_how_busy_its_ranks_are(cluster: Cluster):
    run = cluster.run("import time\nif rank == 0:\n    while True: pass\ntime.sleep(1000)")
    try:
        deadline = time.monotonic() + 60
        while True:
            info = cluster.refresh()
            ranks = ask(info.rpc, info.rpc_key, do="look")["ranks"]
            if ranks["0"]["cpu"] > 2 * ranks["1"]["cpu"] + 5:
                break
            assert time.monotonic() < deadline, ranks
        assert ranks["1"]["memory"] > 10 << 20
    finally:
        run.interrupt()
        assert run.wait(60)
