"""When ranks can run a cell, and what is said if they cannot."""

from __future__ import annotations

from types import SimpleNamespace

import pytest

from rankroom.cluster.base import AnyCluster
from rankroom.errors import NoClusterError, RankroomError
from rankroom.record.cluster_file import ClusterInfo
from rankroom.record.model import Owner
from rankroom.supervisor.requests import Requests
from rankroom.supervisor.runs import Runs, restarted_words


def runs_of(info: ClusterInfo, connected: set[int], known: set[int]) -> Runs:
    """The runs of a cluster whose ranks are connected, or were once."""
    made = Runs.__new__(Runs)
    made._info = info
    made._connections = SimpleNamespace(ranks=sorted(connected), known=known)  # type: ignore[assignment]
    return made


def test_ranks_that_have_not_come_yet_are_waited_for():
    runs = runs_of(ClusterInfo("a", 3, "starting"), {0}, {0})
    assert not runs.are_ready([0, 1, 2], 10.0)
    assert runs.are_ready([0])


@pytest.mark.parametrize(
    ("down", "words"),
    [
        ([1], "rank 1 was killed: `%cluster restart --ranks 1` restarts it, without its variables"),
        (
            [1, 2],
            "ranks 1–2 are down (rank 1 was killed): `%cluster restart --ranks 1–2` restarts them, "
            "without their variables",
        ),
    ],
)
def test_ranks_that_are_down_are_named(down: list[int], words: str):
    info = ClusterInfo("a", 3, exits={str(rank): "was killed" for rank in down})
    with pytest.raises(NoClusterError) as refused:
        runs_of(info, {0, 1, 2} - {*down}, {0, 1, 2}).are_ready([0, 1, 2])
    assert str(refused.value) == words


def test_a_rank_that_was_there_and_is_not_is_not_waited_for_long():
    runs = runs_of(ClusterInfo("a", 2), {0}, {0, 1})
    assert not runs.are_ready([0, 1], 1.0)
    with pytest.raises(NoClusterError, match="rank 1 does not answer any more"):
        runs.are_ready([0, 1], 3.0)


def test_variables_of_ranks_that_run_a_cell_are_not_waited_for():
    runs = runs_of(ClusterInfo("a", 3), {0, 1, 2}, {0, 1, 2})
    runs._by = Owner("here", 7)
    runs._current = SimpleNamespace(is_over=False, running=[1])  # type: ignore[assignment]
    asked: list[list[int]] = []

    def apply(ranks: list[int], *what: object) -> dict[int, object]:
        asked.append(ranks)
        return {}

    requests = Requests.__new__(Requests)
    requests._are_ready, requests._demand_idle = runs.are_ready, runs.demand_idle
    requests._connections = SimpleNamespace(apply=apply)  # type: ignore[assignment]

    def pull(*ranks: int) -> None:
        about = {"ranks": list(ranks), "how": "give", "name": "x", "host": "here", "pid": 8}
        question = SimpleNamespace(content=about, buffers=[], answer=lambda *parts, **more: None)
        requests._apply(question)  # type: ignore[arg-type]

    with pytest.raises(RankroomError, match=r"busy with a run of .*: wait for it or interrupt it"):
        pull(0, 1)
    pull(0, 2)  # these have ended it, or have no part in it
    runs._current.is_over = True  # type: ignore[union-attr,misc]
    pull(1)
    assert asked == [[0, 2], [1]]


def test_ranks_that_were_restarted_are_named_together():
    assert restarted_words([2]) == "rank 2 was restarted: its variables are gone"
    assert restarted_words([0, 1, 2], "was killed by SIGKILL") == (
        "ranks 0–2 were restarted after each was killed by SIGKILL: their variables are gone"
    )


def test_a_cluster_that_starts_can_be_described():
    cluster = AnyCluster.__new__(AnyCluster)
    cluster.info = ClusterInfo("local-1", 2, "starting")
    cluster.refresh = lambda: cluster.info  # type: ignore[method-assign]
    assert cluster.describe() == "local-1: 2 ranks, starting"
