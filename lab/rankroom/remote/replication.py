"""Bringing the records of a cluster on a site here: from its supervisor while that can be asked,
from the login node once the cluster is over."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Awaitable, Callable

from rankroom.errors import RankroomError, RecordError, SshError
from rankroom.record.model import Json, RunInfo
from rankroom.remote.login_node import LoginNode
from rankroom.remote.replica import Replicas
from rankroom.rpc.client import Answer

WAIT_S = 10.0  # for events of a run to come, in one question
LATE_S = 10.0  # beyond that, until an answer is taken for lost
AGAIN_S = 1.0  # between two tries to write what a full disk refused, or to reach the login node
FINISH_S = 30.0  # for records of a cluster that is over to come to their end
Ask = Callable[..., Awaitable[Answer]]


class Replication:
    """Keeps `replicas` up to date.

    `ask(seconds, **question)` is answered by the supervisor; it raises SshError while that cannot
    be reached, TimeoutError without an answer. `note(words)` is called with trouble.
    """

    def __init__(
        self, replicas: Replicas, ask: Ask, login: LoginNode, note: Callable[[object], None]
    ) -> None:
        self.replicas = replicas
        self._ask = ask
        self._login = login
        self._note = note
        self._tasks: dict[str, asyncio.Task[None]] = {}

    def begin(self, run_id: str) -> None:
        """Have all of a record come here, unless it has, or is coming."""
        known = self._tasks.get(run_id)
        if (known is None or known.done()) and not self.replicas.is_complete(run_id):
            self._tasks[run_id] = asyncio.create_task(self._bring_all(run_id))

    async def bring(self, run_id: str, changed: str = "", seconds: float = 0.0) -> tuple[str, bool]:
        """Ask once for what is new of a record, for which there are so many seconds.

        Returns what its run.json is known by now, and whether that was the end. Raises RecordError
        where it cannot be written here, RankroomError where it cannot be had, TimeoutError.
        """
        after = max(0, self.replicas.size(run_id))
        said = await self._ask(
            seconds + LATE_S, do="read", run=run_id, after=after, changed=changed, wait=seconds
        )
        if "error" in said:
            raise RankroomError(said["text"])
        await self._take(said["run"], said["source"], after, b"".join(said.buffers))
        return said["changed"], said["run"]["state"] != "running"

    async def finish(self, cluster: str, since: float, is_shared: bool) -> None:
        """Have the rest come from the records' files there, which are complete."""
        deadline = time.monotonic() + FINISH_S
        while time.monotonic() < deadline:
            try:
                runs = (await self._login.ask("finish", cluster, str(since)))["runs"]
                for run in () if is_shared else runs:
                    await self._finish_one(RunInfo.from_json(run).id)
                return
            except (RankroomError, OSError) as error:
                self._note(error)
                await asyncio.sleep(AGAIN_S)

    async def stop(self) -> None:
        """Ask for nothing more."""
        tasks = list(self._tasks.values())
        self._tasks.clear()
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)

    async def _bring_all(self, run_id: str) -> None:
        changed, trouble, is_over = "", "", False
        while not is_over:
            try:
                changed, is_over = await self.bring(run_id, changed, WAIT_S)
            except RecordError as error:  # a full disk here
                if str(error) != trouble:
                    trouble = str(error)
                    self._note(error)
                await asyncio.sleep(AGAIN_S)
            except asyncio.TimeoutError:
                pass  # the answer may have been lost with a connection
            except SshError:
                return  # it goes on once the connection is there again
            except RankroomError as error:  # it is not there any more
                self._note(error)
                return

    async def _finish_one(self, run_id: str) -> None:
        while not self.replicas.is_complete(run_id):
            after = max(0, self.replicas.size(run_id))
            said = await self._login.ask("events", run_id, str(after))
            is_all = said["next"] >= said["size"]
            run = said["run"] if is_all else {**said["run"], "state": "running"}
            await self._take(run, said["source"], after, said["events"].encode())
            if is_all:
                return

    async def _take(self, run: Json, source: str, after: int, events: bytes) -> None:
        await asyncio.to_thread(self.replicas.take, run, source, after, events)
