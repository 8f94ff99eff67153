"""`%cluster attach` to a cluster on a site, which may have to be waited for, and `%cluster restart`
of one."""

from __future__ import annotations

from collections.abc import Sequence
from types import SimpleNamespace
from typing import Any

import pytest

from rankroom.cluster import lookup
from rankroom.cluster.base import AnyCluster
from rankroom.errors import RankroomError, SshError, StartError
from rankroom.notebook import cluster_magic
from rankroom.record.cluster_file import ClusterInfo, Remote
from rankroom.remote.cluster import RemoteCluster


class OnSite:
    """A cluster in the job 7, which is ready at once unless there is an error."""

    name, latest = "far", None
    make_current: Any = AnyCluster.make_current

    def __init__(self, error: BaseException | None = None) -> None:
        self.error, self.is_open = error, True

    def until_ready(self, tell: Any) -> None:
        if self.error is not None:
            raise self.error

    def refresh(self) -> Any:
        return SimpleNamespace(remote=SimpleNamespace(job="7"))

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
def test_a_notebook_that_cannot_attach_stays_where_it_is(
    monkeypatch: pytest.MonkeyPatch, error: BaseException, said: str
):
    before, far = OnSite(), OnSite(error)
    with pytest.raises(RankroomError, match=said):
        attach(monkeypatch, before, far)
    assert AnyCluster.current is before and before.is_open
    assert not far.is_open


def test_a_notebook_lets_go_of_what_it_had_once_it_has_attached(monkeypatch: pytest.MonkeyPatch):
    before, far = OnSite(), OnSite()
    attach(monkeypatch, before, far)
    assert AnyCluster.current is far and far.is_open
    assert not before.is_open


class Restartable:
    """This notebook's cluster of two ranks, and what was done to it."""

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
    """What `%cluster restart` does to it."""
    monkeypatch.setattr(AnyCluster, "current", cluster)
    monkeypatch.setattr(cluster_magic, "again", lambda *about: cluster.done.append("again"))
    cluster_magic.restart("")
    return cluster.done


def on_site(there: Any, job: str = "7", **fields: Any) -> ClusterInfo:
    return ClusterInfo("far", 2, **fields, remote=Remote("hpc", state=there, job=job))


def test_ranks_in_a_job_that_goes_on_are_restarted_within_it(
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
def test_what_has_no_job_to_lose_is_started_again(
    monkeypatch: pytest.MonkeyPatch, info: ClusterInfo
):
    assert restarted(Restartable(info), monkeypatch) == ["again"]


@pytest.mark.parametrize("state", ["pending", "lost"])
def test_a_job_whose_ranks_cannot_be_asked_now_is_not_given_up(
    monkeypatch: pytest.MonkeyPatch, state: Any
):
    words = "cluster far cannot be reached now: waits"
    cluster = Restartable(on_site(state, state="running"), SshError(words))
    said = rf"{words}; its job stays as it is: for a new one, `%cluster stop` and then"
    with pytest.raises(SshError, match=said):
        restarted(cluster, monkeypatch)
    assert cluster.done == []
