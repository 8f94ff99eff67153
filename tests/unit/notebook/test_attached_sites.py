"""`%cluster attach` to a cluster on a site, which may have to be waited for."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest

from rankroom.cluster import lookup
from rankroom.cluster.base import AnyCluster
from rankroom.errors import RankroomError, StartError
from rankroom.notebook import cluster_magic
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
