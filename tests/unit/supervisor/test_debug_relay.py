"""Which client a rank's debugger belongs to."""

from __future__ import annotations

from concurrent.futures import Future
from types import SimpleNamespace
from typing import Any

import pytest

from rankroom.errors import UsageError
from rankroom.record.owner import this_process
from rankroom.supervisor.debug_relay import DebugRelay

INITIALIZE = {"command": "initialize"}


@pytest.mark.parametrize("refused", [True, False], ids=["it refuses", "it is gone"])
def test_a_client_whose_initialize_failed_does_not_hold_the_debugger(refused: bool):
    asked: list[Future[dict[str, Any]]] = []

    def debug(rank: int, message: dict[str, Any]) -> Future[dict[str, Any]]:
        asked.append(Future())
        return asked[-1]

    connections = SimpleNamespace(demand_heard=lambda ranks: None, debug=debug)
    relay = DebugRelay(SimpleNamespace(), connections)  # type: ignore[arg-type]
    said: list[object] = []

    def ask(peer: bytes) -> None:
        content = {"do": "debug", "rank": 0, "message": INITIALIZE, **vars(this_process())}
        question = SimpleNamespace(
            content=content, peer=peer, refuse=said.append, answer=lambda **more: said.append(more)
        )
        assert relay.take(question)  # type: ignore[arg-type]

    ask(b"first")
    if refused:
        asked[-1].set_result({"refused": "debugpy is not installed"})
    else:
        asked[-1].set_exception(RuntimeError("rank 0 is gone"))
    ask(b"second")
    asked[-1].set_result({"answer": {}})
    assert len(said) == 2 and said[1] == {"answer": {}}
    assert relay._clients[0][0] == b"second"


def test_a_client_that_reconnects_keeps_the_debugger():
    """`%cluster attach`, for example, makes a new connection."""
    done: Future[dict[str, Any]] = Future()
    done.set_result({"answer": {}})
    connections = SimpleNamespace(demand_heard=lambda ranks: None, debug=lambda *about: done)
    told: list[bytes] = []
    server = SimpleNamespace(tell=lambda peer, **event: told.append(peer))
    relay = DebugRelay(server, connections)  # type: ignore[arg-type]

    def ask(peer: bytes, command: str, **about: Any) -> None:
        message = {"command": command}
        content = {"do": "debug", "rank": 0, "message": message, **vars(this_process()), **about}
        question = SimpleNamespace(content=content, peer=peer, answer=lambda **more: None)
        relay.take(question)  # type: ignore[arg-type]

    ask(b"first", "initialize")
    ask(b"again", "stackTrace")
    relay.take(SimpleNamespace(content={"do": "debugged", "rank": 0, "event": {}}))  # type: ignore[arg-type]
    assert told == [b"again"]
    with pytest.raises(UsageError, match="is being debugged from another notebook"):
        ask(b"another", "stackTrace", pid=1, began=0)
    ask(b"again", "disconnect")
    assert relay._clients == {}
