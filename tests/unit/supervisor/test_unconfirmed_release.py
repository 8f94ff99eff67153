"""A run waits for its ranks to confirm a release, and ends even if one never does."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterable
from concurrent.futures import Future
from pathlib import Path
from typing import Any

import pytest

from rankroom.record.model import event_line
from rankroom.record.store import Store
from rankroom.supervisor import release
from rankroom.supervisor.recorder import Recorder
from record_makers import make_run


class Silent:
    """Connections to ranks that never reply; scheduled calls run at `tick`."""

    def __init__(self) -> None:
        self.ranks = [0, 1]
        self.silent: dict[int, Any] = {}
        self._later: list[Callable[[], None]] = []
        self.receive: Callable[..., None] = lambda *said: None

    def subscribe(self, run: str, receive: Callable[..., None]) -> None:
        self.receive = receive

    def unsubscribe(self, run: str) -> None: ...

    def signal(self, ranks: Any, signal: str) -> list[Future[Any]]:
        return []

    def execute(self, to: Iterable[int], source: str, **about: Any) -> dict[int, Future[Any]]:
        return {rank: Future() for rank in to}

    def request(self, ranks: Any, **content: Any) -> list[Future[Any]]:
        return [Future() for _ in ranks]

    def later(self, seconds: float, call: Callable[[], None]) -> None:
        self._later.append(call)

    def tick(self) -> None:
        due, self._later = self._later, []
        for call in due:
            call()


class Slow(Silent):
    """The same, but requests are sent once `sends` is set, and `answers` holds the replies."""

    def __init__(self) -> None:
        super().__init__()
        self.asked, self.sends = threading.Event(), threading.Event()
        self.answers: list[Future[Any]] = []

    def request(self, ranks: Any, **content: Any) -> list[Future[Any]]:
        self.asked.set()
        self.sends.wait(60)
        self.answers = super().request(ranks)
        return self.answers


def ended(rank: int) -> tuple[dict[str, Any], bytes]:
    return {"rank": rank, "at": 0}, event_line("status", rank, 0, 5, state="released")


def a_run(ranks: Any) -> Recorder:
    made = Recorder("1", make_run(2), ranks, Store(), lambda rank: Path("nowhere"))
    made.start()
    return made


def test_a_run_waits_for_release_replies_even_if_its_ranks_have_ended(
    home: Path, monkeypatch: pytest.MonkeyPatch
):
    # The time to confirm must not run out, however long this test takes.
    monkeypatch.setattr(release, "RELEASED_S", 600.0)
    ranks = Slow()
    made = a_run(ranks)
    releasing = threading.Thread(target=made.release)
    releasing.start()
    assert ranks.asked.wait(60)

    def receive() -> None:
        for rank in (0, 1):
            ranks.receive(*ended(rank))

    receiving = threading.Thread(target=receive)
    receiving.start()
    assert not made.wait(0.3)
    ranks.sends.set()
    releasing.join()
    receiving.join()
    assert made.running == [] and not made.is_over
    for answer in ranks.answers:
        assert not made.wait(0)
        answer.set_result({})
    assert made.wait(0)


class Asked(Silent):
    """Connections to ranks that reply with `said[rank]`; `signalled` records signals."""

    def __init__(self) -> None:
        super().__init__()
        self.said: dict[int, dict[str, Any]] = {0: {}, 1: {}}
        self.signalled: list[int] = []

    def signal(self, ranks: Any, signal: str) -> list[Future[Any]]:
        self.signalled += ranks
        return []

    def request(self, ranks: Any, **content: Any) -> list[Future[Any]]:
        answers = []
        for rank in ranks:
            answers.append(Future[Any]())
            answers[-1].set_result(self.said[rank])
        return answers


def test_an_interrupt_is_repeated_until_each_rank_has_noticed_it(
    home: Path, monkeypatch: pytest.MonkeyPatch
):
    monkeypatch.setattr(release, "RELEASE_DELAY_S", 600.0)
    ranks = Asked()
    made = a_run(ranks)
    made.interrupt()
    assert ranks.signalled == [0, 1]
    for _ in range(3):  # both ranks dropped it, as neither had begun
        ranks.tick()
    assert ranks.signalled == [0, 1]
    ranks.said = {0: {"run": made.id}, 1: {}}
    ranks.tick()
    assert ranks.signalled == [0, 1, 0]
    ranks.said[1] = {"run": made.id}
    for _ in range(4):
        ranks.tick()
    assert sorted(ranks.signalled[3:]) == [0, 0, 0, 0, 1, 1, 1, 1]
    ranks.said = {0: {"run": made.id, "tidying": True}, 1: {"run": made.id, "interrupted": True}}
    for _ in range(4):  # both ranks have noticed it, and go on for a while
        ranks.tick()
    assert len(ranks.signalled) == 11
    for rank in (0, 1):
        ranks.receive(*ended(rank))
    ranks.tick()
    assert len(ranks.signalled) == 11


def test_a_run_ends_when_its_silent_rank_is_given_up(home: Path, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(release, "RELEASED_S", 0.0)
    ranks = Silent()
    made = a_run(ranks)
    made.release()
    ranks.receive(*ended(0))
    ranks.tick()  # the time to confirm is over, but rank 1 is not given up yet
    assert not made.is_over
    made.lose({1: "was given up: why"})
    assert made.wait(0)
    assert made.info.failure is not None
    assert made.info.failure.evalue == "rank 1 was given up: why"


def test_a_run_does_not_end_before_its_interrupt_was_sent(
    home: Path, monkeypatch: pytest.MonkeyPatch
):
    """An interrupt that an agent sends late would hit the next cell."""
    monkeypatch.setattr(release, "SIGNALLED_S", 600.0)
    ranks, sent = Silent(), [Future[Any](), Future[Any]()]
    monkeypatch.setattr(ranks, "signal", lambda ranks, signal: sent)
    made = a_run(ranks)
    made.interrupt()
    for rank in (0, 1):
        ranks.receive(*ended(rank))
    assert made.running == [] and not made.is_over
    sent[0].set_result(None)
    ranks.tick()
    assert not made.is_over
    sent[1].set_result(None)
    assert not made.is_over  # this is an agent's thread; the run ends in the server's
    ranks.tick()
    assert made.wait(0)


def test_an_interrupt_never_sent_keeps_no_run_open(home: Path, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(release, "SIGNALLED_S", 0.0)
    ranks = Silent()
    monkeypatch.setattr(ranks, "signal", lambda ranks, signal: [Future()])
    made = a_run(ranks)
    made.interrupt()
    for rank in (0, 1):
        ranks.receive(*ended(rank))
    assert made.wait(0)
