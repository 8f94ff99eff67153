"""A cluster's file, on its site or on the laptop, cannot be read for a while at each stage of the
cluster's life: nothing is cancelled, lost or left behind."""

from __future__ import annotations

import contextlib
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from labs import jobs, profile
from machines import Machines
from remote import Laptop, assert_whole, begin, files, until_nothing_runs
from unreadable import broken, hidden

Away = Callable[[Path], contextlib.AbstractContextManager[None]]
ALIVE = "[cluster.running, cluster.refresh().state, cluster.alive]"


@pytest.fixture(scope="module")
def laptop(machines: Machines) -> Iterator[Laptop]:
    with Laptop(machines, {"test": profile(nodes=2, ranks_per_node=1)}) as made:
        made.do("from numbered import assert_numbered, written; store = Store()")
        yield made


@contextlib.contextmanager
def away_for(seconds: float, away: Away, file: Path) -> Iterator[None]:
    """Keep the file away for exactly this time, however long the block takes."""

    def be_away() -> None:
        with away(file):
            time.sleep(seconds)

    hiding = threading.Thread(target=be_away)
    hiding.start()
    try:
        yield
    finally:
        hiding.join()


@pytest.mark.parametrize(
    ("where", "away", "seconds"),
    [
        pytest.param("here", broken, 5.0, marks=pytest.mark.thorough),
        ("there", hidden, 5.0),
        pytest.param("here", hidden, 60.0, marks=pytest.mark.thorough),
        pytest.param("there", broken, 60.0, marks=pytest.mark.thorough),
    ],
)
def test_an_unreadable_cluster_file_ends_no_run_and_cancels_no_job(
    laptop: Laptop, gate: Path, where: str, away: Away, seconds: float
):
    there = laptop.machines.home("alice") / ".local/share/rankroom/clusters"
    file = (there if where == "there" else laptop.clusters) / "away" / "cluster.json"
    with away_for(seconds, away, file):  # while it is submitted and starts
        laptop.do("cluster = RemoteCluster.start(site.load('test'), 'away').until_ready()", 300)
    job = laptop.do("cluster.refresh().remote.job")
    with away(file):  # while it is idle
        time.sleep(seconds)
        assert laptop.do(ALIVE) == [True, "running", [0, 1]]
        assert laptop.do("run = cluster.run('rank'); run.wait(60) and run.state") == "done"
    begin(laptop)
    with away(file):
        time.sleep(seconds)
        assert laptop.do(ALIVE) == [True, "running", [0, 1]]
        assert laptop.do("run.state") == "running"
    gate.touch()
    assert_whole(laptop)
    assert jobs(laptop.machines, "alice") == [job]
    with away(file):
        laptop.do("cluster.stop()")
        until_nothing_runs(laptop.machines)
    laptop.until_unkept()
    assert not (laptop.clusters / "away").exists()
    assert files(laptop.machines) == []
