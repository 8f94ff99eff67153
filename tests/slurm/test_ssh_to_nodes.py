"""A login node without TCP forwarding: ranks are reached by ssh to their node."""

from __future__ import annotations

import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from labs import jobs, profile
from machines import Machines
from remote import Laptop, assert_whole, begin, until, until_nothing_runs

SILENT_S = 10.0


@pytest.fixture(scope="module")
def laptop(machines: Machines) -> Iterator[Laptop]:
    """A laptop with a profile that allows ssh to the nodes, and one that does not."""
    file = machines.root / "ssh" / "sshd_config"
    file.write_text(file.read_text().replace("AllowTcpForwarding yes", "AllowTcpForwarding no"))
    # Only the login node's sshd reads the configuration again.
    machines.run("login", ["sh", "-c", "kill -HUP $(cat /run/sshd.pid)"])
    restarted = "Server listening"
    log = machines.root / "log" / "sshd-login.log"
    machines.until(lambda: log.read_text().count(restarted) > 2, "sshd with its new settings")
    sites = {
        "closed": profile(ranks_per_node=1),
        "nodes": profile(nodes=2, ranks_per_node=1, ssh_to_nodes=True),
    }
    with Laptop(machines, sites) as made:
        made.do("from numbered import assert_numbered, written; store = Store()")
        yield made


@pytest.mark.thorough
def test_a_refused_port_forward_is_reported_with_the_setting_to_add(laptop: Laptop):
    laptop.do("cluster = RemoteCluster.start(site.load('closed'), 'closed')")
    until(laptop, "lost")
    told = laptop.do("cluster.refresh().remote.words")
    assert "AllowTcpForwarding" in told and "`ssh_to_nodes = true`" in told, told
    laptop.do("cluster.stop()")
    until_nothing_runs(laptop.machines)


@pytest.mark.thorough
def test_a_run_survives_cut_connections_and_leaves_no_ssh_session(laptop: Laptop, gate: Path):
    machines = laptop.machines
    laptop.do("cluster = RemoteCluster.start(site.load('nodes'), 'nodes').until_ready()", 300)
    job, node = laptop.do("[cluster.refresh().remote.job, cluster.ranks[0].host]")
    begin(laptop)
    machines.unplug("laptop", "campus")
    try:
        until(laptop, "lost")
    finally:
        machines.plug("laptop", "campus")
    until(laptop, "running")
    # Cuts the connection from the login node to the node; the one to the login node stays open.
    machines.run(node, ["pkill", "-KILL", "-u", "alice", "sshd"])
    until(laptop, "lost")
    until(laptop, "running")
    assert jobs(machines) == [job]
    gate.touch()
    assert_whole(laptop)
    laptop.do("cluster.stop()")
    until_nothing_runs(machines)
    assert sessions(machines, node) == []


def sessions(machines: Machines, node: str) -> list[str]:
    """The ssh connections to a node that are still open after `SILENT_S`."""
    until = time.monotonic() + SILENT_S
    while found := machines.run(node, ["ss", "-Htn", "sport = :22"]).splitlines():
        if time.monotonic() > until:
            break
        time.sleep(0.2)
    return found
