"""When ranks can run a cell, and what users are told if they cannot."""

from __future__ import annotations

import subprocess
from collections.abc import Callable
from concurrent.futures import Future
from dataclasses import replace
from types import SimpleNamespace
from typing import Any

import pytest

from rankroom.cluster.base import AnyCluster
from rankroom.errors import NoClusterError, RankroomError, RunOverError
from rankroom.record.cluster_file import ClusterInfo
from rankroom.record.model import Owner
from rankroom.record.owner import this_process
from rankroom.supervisor.requests import Requests
from rankroom.supervisor.runs import Runs, restarted_words
from record_makers import make_run


def runs_of(info: ClusterInfo, connected: set[int], known: set[int]) -> Runs:
    """Return the runs of a cluster; `known` are the ranks that are, or were, connected."""
    made = Runs.__new__(Runs)
    made._info = info
    made._connections = SimpleNamespace(ranks=sorted(connected), known=known)  # type: ignore[assignment]
    return made


def test_ranks_that_have_not_connected_yet_are_awaited():
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


def test_a_rank_that_lost_its_connection_is_awaited_only_briefly():
    runs = runs_of(ClusterInfo("a", 2), {0}, {0, 1})
    assert not runs.are_ready([0, 1], 1.0)
    with pytest.raises(NoClusterError, match="rank 1 no longer answers"):
        runs.are_ready([0, 1], 3.0)


def test_a_pull_from_a_rank_that_runs_a_cell_is_refused_at_once():
    runs = runs_of(ClusterInfo("a", 3), {0, 1, 2}, {0, 1, 2})
    runs._by = Owner("here", 7)
    runs._current = SimpleNamespace(is_over=False, running=[1])  # type: ignore[assignment]
    asked: list[list[int]] = []

    def apply(ranks: list[int], *what: object) -> dict[int, object]:
        asked.append(ranks)
        return {}

    requests = Requests.__new__(Requests)
    requests._starting, requests._demand_idle = runs.starting, runs.demand_idle
    requests._connections = SimpleNamespace(apply=apply, demand_heard=set)  # type: ignore[assignment]

    def pull(*ranks: int) -> None:
        about = {"ranks": list(ranks), "how": "give", "name": "x", "host": "here", "pid": 8}
        question = SimpleNamespace(content=about, buffers=[], answer=lambda *parts, **more: None)
        requests._apply(question)  # type: ignore[arg-type]

    with pytest.raises(RankroomError, match=r"busy with a run of .*: wait for it or interrupt it"):
        pull(0, 1)
    pull(0, 2)  # these ranks have ended the cell, or take no part in it
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


@pytest.mark.parametrize(
    ("asked", "words"),
    [
        ([0, 1, 2, 3], "ranks 2–3 are starting: wait until they are ready"),
        ([0, 3], "rank 3 is starting: wait until it is ready"),
    ],
)
def test_a_refused_pull_names_the_ranks_that_are_starting(asked: list[int], words: str):
    requests = Requests.__new__(Requests)
    requests._starting = runs_of(ClusterInfo("a", 4, starting=[2]), {0, 1, 2}, {0, 1, 2}).starting
    question = SimpleNamespace(content={"ranks": asked})
    with pytest.raises(NoClusterError) as refused:
        requests._apply(question)  # type: ignore[arg-type]
    assert str(refused.value) == words


def test_followers_are_told_when_a_record_is_closed_after_a_full_disk():
    runs = runs_of(ClusterInfo("a", 1), {0}, {0})
    told: list[tuple[bytes, list[str]]] = []
    ends: list[str] = []
    runs._server = SimpleNamespace(  # type: ignore[assignment]
        tell=lambda peer, do, run: told.append((peer, run["notes"]))
    )
    runs._changed, runs._unanswered, runs._unclosed = lambda run, state: None, None, set()
    runs._note_end = lambda recorder, settle, epoch: ends.append(recorder.id)  # type: ignore[method-assign]
    info = make_run(1, state="done", notes=["the disk is full"])
    recorder: Any = SimpleNamespace(id=info.id, info=info, is_over=True, is_closed=False)
    runs._followers = {info.id: {b"notebook"}}
    runs._told(recorder, settle=False, epoch=0)
    assert runs._followers, "its record is still open"
    info.notes, recorder.is_closed = [], True
    runs._told(recorder, settle=False, epoch=0)
    assert told == [(b"notebook", ["the disk is full"]), (b"notebook", [])]
    assert ends == [info.id] and not runs._followers and not runs._unclosed


class Starting:
    """Runs of a cluster whose rank 1 is starting; records the cells that begin."""

    def __init__(self) -> None:
        self.runs = runs_of(ClusterInfo("a", 2), {0}, {0})
        self.begun: list[str] = []
        self.refused: list[str] = []
        self.signals: list[list[int]] = []
        self._due: list[Callable[[], None]] = []
        self.runs.is_ending, self.runs._current, self.runs._waiting = False, None, []
        self.runs._clocks = SimpleNamespace(comparing=False)  # type: ignore[assignment]
        self.runs._server = SimpleNamespace(  # type: ignore[assignment]
            later=lambda seconds, call: self._due.append(call)
        )
        self.runs._connections.signal = self._signal
        self.runs._info_of = self._begin  # type: ignore[assignment]

    def ask(self, do: str, source: str = "", client: Owner | None = None, **about: Any) -> None:
        """Send a request as this process, or as another `client`."""
        content = {"do": do, "source": source, "ranks": None, "own": False, "mark": source}
        question = SimpleNamespace(
            content=content | vars(client or this_process()) | about, answer=lambda **said: None,
            refuse=lambda error: self.refused.append(str(error)),
        )  # fmt: skip
        {"run": self.runs._run, "withdraw": self.runs._withdraw, "interrupt": self.runs._interrupt}[
            do
        ](question)  # type: ignore[arg-type]

    def come(self) -> None:
        """Connect rank 1."""
        self.runs._connections.ranks.append(1)  # type: ignore[attr-defined]
        self.tick()

    def tick(self) -> None:
        due, self._due = self._due, []
        for call in due:
            call()

    def _begin(self, ranks: list[int], asked: dict[str, Any]) -> None:
        self.begun.append(asked["source"])
        raise RankroomError("it is enough that it begins")

    def _signal(self, ranks: list[int], name: str) -> list[Future[None]]:
        self.signals.append(list(ranks))
        return []


def test_a_cell_waits_for_ranks_that_start():
    starting = Starting()
    starting.ask("run", "a")
    starting.tick()
    assert not starting.begun
    starting.come()
    assert starting.begun == ["a"]


def test_a_cell_whose_client_ended_or_withdrew_it_is_not_begun():
    with subprocess.Popen(["true"]) as ended:
        pass
    starting = Starting()
    starting.ask("run", "a", replace(this_process(), pid=ended.pid))
    starting.ask("run", "b")
    starting.ask("run", "c")
    starting.ask("withdraw", mark="b")
    assert starting.refused == [
        "the cell was interrupted before its ranks were ready: it has not run"
    ]
    starting.come()
    assert starting.begun == ["c"]


def test_an_interrupt_withdraws_waiting_cells_and_spares_starting_ranks():
    starting = Starting()
    starting.ask("run", "a")
    starting.ask("interrupt")
    starting.come()
    assert not starting.begun
    assert starting.refused == [
        "the cell was interrupted before its ranks were ready: it has not run"
    ]
    assert starting.signals == [[0]]


class On:
    """Runs of a cluster with the run `new` in progress; records what is done to it."""

    def __init__(self) -> None:
        self.runs = runs_of(ClusterInfo("a", 2), {0, 1}, {0, 1})
        self.runs.is_ending, self.runs._waiting = False, []
        self.done: list[str] = []
        self.refused: list[str] = []
        self.signals: list[str] = []
        self.runs._connections.signal = self._signal  # type: ignore[method-assign,assignment]
        self.runs._current = SimpleNamespace(  # type: ignore[assignment]
            id="new", is_over=False, wait=lambda seconds: True,
            interrupt=lambda: self._do("interrupt"), release=lambda: self._do("release"),
        )  # fmt: skip

    def _signal(self, ranks: list[int], name: str) -> list[Future[None]]:
        self.signals.append(name)
        return []

    def _do(self, what: str) -> list[Future[None]]:
        self.done.append(what)
        return []

    def ask(self, do: str, **about: Any) -> None:
        question = SimpleNamespace(content={"do": do, **about}, answer=lambda **said: None)
        act = {"interrupt": self.runs._interrupt, "release": self.runs._release}[do]
        act(question)  # type: ignore[arg-type]


@pytest.mark.parametrize("do", ["interrupt", "release"])
def test_a_request_about_a_finished_run_does_not_affect_the_next_one(do: str):
    on = On()
    with pytest.raises(RunOverError, match="run old is over: there is nothing left to act on"):
        on.ask(do, run="old")
    assert on.done == []
    on.ask(do, run="new")
    on.ask(do, run=None)  # the run in progress
    on.ask(do)  # as clients of an earlier version do
    assert on.done == [do] * 3
    on.runs._current.is_over = True  # type: ignore[union-attr,misc]
    with pytest.raises(RunOverError):
        on.ask(do, run="new")
    assert on.signals == [], "who works on the ranks now is another client"


def test_an_interrupt_of_a_run_leaves_cells_that_wait_for_other_ranks():
    on = On()
    waiting = SimpleNamespace(refuse=lambda error: on.refused.append(str(error)))
    on.runs._waiting.append(waiting)  # type: ignore[arg-type]
    on.ask("interrupt", run="new")
    assert on.refused == []
    on.ask("interrupt")
    assert len(on.refused) == 1 and on.done == ["interrupt"] * 2


def test_a_waiting_cell_is_answered_even_if_beginning_it_raises(monkeypatch: pytest.MonkeyPatch):
    starting = Starting()
    starting.ask("run", "a")

    def fail(ranks: list[int], asked: dict[str, Any]) -> None:
        raise OSError("no descriptors")

    monkeypatch.setattr(starting.runs, "_info_of", fail)
    with pytest.raises(OSError, match="no descriptors"):  # the server logs it
        starting.come()
    assert starting.refused == ["no descriptors"]
