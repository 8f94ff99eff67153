"""Clocks of other hosts: how far they are ahead of this one's, with error bounds.

A rank is asked for its time. It reads its clock between the request and the reply, so the offset
lies between two bounds, however unequal the delays of the two messages are. The interval on which
many replies agree is narrower than that of any one of them.
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

TRIPS = 12  # round trips to each host
REPLY_TIMEOUT_S = 1.0  # reply timeout
COMPARISON_INTERVAL_S = 300.0  # between two comparisons, as clocks drift
RETRY_INTERVAL_S = 20.0  # the same if no rank replied
CONNECT_TIMEOUT_S = 2.0  # timeout for ranks to connect
ASKED = 2  # ranks that are asked per host, as one of them may be busy

Request = Callable[..., Sequence[Future[Any]]]


class Trip(NamedTuple):
    """One round trip, in µs: when the request was sent (`asked`) and its reply received
    (`answered`) by this host's clock, and the time that the rank `told`."""

    asked: int
    told: int
    answered: int


def estimate(trips: Iterable[Trip]) -> Clock | None:
    """Return the offset on which the round trips agree; None if there are none.

    If they contradict each other, as when a clock was set meanwhile, only the quickest counts.
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
    """Return a clock whose bounds cover both: for a run with more than one comparison."""
    low = min(one.offset - one.error, other.offset - other.error)
    high = max(one.offset + one.error, other.offset + other.error)
    return _between(low, high)


def _bounds(trip: Trip) -> tuple[int, int]:
    """Return the bounds of the offset. Times are whole microseconds, rounded down."""
    return trip.told - trip.answered - 1, trip.told + 1 - trip.asked


def _between(low: int, high: int) -> Clock:
    offset = (low + high) // 2
    return Clock(offset, max(high - offset, offset - low))


class Clocks:
    """The clocks of a cluster's hosts other than `here`, as far as they are known.

    `request(ranks, do="clock")` asks ranks, and returns a future for each that is connected;
    `connected()` returns those.
    """

    def __init__(
        self, request: Request, connected: Callable[[], Iterable[int]], here: str | None = None
    ) -> None:
        self._request = request
        self._connected = connected
        self._here = socket.gethostname() if here is None else here
        self._known: dict[str, Clock] = {}
        self._since = -math.inf  # when they were last compared
        self._lock = threading.Lock()
        self._thread: threading.Thread | None = None  # of the latest comparison

    def elsewhere(self, ranks: Iterable[RankInfo]) -> dict[str, list[int]]:
        """Return the ranks on other hosts, by host."""
        out: dict[str, list[int]] = {}
        for rank in ranks:
            if rank.host != self._here:
                out.setdefault(rank.host, []).append(rank.rank)
        return out

    @property
    def comparing(self) -> bool:
        """True while clocks are compared, which takes milliseconds: a short first run would be over
        before that, and have no offsets."""
        return self._thread is not None and self._thread.is_alive()

    def of(self, ranks: Iterable[RankInfo]) -> dict[int, Clock]:
        """Return the clocks of ranks on other hosts, if they were compared recently."""
        if time.monotonic() - self._since > COMPARISON_INTERVAL_S:
            return {}
        return self._by_rank(ranks)

    def compare(
        self, ranks: Sequence[RankInfo], tell: Callable[[dict[int, Clock]], None] | None = None
    ) -> threading.Thread | None:
        """Compare clocks in a thread and pass the result to `tell`, unless a recent one is known.

        Does nothing if all ranks are on this host.
        """
        if time.monotonic() - self._since < COMPARISON_INTERVAL_S or not self.elsewhere(ranks):
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
            if time.monotonic() - self._since >= COMPARISON_INTERVAL_S:
                trips = self._trips(self.elsewhere(ranks))
                for host, found in trips.items():
                    if clock := estimate(found):
                        self._known[host] = clock
                late = 0.0 if any(trips.values()) else COMPARISON_INTERVAL_S - RETRY_INTERVAL_S
                self._since = time.monotonic() - late
        if tell is not None and (clocks := self._by_rank(ranks)):
            tell(clocks)

    def _by_rank(self, ranks: Iterable[RankInfo]) -> dict[int, Clock]:
        hosts = self.elsewhere(ranks)
        return {
            rank: self._known[host] for host in hosts if host in self._known for rank in hosts[host]
        }

    def _trips(self, hosts: dict[str, list[int]]) -> dict[str, list[Trip]]:
        """Make round trips to each host, one after another, once ranks are connected."""
        known = {rank for ranks in hosts.values() for rank in ranks[:ASKED]}
        poll_until(lambda: known <= set(self._connected()), CONNECT_TIMEOUT_S, 0.02)
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
        # The callback runs in the connection's thread, which sees the reply first.
        futures[0].add_done_callback(lambda _: back.append(time.time_ns() // 1000))
        answer = futures[0].result(REPLY_TIMEOUT_S)
        answered = back[0] if back else time.time_ns() // 1000
        return Trip(asked, int(answer["time"]), answered)
