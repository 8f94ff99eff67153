"""Thread pools for work that may take long, so that records are read and sent meanwhile."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from concurrent.futures import Future, ThreadPoolExecutor
from typing import Any, TypeVar

from rankroom.errors import StartError

STATE_THREADS, LOOKS, ACTIONS = 2, 4, 8
REQUEST_TIMEOUT_S = 50.0  # a proxy in front may cut off a request after a minute
T = TypeVar("T")


class Threads:
    """Three pools: for the states of clusters and of the own seat, which every window polls; for
    looks at ranks and records, which may take long; and for actions."""

    def __init__(self) -> None:
        self._states = ThreadPoolExecutor(STATE_THREADS, "rankroom-state")
        self._looks = ThreadPoolExecutor(LOOKS, "rankroom-look")
        self._actions = ThreadPoolExecutor(ACTIONS, "rankroom-action")
        self._going: dict[str, Future[Any]] = {}

    async def state(self, what: str, work: Callable[[], T]) -> T:
        """Return the result of `work` as `look` does, in a pool that slow looks cannot block."""
        return await self._shared(self._states, what, work)

    async def look(self, what: str, work: Callable[[], T]) -> T:
        """Return the result of `work`. Requests for the same `what` share it while it is under way.
        Raises StartError if it takes too long."""
        return await self._shared(self._looks, what, work)

    async def run(self, work: Callable[[], T]) -> T:
        """Return the result of `work`. Raises StartError if it takes too long; it goes on then."""
        return await self._wait(self._actions.submit(work), ACTION_TIMED_OUT)

    async def _shared(self, pool: ThreadPoolExecutor, what: str, work: Callable[[], T]) -> T:
        going = self._going.get(what)
        if going is None or going.done():
            going = self._going[what] = pool.submit(work)
            going.add_done_callback(lambda done: self._forget(what, done))
        result: T = await self._wait(going, SLOW_LOOK)
        return result

    def _forget(self, what: str, done: Future[Any]) -> None:
        if self._going.get(what) is done:
            del self._going[what]

    async def _wait(self, going: Future[T], slow: str) -> T:
        try:
            # A request that stops waiting must not cancel the work for the others.
            waiting = asyncio.shield(asyncio.wrap_future(going))
            return await asyncio.wait_for(waiting, REQUEST_TIMEOUT_S)
        except asyncio.TimeoutError:  # not TimeoutError itself before Python 3.11
            raise StartError(slow.format(seconds=REQUEST_TIMEOUT_S)) from None


ACTION_TIMED_OUT = (
    "no reply within {seconds:.0f} s: the action continues, and the status will show its result"
)
SLOW_LOOK = "no reply within {seconds:.0f} s"
