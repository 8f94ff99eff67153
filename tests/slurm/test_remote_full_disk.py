"""A laptop's disk is full when the site is reached again, or when a cell starts: no job ends."""

from __future__ import annotations

import time
from pathlib import Path

import pytest

from labs import jobs, profile
from machines import Machines
from remote import Laptop, assert_whole, begin, until

AWHILE_S = 12.0


@pytest.mark.thorough
def test_a_full_local_disk_at_reconnection_cancels_no_job(machines: Machines, gate: Path):
    with Laptop(machines, {"test": profile(nodes=2, ranks_per_node=1)}) as laptop:
        data = laptop.home / "data"
        machines.run("laptop", ["mkdir", "-p", data])
        machines.run("laptop", ["mount", "-t", "tmpfs", "-o", "size=4m,mode=700", "small", data])
        laptop.do("from numbered import assert_numbered, written; store = Store()")
        laptop.do("cluster = RemoteCluster.start(site.load('test'), 'small').until_ready()", 300)
        begin(laptop)
        job = laptop.do("cluster.refresh().remote.job")
        machines.unplug("laptop", "campus")
        try:
            until(laptop, "lost")
            machines.run("laptop", ["dd", "if=/dev/zero", f"of={data}/filler", "bs=4k"])
            assert "100%" in machines.run("laptop", ["df", data])
        finally:
            machines.plug("laptop", "campus")
        time.sleep(AWHILE_S)
        assert jobs(machines, "alice") == [job]
        assert laptop.do("run.state") == "running"
        machines.run("laptop", ["rm", data / "filler"])
        until(laptop, "running")
        gate.touch()
        assert_whole(laptop)
        laptop.do("cluster.stop()")


@pytest.mark.thorough
def test_a_run_started_on_a_full_local_disk_is_followed_once_space_is_freed(machines: Machines):
    with Laptop(machines, {"test": profile(nodes=2, ranks_per_node=1)}) as laptop:
        data = laptop.home / "data"
        machines.run("laptop", ["mkdir", "-p", data])
        machines.run("laptop", ["mount", "-t", "tmpfs", "-o", "size=4m,mode=700", "small", data])
        laptop.do("store = Store()")
        laptop.do("cluster = RemoteCluster.start(site.load('test'), 'small').until_ready()", 300)
        machines.run("laptop", ["dd", "if=/dev/zero", f"of={data}/filler", "bs=4k"])
        laptop.do("run = cluster.run('rank')")
        assert "No space left" in laptop.do("run.info.notes[-1]")
        assert laptop.do("run.wait(3) or run.state") == "running"
        machines.run("laptop", ["rm", data / "filler"])
        assert laptop.do("run.wait(60) and run.state") == "done"
        assert laptop.do("run.results") == {"0": "0", "1": "1"}
        laptop.do("cluster.stop()")
