"""Prompts of ranks are recorded while they are open, and prevent an automatic release."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable
from concurrent.futures import Future
from pathlib import Path
from typing import Any

import pytest

from rankroom.record.model import Hang, Place, Prompt, event_line
from rankroom.record.store import Store
from rankroom.supervisor import recorder
from rankroom.supervisor.recorder import Recorder
from record_makers import make_run


class Ranks:
    """Connections to two ranks that never reply; scheduled calls run at `tick`."""

    def __init__(self) -> None:
        self.ranks = [0, 1]
        self.silent: dict[int, Any] = {}
        self.asked: list[tuple[list[int], dict[str, Any]]] = []
        self.receive: Callable[..., None] = lambda *said: None
        self._later: list[Callable[[], None]] = []
        self._at = {0: 0, 1: 0}
        self._seq = {0: 0, 1: 0}

    def subscribe(self, run: str, receive: Callable[..., None]) -> None:
        self.receive = receive

    def unsubscribe(self, run: str) -> None: ...

    def signal(self, ranks: Any, signal: str) -> list[Future[Any]]:
        return []

    def execute(self, to: Iterable[int], source: str, **about: Any) -> dict[int, Future[Any]]:
        return {rank: Future() for rank in to}

    def request(self, ranks: Any, **question: Any) -> list[Future[Any]]:
        self.asked.append((list(ranks), question))
        return [Future() for _ in ranks]

    def later(self, seconds: float, call: Callable[[], None]) -> None:
        self._later.append(call)

    def tick(self) -> None:
        due, self._later = self._later, []
        for call in due:
            call()

    def say(self, rank: int, kind: str, **fields: Any) -> None:
        line = event_line(kind, rank, self._seq[rank], 7, **fields)
        self.receive({"rank": rank, "at": self._at[rank]}, line)
        self._seq[rank] += 1
        self._at[rank] += len(line)

    def ask(self, rank: int, number: int, kind: str = "debugger") -> None:
        about = {"number": number, "kind": kind, "text": "ipdb> ", "place": "cell line 5"}
        self.say(rank, "mark", name="asks", args=about)

    def did(self, what: str) -> list[tuple[list[int], dict[str, Any]]]:
        return [asked for asked in self.asked if asked[1]["do"] == what]


Begun = tuple[Recorder, Ranks, Store]


@pytest.fixture
def begun(tmp_path: Path) -> Begun:
    store, ranks = Store(tmp_path), Ranks()
    made = Recorder("x", make_run(2), ranks, store, lambda rank: None)  # type: ignore[arg-type]
    made.start(epoch=0)
    for rank in (0, 1):
        ranks.say(rank, "status", state="running", spool={})
    return made, ranks, store


def asked(store: Store, run: Recorder) -> list[tuple[int, int]]:
    return [(prompt.rank, prompt.number) for prompt in store.load(run.id).prompts]


def test_prompts_are_in_the_record_until_they_are_answered(begun: Begun):
    run, ranks, store = begun
    ranks.ask(1, 1)
    ranks.ask(0, 4)
    ranks.tick()
    assert store.load(run.id).prompts[1] == Prompt(1, 1, "debugger", "ipdb> ", 7, "cell line 5")
    assert asked(store, run) == [(0, 4), (1, 1)]
    ranks.say(1, "mark", name="answered", args={"number": 1})
    ranks.ask(1, 2)
    ranks.tick()
    assert asked(store, run) == [(0, 4), (1, 2)]
    ranks.say(0, "status", state="interrupted")
    ranks.say(1, "mark", name="answered", args={"number": 2})
    ranks.tick()
    assert asked(store, run) == []
    ranks.ask(1, 3)
    ranks.say(1, "status", state="ok")
    assert run.is_over and asked(store, run) == []


def test_an_answer_is_sent_only_to_ranks_that_are_still_running(begun: Begun):
    run, ranks, _ = begun
    ranks.say(0, "status", state="ok")
    assert list(run.answer("n", {0: 1, 1: 5})) == [1]
    about = {"do": "answer", "run": run.id, "prompt": 5, "text": "n"}
    assert ranks.did("answer") == [([1], about)]


def test_a_failure_releases_no_rank_while_a_debugger_is_open(
    begun: Begun, monkeypatch: pytest.MonkeyPatch
):
    _, ranks, _ = begun
    ranks.ask(1, 1)
    ranks.say(0, "mark", name="raised")
    for _ in range(3):
        ranks.tick()
    assert not ranks.did("status") and not ranks.did("release")
    ranks.say(1, "mark", name="answered", args={"number": 1})
    ranks.tick()
    assert not ranks.did("release"), "its next command may be asked for at any moment"
    monkeypatch.setattr(recorder, "NEXT_PROMPT_TIMEOUT_S", 0.0)
    time.sleep(0.001)
    ranks.tick()  # asks the ranks for their status; they do not reply
    ranks.tick()
    assert [ranks for ranks, _ in ranks.did("status")] == [[0, 1]]
    ((_, released),) = ranks.did("release")
    assert released["prompts"] is False, "of its own accord it ends no debugger"


def test_a_requested_release_ends_the_debugger_after_automatic_releases(begun: Begun):
    run, ranks, _ = begun
    run._release.release()
    run._release.release()
    ranks.ask(1, 1)
    run.release()
    assert [question["prompts"] for _, question in ranks.did("release")] == [False, True]


def test_a_wait_for_a_debugger_is_not_noted_as_stuck(begun: Begun):
    run, _, store = begun
    waits = Place([0], "waits", "waits in allreduce", "allreduce")
    asks = Place([1], "asks", "is in the debugger at cell line 5", "the debugger")
    for hang in (Hang(0, "rank 1 is in the debugger", [asks, waits]), None):
        run._report_hang(hang)
    assert store.load(run.id).notes == []
    for stuck in (Hang(0, "rank 0 waits", [waits]), None):
        run._report_hang(stuck)
    assert store.load(run.id).notes == ["the run was stuck: rank 0 waits"]
