"""Threads of their own for what may take long, so that records are read and sent meanwhile."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from concurrent.futures import Future, ThreadPoolExecutor
from typing import Any, TypeVar

from rankroom.errors import StartError

LOOKS, ACTIONS = 4, 8
LONGEST_S = 50.0  # a proxy in front may cut a request at a minute
T = TypeVar("T")


class Threads:
    """One pool for looking, which every window does all the time, and one for acting."""

    def __init__(self) -> None:
        self._looks = ThreadPoolExecutor(LOOKS, "rankroom-look")
        self._actions = ThreadPoolExecutor(ACTIONS, "rankroom-action")
        self._going: dict[str, Future[Any]] = {}

    async def look(self, what: str, work: Callable[[], T]) -> T:
        """The result of `work`, shared by all who look at the same while it is under way."""
        going = self._going.get(what)
        if going is None or going.done():
            going = self._going[what] = self._looks.submit(work)
            going.add_done_callback(lambda done: self._forget(what, done))
        result: T = await self._wait(going)
        return result

    async def run(self, work: Callable[[], T]) -> T:
        """The result of `work`; StartError when it takes too long, though it goes on then."""
        return await self._wait(self._actions.submit(work))

    def _forget(self, what: str, done: Future[Any]) -> None:
        if self._going.get(what) is done:
            del self._going[what]

    async def _wait(self, going: Future[T]) -> T:
        try:
            # Who no longer waits must not end it for the others.
            waiting = asyncio.shield(asyncio.wrap_future(going))
            return await asyncio.wait_for(waiting, LONGEST_S)
        except asyncio.TimeoutError:  # not TimeoutError itself before Python 3.11
            raise StartError(SLOW.format(seconds=LONGEST_S)) from None


SLOW = "no answer within {seconds:.0f} s: it goes on, and its status shows what comes of it"
