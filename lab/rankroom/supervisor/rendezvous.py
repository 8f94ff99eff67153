"""The rendezvous of ranks: gatherings of a value from each of them, and stores for Horovod.

A gathering is the one collective that needs no framework: initializations begin with one, so that
ranks that failed in different ways agree again, and a rank can leave it at any moment.

Horovod's Gloo writes addresses into an HTTP store that cannot be used twice. Each library (torch's
and TensorFlow's Horovod are two) and each re-initialization therefore gets a store of its own, on
the interface that the ranks use, open only until all of them have met, and only to their nodes. The
store has no authentication (Horovod's client has none), so it is opened and closed by requests that
arrive here, over a connection that has.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any

from rankroom.rpc.loop import Call
from rankroom.rpc.server import Question
from rankroom.supervisor.horovod_store import Admits, HorovodStore

STORE_OPEN_TIMEOUT_S = 120.0  # a store that not all ranks reach is closed after this
# Stores of a library whose content is kept: the newest is used, by process sets as well.
MAX_STORES_PER_LIBRARY = 4
PROGRESS_REPLY_DELAY_S = 1.0  # after this, a rank that waits for others is told which have arrived


class _Round:
    """One gathering: the values that ranks have sent, and the requests that wait for the rest."""

    def __init__(self, number: int) -> None:
        self.number = number
        self.values: dict[int, Any] = {}
        self.waiting: dict[int, Question] = {}
        self.is_complete = False

    def answer(self, rank: int, question: Question) -> None:
        """Reply with the progress of the round, unless that request has been answered."""
        if self.waiting.get(rank) is question:
            del self.waiting[rank]
            ranks = sorted(self.values)
            values = [self.values[each] for each in ranks] if self.is_complete else []
            about = {"round": self.number, "complete": self.is_complete}
            question.answer(ranks=ranks, values=values, **about)


class Rendezvous:
    """Gathers, and opens and closes stores on behalf of the ranks; used by one thread.

    `later(seconds, call)` calls `call()` in that thread; stores accept the connections that
    `admits` admits.
    """

    def __init__(
        self, interface: str, later: Callable[[float, Call], None], admits: Admits
    ) -> None:
        self._interface = interface
        self._later = later
        self._admits = admits
        self._data: dict[str, dict[bytes, bytes]] = {}
        self._open: dict[str, HorovodStore] = {}
        self._met: dict[str, set[int]] = {}
        self._rounds: dict[str, list[_Round]] = {}

    def take(self, question: Question) -> bool:
        """Handle a request about a rendezvous; return False if it is of another kind."""
        match question.content:
            case {"do": "gather"}:
                self._gather(question)
            case {"do": "leave", "topic": topic, "rank": rank}:
                self._leave(topic, rank)
                question.answer()
            case {"do": "meet", "key": key}:
                question.answer(address=self._interface, port=self._meet(key))
            case {"do": "met", "key": key, "rank": rank, "size": size}:
                met = self._met.setdefault(key, set())
                met.add(rank)
                if len(met) >= size:
                    self._close(key)
                question.answer()
            case _:
                return False
        return True

    def break_up(self, rank: int) -> None:
        """Remove `rank`, which is gone, from all gatherings, and close all stores: ranks would wait
        for it there in vain."""
        for topic in list(self._rounds):
            self._leave(topic, rank)
        for key in list(self._open):
            self._close(key)

    def forget_arrivals(self) -> None:
        """Forget who has arrived in gatherings that did not come about, as their run is over.

        A rank may have been interrupted before it could say that it leaves.
        """
        for round_ in [each for rounds in self._rounds.values() for each in rounds]:
            if not round_.is_complete:
                round_.values.clear()
                round_.waiting.clear()

    def _gather(self, question: Question) -> None:
        """Reply with the values of all ranks for a topic once they are complete, or after a while
        with the ranks that have arrived.

        A rank that asks again passes the number of its round, as that may be complete by then.
        """
        topic, rank = question.content["topic"], question.content["rank"]
        rounds = self._rounds.setdefault(topic, [_Round(0), _Round(1)])
        asked = question.content["round"]
        round_ = next((each for each in rounds if each.number == asked), rounds[-1])
        round_.waiting[rank] = question
        if not round_.is_complete:
            round_.values[rank] = question.content["value"]
            if len(round_.values) < question.content["size"]:
                self._later(PROGRESS_REPLY_DELAY_S, partial(round_.answer, rank, question))
                return
            round_.is_complete = True
            # Ranks still waiting in this round need it; no rank waits in an older one.
            self._rounds[topic] = [round_, _Round(round_.number + 1)]
        for each, waiting in list(round_.waiting.items()):
            round_.answer(each, waiting)

    def _leave(self, topic: str, rank: int) -> None:
        """Remove `rank` from the gathering on `topic`, as it no longer waits for the others."""
        for round_ in self._rounds.get(topic, ()):
            if not round_.is_complete:
                round_.values.pop(rank, None)
                if waiting := round_.waiting.get(rank):
                    round_.answer(rank, waiting)

    def _meet(self, key: str) -> int:
        """Return the port of the store named `key`, opened now if it is not open."""
        if key not in self._open:
            self._met[key] = set()
            data = self._data.setdefault(key, {})
            self._forget_older(key)
            self._open[key] = HorovodStore(self._interface, data, self._admits)
            self._later(STORE_OPEN_TIMEOUT_S, partial(self._close, key))
        return self._open[key].port

    def _forget_older(self, key: str) -> None:
        """Delete all but the latest few stores of a library that is initialized again and again."""
        library = key.partition("/")[0]
        alike = [each for each in self._data if each.partition("/")[0] == library]
        for each in alike[:-MAX_STORES_PER_LIBRARY]:
            if each not in self._open:
                del self._data[each]
                self._met.pop(each, None)

    def _close(self, key: str) -> None:
        if store := self._open.pop(key, None):
            store.close()
