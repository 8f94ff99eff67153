"""A cluster on a site survives a cut connection, a sleeping laptop, and the end of its local agent.

In the end, the local record has every line of a run exactly once.
"""

from __future__ import annotations

import json
import signal
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from labs import jobs, profile
from machines import Machines
from rankroom.system.polling import poll_until
from remote import Laptop, assert_whole, begin, on_site, until, until_nothing_runs

AWHILE_S = 3.0
SLEEP_S = 15.0
SILENT_S = 35.0  # longer than the local agent waits for the supervisor's reports
SUPERVISOR = "rankroom.supervisor.supervisor"
RAW = ["--raw", "--noheadings", "--output=SOFT,HARD"]


@pytest.fixture(scope="module")
def laptop(machines: Machines) -> Iterator[Laptop]:
    """A laptop with a cluster of two ranks on two nodes."""
    with Laptop(machines, {"test": profile(nodes=2, ranks_per_node=1)}) as made:
        made.do("from numbered import assert_numbered, written")
        made.do("cluster = RemoteCluster.start(site.load('test'), 'far'); store = Store()")
        made.do("cluster.until_ready()", 300)
        yield made
        made.do("cluster.stop()")
        until_nothing_runs(machines)


def test_a_cut_connection_is_reported_and_the_run_continues(laptop: Laptop, gate: Path):
    begin(laptop)
    laptop.machines.unplug("laptop", "campus")
    try:
        until(laptop, "lost")
        assert "is lost" in laptop.do("cluster.refresh().remote.words")
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


def test_a_run_that_ends_while_disconnected_has_a_complete_record(laptop: Laptop, gate: Path):
    begin(laptop)
    laptop.machines.unplug("laptop", "campus")
    until(laptop, "lost")
    gate.touch()
    record = on_site(laptop, laptop.do("run.id")) / "run.json"
    assert poll_until(lambda: json.loads(record.read_text())["state"] == "done", 60)
    laptop.machines.plug("laptop", "campus")
    until(laptop, "running")
    assert_whole(laptop)
    assert laptop.do("run = cluster.run('rank'); run.wait(60); run.results") == {"0": "0", "1": "1"}


@pytest.mark.parametrize("how", [signal.SIGTERM, signal.SIGKILL])
def test_attaching_resumes_the_run_of_a_killed_local_agent(laptop: Laptop, gate: Path, how):
    begin(laptop)
    laptop.do(f"os.kill(cluster.refresh().supervisor, {int(how)})")
    laptop.until("not cluster.running")
    refused = laptop.do("refused(lambda: cluster.run('1'))")
    assert "the local agent of cluster far is gone" in refused
    laptop.until("run.state == 'lost'")
    laptop.do("cluster.close()\ncluster = Cluster.attach('far')")
    assert laptop.do("cluster.latest.id == run.id")
    laptop.do("run = cluster.latest")
    gate.touch()
    assert_whole(laptop)


def test_a_killed_ssh_process_is_replaced_and_the_run_continues(laptop: Laptop, gate: Path):
    """The local ssh process is killed, and nothing reports that to the local agent."""
    begin(laptop)
    ssh = laptop.machines.run("laptop", ["pgrep", "-f", "ssh_config"]).split()
    laptop.machines.run("laptop", ["kill", f"-{signal.SIGKILL.value}", *ssh])
    laptop.until("len(cluster.paths.supervisor_log.read_text().split('lost')) > 1")
    until(laptop, "running")
    gate.touch()
    assert_whole(laptop)


def test_a_laptop_that_was_suspended_completes_its_record(laptop: Laptop, gate: Path):
    """The agent and ssh are stopped for longer than a connection may be silent."""
    begin(laptop)
    agent = laptop.do("cluster.refresh().supervisor")
    ssh = laptop.machines.run("laptop", ["pgrep", "-f", "ssh_config"]).split()
    stopped = [str(agent), *ssh]
    laptop.machines.run("laptop", ["kill", "-STOP", *stopped])
    time.sleep(SLEEP_S)
    laptop.machines.run("laptop", ["kill", "-CONT", *stopped])
    until(laptop, "running")
    gate.touch()
    assert_whole(laptop)


@pytest.mark.parametrize("where", ["there", "here"])
def test_a_cluster_file_missing_for_a_while_ends_no_run_and_no_job(
    laptop: Laptop, gate: Path, where: str
):
    there = laptop.machines.home("alice") / ".local/share/rankroom/clusters"
    file = (there if where == "there" else laptop.clusters) / "far/cluster.json"
    begin(laptop)
    job = laptop.do("cluster.refresh().remote.job")
    file.rename(file.with_name("aside"))
    try:
        time.sleep(AWHILE_S)
        assert laptop.do("[run.state, cluster.running, cluster.alive]") == ["running", True, [0, 1]]
    finally:
        file.with_name("aside").rename(file)
    gate.touch()
    assert_whole(laptop)
    assert jobs(laptop.machines, "alice") == [job]


@pytest.mark.thorough
def test_a_silent_supervisor_is_reported_but_its_run_is_not_ended(laptop: Laptop, gate: Path):
    begin(laptop)
    node = laptop.do("cluster.ranks[0].host")
    found = laptop.machines.run(node, ["pgrep", "-u", "alice", "-f", SUPERVISOR]).split()
    assert len(found) == 1
    laptop.machines.run(node, ["kill", "-STOP", *found])
    try:
        time.sleep(SILENT_S)
        assert laptop.do("run.state") == "running"
        refused = laptop.do("refused(lambda: cluster.run('1'))")
        assert refused.startswith("SshError: cluster far cannot be reached now: the supervisor of")
        assert "does not answer" in laptop.do("cluster.refresh().remote.words")
        assert "\n" not in refused
    finally:
        laptop.machines.run(node, ["kill", "-CONT", *found])
    until(laptop, "running")
    gate.touch()
    assert_whole(laptop)


@pytest.mark.thorough
def test_a_local_agent_out_of_file_descriptors_cancels_no_job(laptop: Laptop, gate: Path):
    begin(laptop)
    job, supervisor = laptop.do("[cluster.refresh().remote.job, cluster.info.supervisor]")
    laptop.machines.unplug("laptop", "campus")
    try:
        until(laptop, "lost")
        before = laptop.machines.run("laptop", ["prlimit", f"--pid={supervisor}", "--nofile", *RAW])
        soft, hard = before.split()
        laptop.machines.run("laptop", ["prlimit", f"--pid={supervisor}", f"--nofile=3:{hard}"])
    finally:
        laptop.machines.plug("laptop", "campus")
    try:
        time.sleep(3 * AWHILE_S)
        assert jobs(laptop.machines, "alice") == [job]
    finally:
        laptop.machines.run("laptop", ["prlimit", f"--pid={supervisor}", f"--nofile={soft}:{hard}"])
    until(laptop, "running")
    gate.touch()
    assert_whole(laptop)
    assert laptop.do("[cluster.refresh().remote.job, cluster.info.supervisor]") == [job, supervisor]


def test_two_kernels_share_a_cluster(laptop: Laptop, gate: Path):
    begin(laptop)
    laptop.do("other = Cluster.attach('far')")
    assert "is busy with a run" in laptop.do("refused(lambda: other.run('1'))")
    assert laptop.do("other.latest.id == run.id")
    gate.touch()
    assert_whole(laptop)
    laptop.do("again = other.run('rank'); again.wait(60)")
    assert laptop.do("again.results") == {"0": "0", "1": "1"}
    laptop.do("other.close()")
