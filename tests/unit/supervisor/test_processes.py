"""The agents of a cluster's nodes: which are silent, and how they start and end ranks."""

from __future__ import annotations

from types import SimpleNamespace

import pytest

from rankroom.record.cluster_file import Allocation, ClusterInfo, ClusterPaths, Node
from rankroom.supervisor.processes import cluster_processes
from rankroom.supervisor.processes.agent_process import RankProcess
from rankroom.supervisor.processes.cluster_processes import Processes
from rankroom.system.network import here


class Clock:
    """A clock that advances on request only, and the processes of a cluster on two nodes."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.now = 100.0
        monkeypatch.setattr(cluster_processes.time, "monotonic", lambda: self.now)
        nodes = (Node(here(), 1), Node(here(), 2))
        info = ClusterInfo("x", 3, allocation=Allocation("1", nodes))
        self.children = Processes(ClusterPaths("x"), info, 0, lambda: None)
        self.one, self.other = [
            SimpleNamespace(place={"at": "10.0.0.1"}, is_over=False, heard=self.now) for _ in nodes
        ]
        self.children.agents = [self.one, self.other]

    def pass_by(self, seconds: float, ready: set[int]) -> None:
        """Let time pass with a check every second; only the first node is heard from."""
        for _ in range(round(seconds)):
            self.now += 1
            self.one.heard = self.now
            self.children.silent(ready)


def test_a_node_counts_as_silent_after_the_timeout(home, monkeypatch):
    clock = Clock(monkeypatch)
    clock.pass_by(cluster_processes.SILENCE_TIMEOUT_S, {0, 1, 2})
    assert clock.children.silent({0, 1, 2}) == []
    clock.pass_by(1, {0, 1, 2})
    assert clock.children.silent({0, 1, 2}) == [clock.other]
    assert clock.children.ranks_of(clock.other) == [1, 2]


def test_a_node_whose_ranks_start_may_be_silent_longer(home, monkeypatch):
    clock = Clock(monkeypatch)
    clock.pass_by(cluster_processes.SILENCE_TIMEOUT_S + 1, {0, 1})
    assert clock.children.silent({0, 1}) == []
    clock.pass_by(
        cluster_processes.STARTING_SILENCE_TIMEOUT_S - cluster_processes.SILENCE_TIMEOUT_S, {0, 1}
    )
    assert clock.children.silent({0, 1}) == [clock.other]


def test_a_suspended_supervisor_does_not_take_nodes_for_silent(home, monkeypatch):
    clock = Clock(monkeypatch)
    clock.pass_by(1, {0, 1, 2})
    clock.now += 1000
    assert clock.children.silent({0, 1, 2}) == []


def test_a_rank_is_not_started_while_its_previous_process_runs(home):
    children = Processes(ClusterPaths("x"), ClusterInfo("x", 1), 0, lambda: None)
    started = []
    agent = SimpleNamespace(is_over=False, start_rank=lambda *what: started.append(what))
    children.agents = [agent]  # type: ignore[list-item]
    children.ranks[0] = RankProcess(0, 1)
    children.ranks[0].pid = 77
    with pytest.raises(OSError, match=r"its previous process \(77\) has not ended"):
        children.start_rank(0)
    assert not started
    children.ranks[0].returncode = -9
    children.start_rank(0)
    assert started == [(0, 1)]


def test_a_rank_refused_by_its_new_agent_says_why_it_was_not_started(home):
    children = Processes(ClusterPaths("x"), ClusterInfo("x", 1), 0, lambda: None)
    agent = SimpleNamespace(node="c1", refused="1 rank does not fit on c1")
    children.agents = [agent]  # type: ignore[list-item]
    children.ranks[0] = RankProcess(0, 2)
    children.ranks[0].returncode, children.ranks[0].ended_with_agent = -9, True
    assert children.how_ended(0) == "was not started: 1 rank does not fit on c1"


def test_ranks_are_ended_without_a_look_at_all_processes(home, monkeypatch):
    children = Processes(ClusterPaths("x"), ClusterInfo("x", 64), 0, lambda: None)
    ended: list[int] = []

    def end_ranks(ranks: list[int], seconds: float) -> bool:
        ended.extend(ranks)
        return True

    agent = SimpleNamespace(is_over=False, end_ranks=end_ranks)
    children.agents = [agent]  # type: ignore[list-item]
    looks: list[object] = []
    monkeypatch.setattr(
        cluster_processes.psutil, "process_iter", lambda *what: looks.append(1) or []
    )
    assert children.end(range(64)) == {}
    assert ended == [*range(64)] and not looks


@pytest.mark.parametrize(("own", "given"), [(None, "rankroom"), ("", "rankroom"), ("1", "1")])
def test_a_pythonsafepath_set_by_the_user_is_kept(home, monkeypatch, own: str | None, given: str):
    monkeypatch.delenv("PYTHONSAFEPATH", raising=False)
    if own is not None:
        monkeypatch.setenv("PYTHONSAFEPATH", own)
    found: list[dict[str, str]] = []
    monkeypatch.setattr(
        cluster_processes, "AgentProcess", lambda name, command, env, *more: found.append(env)
    )
    Processes(ClusterPaths("x"), ClusterInfo("x", 1), 0, lambda: None).start_agents(None)
    assert [each["PYTHONSAFEPATH"] for each in found] == [given]
