"""A cluster on a site while Slurm's controller is down or a node is drained: running ranks go on,
and clients get an answer."""

from __future__ import annotations

import time
from collections.abc import Iterator

import pytest

from labs import jobs, profile
from machines import Machines
from remote import Laptop, until_nothing_runs

SITES = {"test": profile(ranks_per_node=1), "all": profile(nodes=4, ranks_per_node=1)}


@pytest.fixture
def laptop(machines: Machines) -> Iterator[Laptop]:
    with Laptop(machines, SITES) as made:
        yield made


@pytest.mark.thorough
def test_a_start_fails_cleanly_without_the_controller(machines: Machines, laptop: Laptop):
    machines.crash("ctl")
    try:
        said = laptop.do(
            "refused(lambda: RemoteCluster.start(site.load('test')).until_ready())", 300
        )
    finally:
        machines.boot("ctl")
        machines.until_idle()
    assert "`sbatch --parsable` on login failed" in said
    assert "Unable to contact slurm controller" in said
    assert "The scheduler is down or being restarted" in said
    laptop.until("not any(each.state == 'running' for each in all_clusters())")
    until_nothing_runs(machines)


def test_ranks_go_on_while_the_controller_is_down(machines: Machines, laptop: Laptop):
    laptop.do("cluster = RemoteCluster.start(site.load('test')).until_ready()", 300)
    machines.crash("ctl")
    try:
        assert laptop.do("run = cluster.run('rank'); run.wait(60); run.results") == {"0": "0"}
        assert laptop.do("cluster.refresh().remote.state") == "running"
    finally:
        machines.boot("ctl")
    assert laptop.do("run = cluster.run('rank'); run.wait(60); run.results") == {"0": "0"}
    # A process that the cell started prints after the cell has ended, with no later cell.
    cell = "import subprocess\nsubprocess.Popen('sleep 1; echo later; sleep 600', shell=True)"
    assert laptop.do(f"run = cluster.run({cell!r}); run.wait(60) and run.state") == "done"
    spools = machines.home("alice") / ".local/share/rankroom/clusters"
    until = time.monotonic() + 60
    while [each.read_text() for each in spools.glob("*/spool/*/stdout")].count("later\n") != 1:
        assert time.monotonic() < until
        time.sleep(0.2)
    laptop.do("cluster.stop()", 120)
    said = "[e['text'] for e in Store().events(run.id) if e['kind'] == 'log']"
    laptop.until(f"{said} == ['later\\n']")
    until_nothing_runs(machines)
    machines.until_idle()


@pytest.mark.thorough
def test_a_stop_during_an_outage_cancels_the_job_later(machines: Machines, laptop: Laptop):
    """Its job is cancelled as soon as the controller is back."""
    laptop.do("cluster = RemoteCluster.start(site.load('test')).until_ready()", 300)
    machines.crash("ctl")
    try:
        said = laptop.do("refused(cluster.stop)", 120)
        assert "keeps trying to cancel" in said
    finally:
        machines.boot("ctl")
    until_nothing_runs(machines)
    laptop.until("not [each for each in all_clusters() if each.state != 'stopped']")
    assert jobs(machines) == []
    machines.until_idle()


@pytest.mark.thorough
def test_a_drained_node_is_named_while_a_job_waits_for_it(machines: Machines, laptop: Laptop):
    drain = ["scontrol", "update", "NodeName=c3", "State=DRAIN", "Reason=a fan is broken"]
    machines.run("ctl", drain)
    try:
        laptop.do("cluster = RemoteCluster.start(site.load('all'))")
        # Slurm gives this reason in either form, perhaps after a different one.
        ways = "ReqNodeNotAvail: nodes that it needs are down", "Nodes required for job are DOWN"
        told = [f"is waiting in the queue ({way}" for way in ways]
        laptop.until(f"any(each in cluster.refresh().remote.words for each in {told})")
    finally:
        machines.resume("c3")
    laptop.do("cluster.until_ready()", 300)
    assert laptop.do("cluster.size") == 4
    machines.run("ctl", drain)  # a draining node lets its jobs finish
    try:
        run = "run = cluster.run('rank'); run.wait(60); run.results"
        assert laptop.do(run) == {str(rank): str(rank) for rank in range(4)}
    finally:
        machines.resume("c3")
    laptop.do("cluster.stop()", 120)
    until_nothing_runs(machines)
    machines.until_idle()
