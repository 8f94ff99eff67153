"""Clocks of other hosts: how far they are ahead of this one's, and how sure that is.

A rank is asked for its time. Its answer was made between the question and the reply, so the offset
lies between two bounds, however unequal the ways there and back were; what many answers agree on
is narrower than any one of them.
"""

from __future__ import annotations

import contextlib
import math
import socket
import threading
import time
from collections.abc import Callable, Iterable, Sequence
from concurrent.futures import Future
from typing import Any, NamedTuple

from rankroom.errors import RankroomError
from rankroom.record.model import Clock, RankInfo
from rankroom.system.polling import poll_until

TRIPS = 12  # questions to each host
ANSWER_S = 1.0  # for an answer
AGAIN_S = 300.0  # as clocks drift, they are compared again
RETRY_S = 20.0  # when no rank answered
COMES_S = 2.0  # for ranks to be connected
ASKED = 2  # ranks of each host that are asked: one of them may be busy

Request = Callable[..., Sequence[Future[Any]]]


class Trip(NamedTuple):
    """A question and its answer, in microseconds: asked and answered here, told there."""

    asked: int
    told: int
    answered: int


def estimate(trips: Iterable[Trip]) -> Clock | None:
    """What the answers agree on; if they contradict each other, the quickest of them alone.

    They do when a clock was set meanwhile. None without answers.
    """
    bounds = [_bounds(trip) for trip in trips if trip.answered >= trip.asked]
    if not bounds:
        return None
    low = max(bound[0] for bound in bounds)
    high = min(bound[1] for bound in bounds)
    if low > high:
        low, high = min(bounds, key=lambda bound: bound[1] - bound[0])
    return _between(low, high)


def hull(one: Clock, other: Clock) -> Clock:
    """A clock that covers both: for a run in which they were compared more than once."""
    low = min(one.offset - one.error, other.offset - other.error)
    high = max(one.offset + one.error, other.offset + other.error)
    return _between(low, high)


def _bounds(trip: Trip) -> tuple[int, int]:
    """Between what the offset must lie. Times are whole microseconds, rounded down."""
    return trip.told - trip.answered - 1, trip.told + 1 - trip.asked


def _between(low: int, high: int) -> Clock:
    offset = (low + high) // 2
    return Clock(offset, max(high - offset, offset - low))


class Clocks:
    """What is known of the clocks of a cluster's hosts other than `here`.

    `request(ranks, do="clock")` asks ranks, and returns a future for each that is there.
    """

    def __init__(self, request: Request, here: str | None = None) -> None:
        self._request = request
        self._here = socket.gethostname() if here is None else here
        self._known: dict[str, Clock] = {}
        self._since = -math.inf  # when they were last compared
        self._lock = threading.Lock()
        self._thread: threading.Thread | None = None  # the newest that compares

    def elsewhere(self, ranks: Iterable[RankInfo]) -> dict[str, list[int]]:
        """The ranks on other hosts, by host."""
        out: dict[str, list[int]] = {}
        for rank in ranks:
            if rank.host != self._here:
                out.setdefault(rank.host, []).append(rank.rank)
        return out

    @property
    def comparing(self) -> bool:
        """True while they are compared, which takes milliseconds: a first short run would end
        before it, and have none."""
        return self._thread is not None and self._thread.is_alive()

    def of(self, ranks: Iterable[RankInfo]) -> dict[int, Clock]:
        """The clocks of ranks on other hosts, if they were compared a short while ago."""
        if time.monotonic() - self._since > AGAIN_S:
            return {}
        return self._by_rank(ranks)

    def compare(
        self, ranks: Sequence[RankInfo], tell: Callable[[dict[int, Clock]], None] | None = None
    ) -> threading.Thread | None:
        """Compare clocks in a thread and `tell` what came out, unless that is known already.

        Nothing happens where all ranks are on this host.
        """
        if time.monotonic() - self._since < AGAIN_S or not self.elsewhere(ranks):
            return None
        thread = threading.Thread(
            target=self._compare, args=(ranks, tell), name="rankroom-clock", daemon=True
        )
        self._thread = thread
        thread.start()
        return thread

    def _compare(
        self, ranks: Sequence[RankInfo], tell: Callable[[dict[int, Clock]], None] | None
    ) -> None:
        with self._lock:  # a second thread finds it done
            if time.monotonic() - self._since >= AGAIN_S:
                trips = self._trips(self.elsewhere(ranks))
                for host, found in trips.items():
                    if clock := estimate(found):
                        self._known[host] = clock
                late = 0.0 if any(trips.values()) else AGAIN_S - RETRY_S
                self._since = time.monotonic() - late
        if tell is not None and (clocks := self._by_rank(ranks)):
            tell(clocks)

    def _by_rank(self, ranks: Iterable[RankInfo]) -> dict[int, Clock]:
        hosts = self.elsewhere(ranks)
        return {
            rank: self._known[host] for host in hosts if host in self._known for rank in hosts[host]
        }

    def _trips(self, hosts: dict[str, list[int]]) -> dict[str, list[Trip]]:
        """Some round trips to each host, one after the other, once ranks are there to be asked."""
        known = [rank for ranks in hosts.values() for rank in ranks[:ASKED]]
        poll_until(lambda: len(self._request(known, do="clock")) == len(known), COMES_S, 0.02)
        out: dict[str, list[Trip]] = {host: [] for host in hosts}
        for turn in range(TRIPS):
            for host, ranks in hosts.items():
                rank = ranks[turn % min(ASKED, len(ranks))]
                with contextlib.suppress(Exception):
                    out[host].append(self._ask(rank))
        return out

    def _ask(self, rank: int) -> Trip:
        back: list[int] = []
        asked = time.time_ns() // 1000
        futures = self._request([rank], do="clock")
        if not futures:
            raise RankroomError(f"rank {rank} is gone")
        # The client's thread sees the reply first.
        futures[0].add_done_callback(lambda _: back.append(time.time_ns() // 1000))
        answer = futures[0].result(ANSWER_S)
        answered = back[0] if back else time.time_ns() // 1000
        return Trip(asked, int(answer["time"]), answered)
