"""The supervisor's connections to its ranks: cells and requests out, events and replies in.

Each rank keeps a connection to its supervisor from when it is ready. It answers requests on it
even while a cell runs or hangs.
"""

from __future__ import annotations

import contextlib
import itertools
import time
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from concurrent.futures import Future, InvalidStateError
from dataclasses import dataclass
from typing import Any

from rankroom.errors import NoClusterError, RankroomError
from rankroom.rpc.client import Answer, packed
from rankroom.rpc.loop import Call
from rankroom.rpc.server import Question, Server
from rankroom.text.rank_ranges import format_ranks

Receive = Callable[[dict[str, Any], bytes], None]
Signal = Callable[[Collection[int], str], Sequence[Future[None]]]


class RankGoneError(NoClusterError):
    """The rank's process has ended, so that its pending requests get no reply."""


@dataclass(frozen=True)
class Silence:
    """Nothing has been heard from `node` `since` then (monotonic): its ranks may be cut off."""

    node: str
    since: float

    @property
    def seconds(self) -> float:
        return time.monotonic() - self.since

    def __str__(self) -> str:
        return f"node {self.node} has been silent for {self.seconds:.0f} s"


class RankConnections:
    """The connections of a cluster's ranks.

    `signal(ranks, name)` sends a signal to the processes of ranks, whatever they do; the futures
    it returns are done once the signal was sent.
    """

    def __init__(self, server: Server, signal: Signal) -> None:
        self._server = server
        self.signal = signal
        self.modules: set[str] = set()  # of FORK_SAFE_MODULES, those that cells have imported
        self.known: set[int] = set()  # ranks that have been connected at any time
        self.silent: Mapping[int, Silence] = {}  # ranks on silent nodes
        self._peers: dict[int, bytes] = {}
        self._numbers = itertools.count(1)
        self._asked: dict[int, tuple[int, Future[Any]]] = {}
        self._receivers: dict[str, Receive] = {}

    @property
    def ranks(self) -> list[int]:
        """The ranks that are connected."""
        return sorted(self._peers)

    # -- messages from ranks, in the server's thread

    def take(self, question: Question) -> bool:
        """Handle a rank's events or reply; return False if the message is of another kind."""
        said = question.content
        if said["do"] == "events":
            if self._peers.get(said["rank"], question.peer) != question.peer:
                return True  # from a process that is gone: they were read from its spool
            self.modules.update(said.get("modules", ()))
            if receive := self._receivers.get(said["run"]):
                receive(said, question.buffers[0])
        elif said["do"] == "answered":
            _, future = self._asked.pop(said["number"], (0, None))
            answer = Answer(said["answer"])
            answer.buffers = question.buffers
            _settle(future, answer)
        else:
            return False
        return True

    def connected(self, rank: int, peer: bytes) -> None:
        """Note that `rank` has connected as `peer`."""
        self._peers[rank] = peer
        self.known.add(rank)

    def gone(self, rank: int) -> None:
        """Fail all pending requests to `rank`, as its process has ended."""
        self._peers.pop(rank, None)
        for number, (asked, future) in list(self._asked.items()):
            if asked == rank:
                self._asked.pop(number, None)
                _settle(future, RankGoneError(f"rank {rank} is gone"))

    # -- messages to ranks, from any thread

    def subscribe(self, run: str, receive: Receive) -> None:
        """Call `receive(header, lines)`, in the server's thread, for each batch of run events."""
        self._receivers[run] = receive

    def unsubscribe(self, run: str) -> None:
        self._receivers.pop(run, None)

    def execute(self, to: Iterable[int], source: str, /, **about: Any) -> dict[int, Future[Any]]:
        """Run `source` as a cell on ranks; return futures of the replies, sent when it has run."""
        cell = packed({"source": source, **about})  # once, as it lists all ranks
        return {rank: self._ask(rank, cell, do="execute") for rank in to}

    def apply(
        self, to: Iterable[int], how: str, name: str, buffers: Sequence[bytes]
    ) -> dict[int, Future[Any]]:
        """Access variables on ranks between two cells; return the future of each rank's reply."""
        return {rank: self._ask(rank, *buffers, do="apply", how=how, name=name) for rank in to}

    def request(self, ranks: Sequence[int], /, **question: Any) -> list[Future[Any]]:
        """Send ranks a request that they answer even while a cell runs; skip absent ranks."""
        return [self._ask(rank, **question) for rank in ranks if rank in self._peers]

    def debug(self, rank: int, message: dict[str, Any]) -> Future[Any]:
        """Send a request of JupyterLab's debugger to a rank; the reply may be RankGoneError."""
        return self._ask(rank, do="debug", message=message)

    def demand_heard(self, ranks: Iterable[int]) -> None:
        """Raise RankroomError if one of these ranks may be cut off, and so would not reply."""
        silent, chosen = self.silent, set(ranks)
        if nodes := {silent[rank].node: silent[rank] for rank in sorted(chosen & silent.keys())}:
            node, silence = next(iter(nodes.items()))
            its = [rank for rank, each in sorted(silent.items()) if each.node == node]
            raise RankroomError(CUT_OFF.format(silence=silence, ranks=format_ranks(its)))

    def later(self, seconds: float, call: Call) -> None:
        """Call `call()` in the server's thread after `seconds`."""
        self._server.later(seconds, call)

    def _ask(self, rank: int, /, *buffers: bytes, **question: Any) -> Future[Any]:
        future: Future[Any] = Future()
        peer = self._peers.get(rank)
        if peer is None:
            future.set_exception(RankGoneError(f"rank {rank} is gone"))
            return future
        number = next(self._numbers)
        self._asked[number] = rank, future
        self._server.tell(peer, *buffers, number=number, **question)
        return future


def _settle(future: Future[Any] | None, outcome: Any) -> None:
    if future is None:
        return
    with contextlib.suppress(InvalidStateError):  # canceled meanwhile
        if isinstance(outcome, BaseException):
            future.set_exception(outcome)
        else:
            future.set_result(outcome)


CUT_OFF = (
    "{silence}: its ranks may be cut off. Wait until the node responds, or give them up with "
    "`%cluster restart --ranks {ranks}`"
)
