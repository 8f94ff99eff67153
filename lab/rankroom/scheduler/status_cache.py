"""One query to a scheduler for all processes of a user on this machine.

Its last answer is a file. A process that finds it too old queries again with the file's lock held,
and the others wait for that answer. After each failure the interval grows.
"""

from __future__ import annotations

import asyncio
import contextlib
import dataclasses
import json
import re
import time
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass, field

from rankroom import config
from rankroom.system.file_lock import locked
from rankroom.system.files import write_atomically

MIN_QUERY_INTERVAL_S = 5.0
MAX_QUERY_INTERVAL_S = 60.0  # between two queries, however often they have failed
INTEREST_TIMEOUT_S = 120.0  # a job that no process asked for in this time is not queried
# A process that holds the lock for longer is stopped or stuck: go on without it.
LOCK_TIMEOUT_S = 45.0
POLL_INTERVAL_S = 0.05
INTERVAL_PER_QUERY_TIME = 4  # the interval is at least this many times what the last query took

Question = Callable[[Sequence[str]], Awaitable[tuple[str, str]]]


@dataclass
class Answer:
    """The output of a query made `at`, or its `error`. Times are epoch seconds.

    The scheduler is not queried before `again`. `wanted` are the jobs that processes asked for, and
    when; `ids` those that this answer is about.
    """

    at: float = 0.0
    output: str = ""
    error: str = ""
    again: float = 0.0
    failures: int = 0
    ids: list[str] = field(default_factory=list)
    wanted: dict[str, float] = field(default_factory=dict)

    @property
    def is_answered(self) -> bool:
        return self.at > 0


class StatusCache:
    """The query called `name`."""

    def __init__(self, name: str) -> None:
        self.file = config.home() / "asked" / f"{re.sub(r'[^A-Za-z0-9@._-]', '_', name)}.json"
        self._own = Answer()  # if the file cannot be written, each process queries for itself

    async def latest(self, ids: Sequence[str], question: Question) -> Answer:
        """Return the last answer, after a query if it is old; `question` returns output and
        error."""
        while True:
            with contextlib.suppress(OSError):
                config.make_private(self.file.parent)
            async with locked(self.file.with_suffix(".lock"), LOCK_TIMEOUT_S):
                answer = self._read()
                now = time.time()
                answer.wanted = {
                    job: then
                    for job, then in answer.wanted.items()
                    if now - INTEREST_TIMEOUT_S < then <= now
                } | dict.fromkeys(ids, now)
                # A clock that was set back must not prevent queries.
                if not answer.at <= now < answer.again <= now + MAX_QUERY_INTERVAL_S:
                    return await self._ask(answer, question)
                self._write(answer)
            if answer.is_answered:
                return answer
            # The process that queried has ended before the answer came; its query counts all the
            # same.
            await asyncio.sleep(max(POLL_INTERVAL_S, answer.again - now))

    async def _ask(self, last: Answer, question: Question) -> Answer:
        begun = time.time()
        # Before the query: it counts even if it fails, or this process is killed meanwhile. Then
        # the last answer no longer does, as it may be old.
        asked = Answer(
            again=begun + MIN_QUERY_INTERVAL_S, failures=last.failures, wanted=last.wanted
        )
        self._write(asked)
        ids = list(last.wanted)
        output, error = await question(ids)
        failures = last.failures + 1 if error else 0
        pause = max(
            MIN_QUERY_INTERVAL_S, INTERVAL_PER_QUERY_TIME * (time.time() - begun)
        ) * 2.0 ** min(failures, 9)
        again = begun + min(MAX_QUERY_INTERVAL_S, pause)
        answer = Answer(begun, output, error, again, failures, ids, last.wanted)
        self._write(answer)
        return answer

    def _read(self) -> Answer:
        try:
            found = Answer(**json.loads(self.file.read_text("utf-8")))
        except (OSError, ValueError, TypeError):
            found = Answer()
        return max(found, self._own, key=lambda answer: answer.again)

    def _write(self, answer: Answer) -> None:
        try:
            write_atomically(self.file, json.dumps(dataclasses.asdict(answer)))
        except OSError:
            self._own = answer
