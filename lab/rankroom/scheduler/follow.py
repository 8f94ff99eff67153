"""Waiting for a job: "I cannot tell" is told, and asked again, never taken for an answer."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from typing import TypeVar

from rankroom.errors import SchedulerError, SshError

LOOK_S = 0.5  # between two looks at a job; the scheduler itself is asked more rarely
T = TypeVar("T")


async def as_soon_as_known(
    look: Callable[[], Awaitable[T]], job: str, show: Callable[[str], None]
) -> T:
    """What `look` answers about a job, once it can; until then `show(words)` says that it cannot.

    The job goes on without anybody who looks.
    """
    while True:
        try:
            return await look()
        except (SchedulerError, SshError) as error:
            why = str(error).partition("\n")[0].rstrip(":")
            show(f"job {job}: its state is unknown ({why}); asking again")
            await asyncio.sleep(LOOK_S)
