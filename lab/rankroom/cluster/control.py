"""What helps a live run that is stuck, for a client that has only its id.

The steps, each harder than the one before: interrupt, release, look at the stacks, restart a rank.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from typing import TypeVar

from rankroom.cluster import actions
from rankroom.errors import RankroomError, RunOverError, StartError, UsageError
from rankroom.record.model import RunInfo
from rankroom.record.store import Store
from rankroom.text.rank_ranges import format_ranks, parse_ranks

AT_ONCE = 4
LONGEST = 55.0  # a proxy in front may cut a request at a minute
T = TypeVar("T")


class Control:
    """The steps as coroutines; threads of their own do the work, as ranks may be slow to answer."""

    def __init__(self, store: Store) -> None:
        self._store = store
        # Not the event loop's own threads: those read the records.
        self._pool = ThreadPoolExecutor(AT_ONCE, "rankroom-control")

    async def interrupt(self, run_id: str) -> str:
        """KeyboardInterrupt on every rank; what was done, in one line, as from the other steps."""
        await self._step(run_id, "interrupt", actions.interrupt)
        return "every rank was sent an interrupt"

    async def release(self, run_id: str) -> str:
        """Let go of the collectives that ranks wait in."""
        return await self._step(run_id, "release", actions.release)

    async def stacks(self, run_id: str) -> dict[int, str]:
        """Where the threads of each rank are, as text."""
        return await self._step(run_id, "show the stacks of", actions.stacks)

    async def restart(self, run_id: str, text: str) -> str:
        """Restart the ranks that `text` names. Raises UsageError for ranks not in the run."""
        run = await self._live(run_id)
        if not text:
            raise UsageError(WHICH)
        ranks = parse_ranks(text, run.size)
        await self._step(run_id, "restart", lambda name: actions.restart_and_wait(name, ranks))
        who = f"rank{'s' if len(ranks) > 1 else ''} {format_ranks(ranks)}"
        return f"{who} {'were' if len(ranks) > 1 else 'was'} restarted, without variables"

    async def interrupt_cluster(self, name: str) -> None:
        """KeyboardInterrupt on every rank of a cluster, whatever it runs."""
        await self._on(name, "interrupt", actions.interrupt)

    async def _step(self, run_id: str, what: str, act: Callable[[str], T]) -> T:
        run = await self._live(run_id)
        return await self._on(run.cluster, what, act)

    async def _on(self, name: str, what: str, act: Callable[[str], T]) -> T:
        loop = asyncio.get_running_loop()
        work = loop.run_in_executor(self._pool, partial(_act, name, what, act))
        try:
            return await asyncio.wait_for(work, LONGEST)
        except asyncio.TimeoutError:  # not TimeoutError itself before Python 3.11
            raise StartError(SLOW.format(name=name, seconds=LONGEST)) from None

    async def _live(self, run_id: str) -> RunInfo:
        run = await asyncio.to_thread(self._store.load, run_id)
        if run.state == "lost":
            raise RunOverError(LOST.format(id=run.id))
        if run.state != "running":
            raise RunOverError(OVER.format(id=run.id, state=run.state))
        return run


def _act(name: str, what: str, act: Callable[[str], T]) -> T:
    """Raises RankroomErrors of one line only."""
    try:
        return act(name)
    except RankroomError:
        raise
    except Exception as error:
        logging.getLogger(__name__).exception("cluster %s could not %s its ranks", name, what)
        why = str(error).strip().partition("\n")[0] or type(error).__name__
        raise RankroomError(FAILED.format(what=what, name=name, why=why)) from error


OVER = "run {id} is over ({state}): there is nothing left to act on"
LOST = (
    "run {id} is lost, as the supervisor of its cluster is gone: `rankroom runs repair` completes "
    "its record with what its ranks left"
)
SLOW = (
    "cluster {name} did not answer within {seconds:.0f} s: try the next step, or end it with"
    " `%cluster stop` in a notebook"
)
FAILED = "could not {what} the ranks of {name}: {why}"
WHICH = "say which rank is to be restarted: restart?rank=2"
