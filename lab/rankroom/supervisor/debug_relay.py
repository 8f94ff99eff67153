"""Passes requests of JupyterLab's debugger on to the rank that it debugs, and events back."""

from __future__ import annotations

from concurrent.futures import Future
from typing import Any

from rankroom.errors import UsageError
from rankroom.record.model import Owner
from rankroom.record.owner import is_gone
from rankroom.rpc.server import Question, Server
from rankroom.supervisor.rank_connections import RankConnections


class DebugRelay:
    """Knows which client debugs each rank: the one that switched its debugger on."""

    def __init__(self, server: Server, connections: RankConnections) -> None:
        self._server = server
        self._connections = connections
        self._clients: dict[int, tuple[bytes, Owner]] = {}

    def take(self, question: Question) -> bool:
        """Pass on a client's request or a rank's event, in the server's thread; return False if the
        message is neither."""
        said = question.content
        if said["do"] == "debug":
            self._ask(question, said["rank"], said["message"])
        elif said["do"] == "debugged":
            self._tell(said["rank"], said["event"])
        else:
            return False
        return True

    def gone(self, rank: int) -> None:
        """Note that the process of a rank has ended, and its debugger with it."""
        self._tell(rank, None)
        self._clients.pop(rank, None)

    def forget_gone(self) -> None:
        """Disconnect the debuggers of clients that have ended, which removes their breakpoints."""
        for rank, (_, client) in list(self._clients.items()):
            if is_gone(client):
                self._clients.pop(rank)
                self._connections.debug(rank, DISCONNECT_REQUEST)

    def _ask(self, question: Question, rank: int, message: dict[str, Any]) -> None:
        self._connections.demand_heard([rank])
        by, command = question.content, message["command"]
        _, client = self._clients.get(rank, (question.peer, None))
        asks = Owner(by["host"], by["pid"], by.get("space", ""), by.get("began", 0))
        if client and client != asks and not is_gone(client):
            raise UsageError(
                DEBUGGED_BY_ANOTHER.format(rank=rank, pid=client.pid, host=client.host)
            )
        if command == "initialize" or client == asks:  # the client may have reconnected
            client = asks
            self._clients[rank] = question.peer, client
        mine = question.peer, client

        def answer(asked: Future[Any]) -> None:
            error = asked.exception()
            failed = error is not None or "refused" in asked.result()
            if failed and command == "initialize" and self._clients.get(rank) == mine:
                self._clients.pop(rank)  # the debugger was not switched on
            if isinstance(error, Exception):
                question.refuse(error)
            else:
                question.answer(**asked.result())

        self._connections.debug(rank, message).add_done_callback(answer)
        if command == "disconnect":
            self._clients.pop(rank, None)

    def _tell(self, rank: int, event: dict[str, Any] | None) -> None:
        if client := self._clients.get(rank):
            self._server.tell(client[0], do="debugged", rank=rank, event=event)


DISCONNECT_REQUEST = {"type": "request", "command": "disconnect", "seq": 0, "arguments": {}}
DEBUGGED_BY_ANOTHER = (
    "rank {rank} is being debugged from another notebook (pid {pid} on {host}): switch the "
    "debugger off there first"
)
