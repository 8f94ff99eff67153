"""What a cluster on a site outlives: a cut line, a laptop that sleeps, and the death of its keeper
or its desk. Every line of a run is here in the end, and none twice."""

from __future__ import annotations

import signal
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from far import Laptop, until_nothing_runs
from labs import profile
from machines import Machines
from numbered import GATED

NUMBERED = GATED.format(gate="gate")


@pytest.fixture(scope="module")
def laptop(machines: Machines) -> Iterator[Laptop]:
    """With one cluster of two ranks on two nodes."""
    with Laptop(machines, {"test": profile(nodes=2, ranks_per_node=1)}) as made:
        made.do("from numbered import assert_numbered, written")
        made.do("cluster = FarCluster.start(site.load('test'), 'far'); store = Store()")
        made.do("cluster.until_ready()", 300)
        yield made
        made.do("cluster.stop()")
        until_nothing_runs(machines)


@pytest.fixture
def gate(machines: Machines) -> Iterator[Path]:
    """Where it is, `NUMBERED` comes to its end."""
    file = machines.home("alice") / "gate"
    yield file
    machines.plug("laptop", "campus")
    file.unlink(missing_ok=True)


def begin(laptop: Laptop) -> None:
    """Have numbered lines come."""
    laptop.do(f"run = cluster.run({NUMBERED!r})")
    laptop.until("len(written(store, run.id, 1)) > 1000")


def state(laptop: Laptop) -> str:
    return laptop.do("cluster.refresh().far.state")


def until(laptop: Laptop, wanted: str) -> None:
    laptop.until(f"cluster.refresh().far.state == {wanted!r}")


def assert_whole(laptop: Laptop) -> None:
    """The run ended well, and its copy has each line once and is what is there."""
    assert laptop.do("run.wait(90) and run.state", 120) == "done"
    counts = laptop.do(
        """
ends = {rank: int(text.split()[0].strip("'")) for rank, text in run.results.items()}
[assert_numbered(store, run.id, rank, ends[rank]) for rank in (0, 1)]
"""
    )
    assert min(counts) >= 50
    run, here = laptop.do("[run.id, store.paths(run.id).events.read_text()]")
    runs = laptop.machines.home("alice") / ".local/share/rankroom/runs"
    assert here == (runs / run / "events.jsonl").read_text()


def test_a_cut_line_is_told_and_the_run_goes_on(laptop: Laptop, gate: Path):
    begin(laptop)
    laptop.machines.unplug("laptop", "campus")
    try:
        until(laptop, "lost")
        assert "is lost" in laptop.do("cluster.refresh().far.words")
        refused = laptop.do("refused(lambda: cluster.run('1'))")
        why = "cluster far cannot be reached now: the connection to login is"
        assert refused.startswith(f"SshError: {why}")
        assert "SshError" in laptop.do("refused(run.interrupt)")
    finally:
        laptop.machines.plug("laptop", "campus")
    until(laptop, "running")
    assert laptop.do("run.state") == "running"
    gate.touch()
    assert_whole(laptop)


def test_a_run_that_ends_while_the_line_is_cut_is_whole(laptop: Laptop, gate: Path):
    begin(laptop)
    laptop.machines.unplug("laptop", "campus")
    until(laptop, "lost")
    gate.touch()
    laptop.machines.plug("laptop", "campus")
    until(laptop, "running")
    assert_whole(laptop)
    assert laptop.do("run = cluster.run('rank'); run.wait(60); run.results") == {"0": "0", "1": "1"}


@pytest.mark.parametrize("how", [signal.SIGTERM, signal.SIGKILL])
def test_another_keeper_goes_on_where_one_was_killed(laptop: Laptop, gate: Path, how):
    begin(laptop)
    laptop.do(f"os.kill(cluster.refresh().keeper, {int(how)})")
    laptop.until("not cluster.running")
    refused = laptop.do("refused(lambda: cluster.run('1'))")
    assert "the process that kept cluster far here is gone" in refused
    laptop.until("run.state == 'lost'")
    laptop.do("cluster.close()\ncluster = Cluster.attach('far')")
    assert laptop.do("[each.id == run.id for each in cluster.adopted]") == [True]
    laptop.do("run = cluster.adopted[0]")
    gate.touch()
    assert_whole(laptop)


def test_another_desk_goes_on_where_one_was_killed(laptop: Laptop, gate: Path):
    begin(laptop)
    said = laptop.machines.run("login", ["pgrep", "-f", "rankroom.far.desk"], "alice").split()
    assert said
    laptop.machines.run("login", ["kill", f"-{signal.SIGKILL.value}", *said], "alice")
    laptop.until("len(cluster.paths.keeper_log.read_text().split('lost')) > 1")
    until(laptop, "running")
    gate.touch()
    assert_whole(laptop)


def test_a_sleeping_laptop_wakes_up_to_a_whole_record(laptop: Laptop, gate: Path):
    """All that is the user's on it stands still for longer than the desk listens for a keeper."""
    begin(laptop)
    keeper = laptop.do("cluster.refresh().keeper")
    ssh = laptop.machines.run("laptop", ["pgrep", "-f", "ssh_config"]).split()
    stopped = [str(keeper), *ssh]
    laptop.machines.run("laptop", ["kill", "-STOP", *stopped])
    desk = ["pgrep", "-f", "rankroom.far.desk"]
    until_gone(laptop.machines, desk)
    laptop.machines.run("laptop", ["kill", "-CONT", *stopped])
    until(laptop, "running")
    laptop.until("len(cluster.paths.keeper_log.read_text().split('lost')) > 1")
    gate.touch()
    assert_whole(laptop)


def until_gone(machines: Machines, words: list[str]) -> None:
    deadline = time.monotonic() + 90
    while machines.run("login", words, "alice").split():
        assert time.monotonic() < deadline
        time.sleep(0.1)


def test_two_kernels_share_a_cluster(laptop: Laptop, gate: Path):
    begin(laptop)
    laptop.do("other = Cluster.attach('far')")
    assert "is busy with a run" in laptop.do("refused(lambda: other.run('1'))")
    assert laptop.do("[each.id for each in other.adopted] == [run.id]")
    gate.touch()
    assert_whole(laptop)
    laptop.do("again = other.run('rank'); again.wait(60)")
    assert laptop.do("again.results") == {"0": "0", "1": "1"}
    laptop.do("other.close()")
