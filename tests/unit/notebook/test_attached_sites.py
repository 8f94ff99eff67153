"""`%cluster attach`, `%cluster restart` and `%cluster start` with a cluster on a site."""

from __future__ import annotations

import dataclasses
import json
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from rankroom.cluster import lookup
from rankroom.cluster.base import AnyCluster
from rankroom.errors import RankroomError, SshError, StartError, UsageError
from rankroom.notebook import cluster_magic, site_start
from rankroom.record.cluster_file import ClusterInfo, ClusterPaths, Remote
from rankroom.record.store import Store
from rankroom.remote.cluster import RemoteCluster
from rankroom.scheduler.site import Site

pytestmark = pytest.mark.usefixtures("home")


class OnSite:
    """A cluster in job 7, whose `until_ready` raises `error` or returns at once."""

    name, latest = "far", None
    make_current: Any = AnyCluster.make_current
    store = property(lambda self: Store())

    def __init__(self, error: BaseException | None = None) -> None:
        self.error, self.is_open = error, True

    def until_ready(self, tell: Any) -> None:
        if self.error is not None:
            raise self.error

    def refresh(self) -> Any:
        return SimpleNamespace(remote=SimpleNamespace(job="7"), notes=[])

    def describe(self) -> str:
        return "far: 4 ranks"

    def warning(self) -> str:
        return ""

    def close(self) -> None:
        self.is_open = False
        if AnyCluster.current is self:
            AnyCluster.current = None


def attach(monkeypatch: pytest.MonkeyPatch, before: OnSite, far: OnSite) -> None:
    info = SimpleNamespace(remote=SimpleNamespace(job="7"), state="starting")
    monkeypatch.setattr(AnyCluster, "current", before)
    monkeypatch.setattr(lookup, "find", lambda name: info)
    monkeypatch.setattr(RemoteCluster, "of", lambda info: far)
    cluster_magic.attach("far")


@pytest.mark.parametrize(
    ("error", "said"),
    [
        (StartError("its job failed"), "its job failed"),
        (KeyboardInterrupt(), "waits for it again.*`%cluster stop far` cancels it"),
    ],
)
def test_a_failed_attach_keeps_the_current_cluster(
    monkeypatch: pytest.MonkeyPatch, error: BaseException, said: str
):
    before, far = OnSite(), OnSite(error)
    with pytest.raises(RankroomError, match=said):
        attach(monkeypatch, before, far)
    assert AnyCluster.current is before and before.is_open
    assert not far.is_open


def test_a_successful_attach_closes_the_previous_cluster(monkeypatch: pytest.MonkeyPatch):
    before, far = OnSite(), OnSite()
    attach(monkeypatch, before, far)
    assert AnyCluster.current is far and far.is_open
    assert not before.is_open


class Restartable:
    """This notebook's cluster of two ranks; `done` lists its restarts."""

    size, name = 2, "far"

    def __init__(self, info: ClusterInfo, error: Exception | None = None) -> None:
        self.done: list[object] = []
        self._info, self._error = info, error

    def refresh(self) -> ClusterInfo:
        return self._info

    def restart(self, ranks: Sequence[int]) -> None:
        if self._error is not None:
            raise self._error
        self.done.append([*ranks])


def restarted(cluster: Restartable, monkeypatch: pytest.MonkeyPatch) -> list[object]:
    """Call `%cluster restart`; return what it did to the cluster."""
    monkeypatch.setattr(AnyCluster, "current", cluster)
    monkeypatch.setattr(cluster_magic, "again", lambda *about: cluster.done.append("again"))
    cluster_magic.restart("")
    return cluster.done


def on_site(there: Any, job: str = "7", **fields: Any) -> ClusterInfo:
    return ClusterInfo("far", 2, **fields, remote=Remote("hpc", state=there, job=job))


def test_ranks_of_a_running_job_are_restarted_within_the_job(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
):
    cluster = Restartable(on_site("running", state="running"))
    assert restarted(cluster, monkeypatch) == [[0, 1]]
    said = capsys.readouterr().out
    assert said.startswith("ranks 0–1 restarted in ") and "in the same job (7)" in said
    assert "`%cluster stop` and then `%cluster start --site hpc`" in said


@pytest.mark.parametrize(
    "info",
    [
        ClusterInfo("here", 2, "running"),
        on_site("ended", state="failed"),
        on_site("failed", state="failed"),
        on_site("ending", state="ending"),
        on_site("connecting", job="", state="starting"),
    ],
    ids=["here", "job over", "job failed", "job ends", "no job yet"],
)
def test_a_cluster_without_a_running_job_is_restarted_as_a_whole(
    monkeypatch: pytest.MonkeyPatch, info: ClusterInfo
):
    assert restarted(Restartable(info), monkeypatch) == ["again"]


@pytest.mark.parametrize("state", ["pending", "lost"])
def test_a_restart_keeps_a_job_whose_ranks_cannot_be_reached(
    monkeypatch: pytest.MonkeyPatch, state: Any
):
    words = "cluster far cannot be reached now: waits"
    cluster = Restartable(on_site(state, state="running"), SshError(words))
    said = rf"{words}; the job is unchanged: for a new one, `%cluster stop` and then"
    with pytest.raises(SshError, match=said):
        restarted(cluster, monkeypatch)
    assert cluster.done == []


# -- `%cluster start` while a cluster is running


class Begun(RemoteCluster):
    """A cluster on a site that this notebook has started."""

    running = True

    def __init__(self, info: ClusterInfo) -> None:
        self._looked = info
        self.done: list[str] = []

    @property
    def name(self) -> str:
        return self._looked.name

    def refresh(self) -> ClusterInfo:
        return self._looked

    def describe(self) -> str:
        return "far: 2 ranks"

    def close(self) -> None:
        self.done.append("closed")


@pytest.fixture
def begun(home: Path, monkeypatch: pytest.MonkeyPatch) -> Begun:
    cluster = Begun(on_site("running", state="running"))
    monkeypatch.setattr(AnyCluster, "current", cluster)

    def asked(chosen: Any) -> Site:
        found = Site("hpc", login=chosen.site)
        return found if chosen.ranks is None else found.with_ranks(chosen.ranks)

    monkeypatch.setattr(site_start, "site_asked", asked)
    cluster.paths = ClusterPaths("far")
    cluster.paths.make(0)
    site = dataclasses.asdict(Site("hpc", login="hpc"))
    (cluster.paths.folder / "site.json").write_text(json.dumps(site))

    def begin(site: Site, *how: Any) -> Begun:
        cluster.done.append("started")
        return cluster

    monkeypatch.setattr(RemoteCluster, "start", begin)
    monkeypatch.setattr(site_start, "wait", lambda cluster: cluster.done.append("waited for"))
    return cluster


def test_a_repeated_start_submits_no_second_job(begun: Begun, capsys: pytest.CaptureFixture[str]):
    """For example, "Run All" repeats the start."""
    for line in ("--site hpc", "--site hpc --ranks 2"):
        cluster_magic.start(line)
        assert capsys.readouterr().out == "far: 2 ranks (already running)\n"
    begun._looked = replace(begun._looked, state="starting")
    cluster_magic.start("--site hpc")
    assert begun.done == ["waited for"]


def test_a_start_with_other_options_is_refused_with_valid_advice(begun: Begun):
    said = "far is running with 2 ranks: `%cluster stop` first"
    with pytest.raises(UsageError, match=f"^{said}$"):
        cluster_magic.start("--site other")
    with pytest.raises(UsageError, match="`%cluster resize 8` or `%cluster stop` first"):
        cluster_magic.start("--site hpc --ranks 8")


def test_a_start_under_another_name_starts_a_second_cluster(begun: Begun):
    """The notebook only detaches from the first cluster: another notebook may be using it."""
    cluster_magic.start("--site hpc --name mine")
    assert begun.done == ["started", "closed", "waited for"]


def test_an_existing_cluster_is_mentioned_when_another_is_started(
    begun: Begun, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
):
    monkeypatch.setattr(AnyCluster, "current", None)
    before = replace(begun._looked, name="before")
    monkeypatch.setattr(cluster_magic, "clusters_in_use", lambda: [before, begun._looked])
    cluster_magic.start("--site hpc")
    assert capsys.readouterr().out.startswith("cluster before (2 ranks) also exists")
