"""A rank that never confirms that it let go, as its node is gone: its run ends all the same."""

from __future__ import annotations

from collections.abc import Callable
from concurrent.futures import Future
from pathlib import Path
from typing import Any

import pytest

from rankroom import release
from rankroom.record import RankInfo, event_line
from rankroom.run import Run
from rankroom.store import Store


class Silent:
    """A link to ranks that never answer; what is to be called later is called by `tick`."""

    def __init__(self) -> None:
        self.ranks = [0, 1]
        self._later: list[Callable[[], None]] = []

    def subscribe(self, run: str, receive: Callable[..., None]) -> None: ...

    def unsubscribe(self, run: str) -> None: ...

    def signal(self, ranks: Any, signal: str) -> None: ...

    def execute(self, rank: int, source: str, about: dict[str, Any]) -> Future[Any]:
        return Future()

    def request(self, ranks: Any, **content: Any) -> list[Future[Any]]:
        return [Future() for _ in ranks]

    def later(self, seconds: float, call: Callable[[], None]) -> None:
        self._later.append(call)

    def tick(self) -> None:
        due, self._later = self._later, []
        for call in due:
            call()


def test_a_run_ends_when_its_silent_rank_is_given_up(home: Path, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(release, "RELEASED_S", 0.0)
    link, ranks = Silent(), [RankInfo(rank, f"c{rank}", 0, "cpu", 0, "running") for rank in (0, 1)]
    made = Run(
        "1", ranks, 2, "it", link, Store(), lambda rank: None, lambda rank: "was given up: why"
    )  # fmt: skip
    made.start(0, 1)
    made.release()
    ended = event_line("status", 0, 0, 5, state="released")
    made._receive({"rank": 0, "at": 0}, ended)
    link.tick()  # the time to confirm is over, and rank 1 is not given up yet
    assert made.state == "running"
    made.lose()
    assert made.wait(0)
    assert made.info.failure is not None
    assert made.info.failure.evalue == "rank 1 was given up: why"
