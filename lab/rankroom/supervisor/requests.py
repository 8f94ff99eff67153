"""Requests about a cluster's ranks and records, other than runs, whose replies take a while.

Each is handled in a thread of its own.
"""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Callable
from concurrent.futures import wait
from pathlib import Path
from typing import Any

from rankroom.errors import NoClusterError, RankroomError
from rankroom.record.store import Store
from rankroom.rpc.server import Question
from rankroom.supervisor.processes.load import Loads
from rankroom.supervisor.rank_connections import RankConnections
from rankroom.supervisor.rank_stacks import stacks
from rankroom.text.rank_ranges import name_ranks

CHUNK = 1 << 18  # bytes of events in a reply
LONGEST_WAIT_S = 30.0  # for new events
HEARD_S = 1.0  # while ranks' replies are awaited, between checks whether ranks may be cut off


class Requests:
    """Handles requests about a cluster of `size()` ranks; `spool(rank)` is the folder of a spool.

    `starting(ranks)` returns those of them that are not ready yet; NoClusterError if one is down.
    `demand_idle(ranks, asked)` raises RankroomError if a run is in progress on them.
    """

    def __init__(
        self,
        size: Callable[[], int],
        starting: Callable[[list[int]], list[int]],
        demand_idle: Callable[[list[int], dict[str, Any]], None],
        connections: RankConnections,
        loads: Loads,
        spool: Callable[[int], Path],
    ) -> None:
        self._size = size
        self._starting = starting
        self._demand_idle = demand_idle
        self._connections = connections
        self._loads = loads
        self._spool = spool
        self._store = Store()
        self._actions: dict[str, Callable[[Question], None]] = {
            "stacks": self._stacks, "read": self._read, "apply": self._apply,
            "look": lambda question: question.answer(**self._loads.look()),
        }  # fmt: skip

    def take(self, question: Question) -> bool:
        """Handle a request in a thread of its own; return False if it is of another kind."""
        if act := self._actions.get(question.content["do"]):
            threading.Thread(target=_answered, args=(act, question), daemon=True).start()
        return act is not None

    def _ranks(self, asked: dict[str, Any]) -> list[int]:
        ranks: list[int] | None = asked["ranks"]
        return list(range(self._size())) if ranks is None else ranks

    def _stacks(self, question: Question) -> None:
        found = stacks(self._connections, self._ranks(question.content), self._spool)
        question.answer(stacks={str(rank): text for rank, text in found.items()})

    def _read(self, question: Question) -> None:
        """Reply with a record's events from a byte offset on, and its run.json, as the browser's
        view reads them."""
        asked, store = question.content, self._store
        tail, known = store.tail(asked["run"], asked["after"]), asked["changed"] or ""
        chunk = asyncio.run(tail.next(CHUNK, min(asked["wait"], LONGEST_WAIT_S), known=known))
        run = store.load(asked["run"])
        if chunk.state == "running" or chunk.next < chunk.size:
            run.state = "running"  # its end is reported after its last event
        source = "" if known else store.source(run.id)
        question.answer(chunk.data, run=run.to_json(), source=source, changed=chunk.changed)

    def _apply(self, question: Question) -> None:
        """Set variables on ranks, read one, or call a function there, between two cells."""
        asked, ranks = question.content, self._ranks(question.content)
        if starting := self._starting(ranks):
            words = RANK_STARTING if len(starting) == 1 else RANKS_STARTING
            raise NoClusterError(words.format(ranks=name_ranks(starting)))
        self._demand_idle(ranks, asked)
        self._connections.demand_heard(ranks)
        futures = self._connections.apply(ranks, asked["how"], asked["name"], question.buffers)
        while wait(futures.values(), HEARD_S).not_done:
            self._connections.demand_heard(r for r, each in futures.items() if not each.done())
        found = {rank: future.result() for rank, future in futures.items()}
        for rank, said in found.items():
            if "failed" in said:
                raise RankroomError(f"rank {rank}: {said['failed']}")
        counts = [len(said.buffers) for said in found.values()]
        question.answer(*(part for said in found.values() for part in said.buffers), counts=counts)


def _answered(act: Callable[[Question], None], question: Question) -> None:
    try:
        act(question)
    except Exception as error:
        question.refuse(error)


RANK_STARTING = "{ranks} is starting: wait until it is ready"
RANKS_STARTING = "{ranks} are starting: wait until they are ready"
