"""Clusters on sites whose local agent is gone, as after a reboot of the laptop."""

from __future__ import annotations

import os
import time
from pathlib import Path
from typing import Any

import pytest

from rankroom.cluster import actions, launch, liveness, lookup
from rankroom.cluster.base import AnyCluster
from rankroom.errors import StartError
from rankroom.notebook import cluster_magic
from rankroom.record.cluster_file import Allocation, ClusterInfo, ClusterPaths, Node, Remote
from rankroom.record.owner import this_process
from rankroom.record.retention import DAY_S
from rankroom.remote import start
from rankroom.remote.cluster import RemoteCluster
from rankroom.scheduler.site import Site
from rankroom.supervisor.processes import start_limit
from rankroom.system import pid_space
from rankroom.system.pid_space import PidSpace
from rankroom.system.polling import poll_until
from record_makers import finished_record

NOW = PidSpace("laptop", "machine", "boot", "pid")


@pytest.fixture(autouse=True)
def laptop(home: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(pid_space, "here", lambda: NOW)


def cluster(
    name: str = "far", space: PidSpace = NOW, job: str = "77",
    others: list[str] | None = None, **fields: Any,
) -> ClusterPaths:  # fmt: skip
    """A cluster with ranks in job 77 of a site; by default, its local agent has ended."""
    paths = ClusterPaths(name)
    paths.make(0)
    remote = Remote("hpc", state="running", job=job, name=name, others=others)
    usual = {"supervisor": os.getpid(), "began": 1, "host": space.host, **fields}
    paths.write(ClusterInfo(name, 1, "running", space=str(space), remote=remote, **usual))
    return paths


def test_a_cluster_whose_agent_cannot_be_restarted_is_not_stopped(monkeypatch: pytest.MonkeyPatch):
    """Only an agent can cancel its job, and only its folder leads to the job."""
    monkeypatch.setattr(start, "relaunch", lambda paths: None)
    monkeypatch.setattr(start_limit, "START_TIMEOUT_S", 0.1)
    paths = cluster()
    with pytest.raises(StartError, match="its job 77 on hpc has not been cancelled"):
        actions.stop("far")
    assert paths.read() is not None
    paths.remove()
    cluster("near", job="", others=[])
    with pytest.raises(StartError, match="so a job that it may have on hpc has not been cancelled"):
        actions.stop("near")


def test_a_cluster_that_fails_while_it_is_being_stopped_is_removed(monkeypatch: pytest.MonkeyPatch):
    me, asked = this_process(), []
    paths = cluster(supervisor=me.pid, began=me.began)

    def ask(info: ClusterInfo, *about: object, **more: object) -> dict[str, Any]:
        """The agent records the failure just as it is asked to stop."""
        asked.append(1)
        assert info.remote is not None
        info.state = info.remote.state = "failed"
        paths.write(info)
        return {"text": ""}

    monkeypatch.setattr(actions, "_ask", ask)
    monkeypatch.setattr(liveness, "process_state", lambda info: "gone" if asked else "runs")
    assert actions.stop("far") == "" and asked
    assert not paths.folder.exists()


@pytest.mark.parametrize("granted", [None, Allocation("77", (Node("c1", 1),))])
def test_after_a_reboot_a_remote_cluster_is_found_without_its_name(granted: Allocation | None):
    """Even with a known allocation of its job, as the agent ran on this machine."""
    paths = cluster(space=NOW._replace(boot="before"), allocation=granted, rpc="ipc:///gone")
    info = paths.read()
    assert info is not None and liveness.state(info) == "gone"
    cluster("another", NOW._replace(host="desk", machine="desk"), allocation=granted)
    assert [info.name for info in lookup.clusters_in_use()] == ["far"]
    assert lookup.find(None).name == "far"


def test_a_resize_restarts_a_cluster_only_once_it_has_ended(
    monkeypatch: pytest.MonkeyPatch,
):
    _, started = cluster(), []
    monkeypatch.setattr(actions, "END_TIMEOUT_S", 0.1)
    monkeypatch.setattr(actions, "prepare_restart", lambda *about: lambda: started.append(1))
    monkeypatch.setattr(actions, "end", lambda paths, info: "far is not over yet")
    with pytest.raises(StartError, match=r"was not started again.*far is not over yet"):
        actions.resize("far", {"nodes": "2"})
    assert started == []

    def stop(paths: ClusterPaths, info: ClusterInfo) -> str:
        paths.remove()
        return "far is not over yet"

    monkeypatch.setattr(actions, "end", stop)
    actions.resize("far", {"nodes": "2"})
    assert started == [1]


def test_a_resize_waits_until_the_local_agent_has_ended(
    monkeypatch: pytest.MonkeyPatch,
):
    """Otherwise its name would still be in use: the start would fail, and the cluster be lost."""
    _, started, there = cluster(), [], [1, 2, 3]

    def stop(paths: ClusterPaths, info: ClusterInfo) -> str:
        paths.remove()
        return ""

    monkeypatch.setattr(
        actions, "prepare_restart", lambda *about: lambda: started.append(list(there))
    )
    monkeypatch.setattr(actions, "end", stop)
    monkeypatch.setattr(launch, "supervisors", lambda paths: [there.pop()] if there else [])
    actions.resize("far", {"nodes": "2"})
    assert started == [[]]


def test_a_resize_fails_if_the_cluster_has_not_ended_after_a_silent_stop(
    monkeypatch: pytest.MonkeyPatch,
):
    cluster()
    monkeypatch.setattr(actions, "END_TIMEOUT_S", 0.1)
    monkeypatch.setattr(actions, "prepare_restart", lambda *about: lambda: pytest.fail("it is on"))
    monkeypatch.setattr(actions, "end", lambda paths, info: "")
    with pytest.raises(StartError, match=r"was not started again: start it once it has ended\.$"):
        actions.resize("far", {"nodes": "2"})


def test_a_notebook_does_not_restart_a_cluster_before_it_has_ended(monkeypatch: pytest.MonkeyPatch):
    info = cluster().read()
    assert info is not None
    slow = AnyCluster(ClusterPaths("far"), info)
    monkeypatch.setattr(actions, "END_TIMEOUT_S", 0.1)
    monkeypatch.setattr(actions, "end", lambda paths, info: "far is not over yet")
    monkeypatch.setattr(actions, "prepare_restart", lambda *about: lambda: pytest.fail("it is on"))
    with pytest.raises(StartError, match=r"was not started again.*far is not over yet"):
        cluster_magic.again(slow, None)


def test_a_cluster_whose_agent_cannot_be_started_leaves_no_folder(monkeypatch: pytest.MonkeyPatch):
    def refuse(*about: object) -> None:
        raise OSError(11, "Resource temporarily unavailable")

    monkeypatch.setattr(launch, "spawn", refuse)
    with pytest.raises(StartError, match="cannot start the agent of cluster far here"):
        start.launch(Site("hpc"), "far")
    assert not ClusterPaths("far").folder.exists()


def test_an_agent_that_has_not_written_cluster_json_is_reported():
    paths = cluster()
    with pytest.raises(StartError, match=r"has not written .*cluster.json yet"):
        RemoteCluster.in_folder(paths).until_ready(patience=0.0)


def test_old_records_are_pruned_where_only_ranks_on_sites_are_used(
    home: Path, monkeypatch: pytest.MonkeyPatch
):
    monkeypatch.setattr(AnyCluster, "current", None)
    then = time.time() - 40 * DAY_S
    store, old = finished_record(home, start=int(then * 1e6))
    _, new = finished_record(home)
    for path in store.paths(old.id).folder.iterdir():
        os.utime(path, (then, then))
    attached = RemoteCluster.in_folder(cluster())
    attached.make_current()
    assert poll_until(lambda: store.ids() == [new.id], 10.0)
    attached.close()
