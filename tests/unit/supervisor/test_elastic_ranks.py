"""Ranks that die in an elastic run: which are waited for, and how both processes are recorded."""

from __future__ import annotations

from concurrent.futures import Future
from pathlib import Path
from typing import Any

import pytest

from rankroom.record.model import RankInfo, event_line
from rankroom.record.store import Store
from rankroom.supervisor import elastic_ranks
from rankroom.supervisor.elastic_ranks import ElasticRanks
from rankroom.supervisor.recorder import Recorder
from record_makers import log, make_run

KILLED = "was killed by SIGKILL"


def inside(*ranks: int, of: int) -> ElasticRanks:
    made = ElasticRanks(range(of))
    for rank in ranks:
        made.note(rank, True)
    return made


def test_a_dead_rank_is_awaited_if_all_others_have_the_state():
    assert not inside(of=2).go_on_without(1)
    assert inside(0, of=2).go_on_without(1)
    assert inside(0, 1, of=2).go_on_without(0)
    assert not inside(0, 1, of=3).go_on_without(1)  # rank 2 does not have the state
    assert not inside(0, of=1).go_on_without(0)


def test_a_restarted_rank_without_state_does_not_keep_others_from_waiting():
    made = inside(0, 1, 2, of=3)
    assert made.wait_for(1, KILLED, 9) == [0, 2] and made.meeting == 1
    assert made.note_restarted(1) == KILLED
    assert made.go_on_without(2)
    assert made.wait_for(2, KILLED, 9) == [0, 1] and made.meeting == 2
    assert not made.go_on_without(0)  # no other rank has the state
    made.note(1, True)
    assert made.go_on_without(0)


def test_the_wait_for_a_dead_rank_has_a_deadline():
    made = inside(0, of=2)
    made.wait_for(1, KILLED, 0)
    assert made.overdue() == {1: elastic_ranks.NOT_RESTARTED_IN_TIME.format(how=KILLED, seconds=0)}
    made.wait_longer(1, 60)
    assert made.overdue() == {} and made.words().startswith("rank 1 has died")
    assert made.give_up() == {1: KILLED} and made.words() == ""


def test_a_rank_that_dies_at_every_restart_is_hopeless():
    made = inside(0, 1, of=2)
    for _ in range(elastic_ranks.MAX_RESTARTS_WITHOUT_STATE):
        assert not made.is_hopeless(1)
        made.wait_for(1, KILLED, 9)
        made.note_restarted(1)
    assert made.is_hopeless(1)
    made.note(1, True)
    assert not made.is_hopeless(1)


class Ranks:
    """Connections to two ranks; records what they are sent and asked."""

    def __init__(self) -> None:
        self.ranks = [0, 1]
        self.silent: dict[int, Any] = {}
        self.sent: list[tuple[list[int], dict[str, Any]]] = []
        self.asked: list[tuple[list[int], dict[str, Any]]] = []
        self.due: list[Any] = []

    def subscribe(self, run: str, receive: Any) -> None:
        self.receive = receive

    def unsubscribe(self, run: str) -> None: ...

    def execute(self, to: list[int], source: str, **about: Any) -> dict[int, Future[Any]]:
        self.sent.append((list(to), about))
        return {rank: Future() for rank in to}

    def request(self, ranks: Any, **question: Any) -> list[Future[Any]]:
        self.asked.append((list(ranks), question))
        return []

    def signal(self, ranks: Any, name: str) -> list[Future[Any]]:
        return []

    def later(self, seconds: float, call: Any) -> None:
        self.due.append(call)

    def tick(self) -> None:
        due, self.due = self.due, []
        for call in due:
            call()


@pytest.fixture
def begun(tmp_path: Path):
    store, ranks = Store(tmp_path / "home"), Ranks()
    for rank in (0, 1):
        (tmp_path / str(rank)).mkdir()
    made = Recorder("x = 1\n", make_run(2), ranks, store, lambda rank: tmp_path / str(rank))  # type: ignore[arg-type]
    made.start(epoch=3, settle=True)
    for rank in (0, 1):
        say(ranks, rank, 0, event_line("status", rank, 0, 0, state="running"), log(rank, "a\n", 1))
    return made, ranks, store


def say(ranks: Ranks, rank: int, at: int, *lines: bytes) -> None:
    ranks.receive({"rank": rank, "at": at}, b"".join(lines))


def test_a_restarted_rank_gets_the_cell_and_both_processes_are_recorded(begun):
    run, ranks, store = begun
    run.note_elastic(0, True)
    assert run.wait_for(1, KILLED, 60, "rank 1 is waited for\n")
    assert ranks.asked == [([0], {"do": "regroup", "run": run.id, "meeting": 1})]
    assert run.running == [0, 1]
    assert run.resume(RankInfo(1, "here", 77, "cpu"))
    to, about = ranks.sent[-1]
    assert to == [1]
    assert (about["back"], about["meeting"], about["settle"]) == (KILLED, 1, False)
    assert (about["seq"], about["starts"], about["epoch"]) == (4, 1, 3)
    again = event_line("status", 1, 4, 0, state="running"), log(1, "b\n", 5)
    say(ranks, 1, 0, *again, event_line("status", 1, 6, 9, state="ok"))
    say(ranks, 0, 1000, event_line("status", 0, 2, 9, state="ok"))
    assert run.wait(0) and store.load(run.id).state == "done"
    said = [event for event in store.events(run.id) if event["rank"] == 1]
    assert [event["seq"] for event in said] == list(range(7))
    text = "".join(event["text"] for event in said if event["kind"] == "log")
    assert text == "a\nrank 1 is waited for\nb\n"
    assert store.load(run.id).ranks[1].pid == 77


@pytest.mark.parametrize("ends", ["nobody starts it", "another fails", "an interrupt"])
def test_a_rank_that_is_awaited_in_vain_is_lost(begun, ends):
    run, ranks, _ = begun
    run.note_elastic(0, True)
    assert run.wait_for(1, KILLED, 60, "")
    if ends == "nobody starts it":
        run._elastic.wait_longer(1, 0)
        ranks.tick()
    elif ends == "another fails":
        say(ranks, 0, 1000, event_line("status", 0, 2, 9, state="error"))
    else:
        run.interrupt()
    assert run.info.ranks[1].state == "lost"
    assert not run.resume(RankInfo(1, "here", 77, "cpu"))


def test_a_run_that_is_not_elastic_waits_for_no_rank(begun):
    run, ranks, _ = begun
    assert not run.wait_for(1, KILLED, 60, "")
    run.note_elastic(0, True)
    assert not run.wait_for(1, KILLED, 0, "")  # 0 s: the rank is left down
    assert ranks.asked == []
