"""How long a start may take, by default and as set by a user."""

from __future__ import annotations

import pytest

from rankroom.record.cluster_file import Allocation, ClusterInfo, Node
from rankroom.supervisor.processes import start_limit
from rankroom.system import control_groups


@pytest.fixture(autouse=True)
def as_users_have_it(monkeypatch: pytest.MonkeyPatch) -> None:
    """Remove the longer limit that is set for tests, and assume two cores."""
    monkeypatch.delenv("RANKROOM_START_SECONDS", raising=False)
    monkeypatch.setattr(control_groups, "cores", lambda: 2)


@pytest.mark.parametrize(("ranks", "seconds"), [(1, 31), (2, 32), (16, 46), (64, 94)])
def test_ranks_that_share_cores_may_take_longer(ranks: int, seconds: float):
    assert start_limit.seconds(ClusterInfo("many", ranks)) == seconds


def test_the_start_limit_of_a_job_follows_its_fullest_node():
    nodes = (Node("c1", 4, 4, 64), Node("c2", 8, 0, 2), Node("c3", 1, 0, 0))
    info = ClusterInfo("job", 13, allocation=Allocation("7", nodes))
    assert start_limit.seconds(info) == 98


def test_the_environment_variable_overrides_the_start_limit(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setenv("RANKROOM_START_SECONDS", "7.5")
    assert start_limit.seconds(ClusterInfo("many", 64)) == 7.5
