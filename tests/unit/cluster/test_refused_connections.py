"""A supervisor on another machine that refuses a connection: gone, or behind a site's firewall."""

from __future__ import annotations

import socket

import pytest

from rankroom.cluster import actions, launch, liveness
from rankroom.errors import StartError
from rankroom.record.cluster_file import Allocation, ClusterInfo, ClusterPaths, Node


def refuses(node: str, scheduler: str = "slurm") -> ClusterInfo:
    """A cluster of a job on `node`, whose supervisor's port is closed."""
    with socket.create_server(("127.0.0.1", 0)) as closed:
        port = closed.getsockname()[1]
    granted = Allocation("7", (Node(node, 1, 0, 1),), 0.0, scheduler)  # type: ignore[arg-type]
    info = ClusterInfo("far", 1, "running", allocation=granted, host="c1", supervisor=1)
    info.rpc, info.rpc_key = f"127.0.0.1:{port}", "0" * 64
    return info


@pytest.fixture
def slurm(tmp_path, monkeypatch: pytest.MonkeyPatch):
    """Return a function that makes Slurm report a state of the job."""

    def says(state: str) -> None:
        liveness._over.cache_clear()
        command = tmp_path / "scontrol"
        command.write_text(f"#!/bin/sh\necho JobId=7 JobState={state}\n")
        command.chmod(0o755)
        monkeypatch.setenv("PATH", str(tmp_path), prepend=":")

    yield says
    liveness._over.cache_clear()


def test_outside_a_job_the_scheduler_says_whether_the_cluster_is_gone(slurm):
    slurm("RUNNING")
    assert liveness.state(refuses("c1")) == "unknown"
    assert liveness.alive(refuses("c1"))
    slurm("TIMEOUT")
    assert liveness.state(refuses("c1")) == "gone"
    # Slurm's answer does not apply to a job of another scheduler.
    assert liveness.state(refuses("c1", "pbs")) == "unknown"


def test_on_a_node_of_the_job_a_closed_port_means_the_supervisor_is_gone(slurm):
    slurm("RUNNING")
    assert liveness.state(refuses(f"{socket.gethostname().partition('.')[0]}.cluster")) == "gone"


def test_an_unreachable_cluster_is_not_reported_as_stopped(home, slurm, monkeypatch):
    slurm("RUNNING")
    paths = ClusterPaths("far")
    paths.make(1)
    paths.write(refuses("c1"))
    wait_end = launch.wait_end
    monkeypatch.setattr(launch, "wait_end", lambda *given, **how: wait_end(*given, 0.1, **how))
    with pytest.raises(StartError, match="far could not be reached on c1, and may still be runn"):
        actions.stop("far")
    assert paths.read() is not None
    ends = refuses("c1")
    ends.state = "ending"
    paths.write(ends)
    assert actions.end(paths, ends) == "cluster far is still being stopped"
    ends.state = "failed"  # as its supervisor recorded
    paths.write(ends)
    actions.stop("far")
    slurm("COMPLETED")
    paths.make(1)
    paths.write(refuses("c1"))
    actions.stop("far")
    assert paths.read() is None
