"""The present load of ranks: their agents are asked only when a client requests it."""

from __future__ import annotations

from concurrent.futures import Future

from rankroom.supervisor.processes import load
from rankroom.supervisor.processes.load import Loads

LOAD = {"cpu": 12.0, "memory": 1 << 30, "gpu": None, "gpu_memory": None}


def answered(*ranks: int) -> Future[dict[int, load.Load]]:
    """Return an agent's reply about these ranks."""
    made: Future[dict[int, load.Load]] = Future()
    made.set_result(dict.fromkeys(ranks, LOAD))
    return made


def test_a_load_request_merges_the_replies_of_all_agents():
    looked = Loads(lambda: [answered(2, 3), answered(0, 1)]).look()
    assert looked["ranks"] == dict.fromkeys("0123", LOAD)
    assert list(looked["ranks"]) == ["0", "1", "2", "3"]


def test_ranks_of_an_agent_that_does_not_answer_are_left_out(monkeypatch):
    monkeypatch.setattr(load, "REPLY_TIMEOUT_S", 0.05)
    assert Loads(lambda: [Future(), answered(1)]).look()["ranks"] == {"1": LOAD}


def test_a_load_request_within_the_interval_gets_the_last_measurement(monkeypatch):
    monkeypatch.setattr(load, "MEASUREMENT_INTERVAL_S", 3600.0)
    asked = []

    def ask() -> list[Future[dict[int, load.Load]]]:
        asked.append(1)
        return [answered(0)]

    loads = Loads(ask)
    assert loads.look() == loads.look()
    assert len(asked) == 1
