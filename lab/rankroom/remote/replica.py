"""Copies of the records of a cluster on a site in the store here: fetched from its supervisor while
that can be reached, and from the login node once the cluster is over.

A replica holds the same bytes as the record. Only while the run goes on does it have another owner:
the process here that writes it, from which readers tell whether it is live. A run's state is
written after all events that existed when the state was read: a reader that sees "done" has every
line.
"""

from __future__ import annotations

import asyncio
import base64
import contextlib
import threading
import time
from collections.abc import Awaitable, Callable, Iterable, Iterator
from pathlib import Path

from rankroom.errors import RankroomError, RecordError, SshError, UnreadableRecordError
from rankroom.record.cluster_file import MAX_CLOCK_ERROR_S
from rankroom.record.model import ENDED_STATES, Json, RunInfo
from rankroom.record.owner import LIVE_WRITE_TIMEOUT_S, no_process, this_process
from rankroom.record.store import Store, Writer
from rankroom.remote.login_node import LoginNode
from rankroom.rpc.client import Answer
from rankroom.system.log_line import say

LONG_POLL_S = 10.0  # for which one request waits at the supervisor for new events of a run
REPLY_MARGIN_S = 10.0  # beyond that, until a reply is considered lost
RETRY_DELAY_S = 1.0  # between retries to write what a full disk refused, or to reach the login node
MAX_RETRY_DELAY_S = 30.0  # between retries at most, while the login node cannot be reached
NO_PROGRESS_TIMEOUT_S = (
    LIVE_WRITE_TIMEOUT_S + 30.0
)  # without progress, until completing the records at the end is given up
# Concurrent requests for records: each occupies a thread of the supervisor.
MAX_CONCURRENT_REQUESTS = 4
Ask = Callable[..., Awaitable[Answer]]


class Replicas:
    """The replicas of one cluster's records, of runs that began at or after `since` (epoch
    seconds).

    `ask(seconds, **question)` sends a request to the supervisor and returns the reply; it raises
    SshError while that cannot be reached, TimeoutError without a reply. The file `done` lists the
    complete records: one that is removed here is not copied again, not even by the next agent.
    """

    def __init__(
        self, store: Store, cluster: str, since: float, ask: Ask, login: LoginNode, done: Path
    ) -> None:
        self.cluster = cluster
        self.is_shared = False  # whether the site has the same store, so that nothing is copied
        self._store = store
        self._ask = ask
        self._login = login
        self._tasks: dict[str, asyncio.Task[None]] = {}
        self.count_from(since)
        # About the last attempt of `finish`: whether anything arrived; whether ssh failed.
        self._has_moved = self._is_cut = False
        self._said = ""  # the last error that was logged
        self._done_file = done
        self._done: set[str] = set()  # complete records, which may have been pruned by now
        with contextlib.suppress(OSError):
            self._done.update(done.read_text("utf-8").split())
        self._few = asyncio.Semaphore(MAX_CONCURRENT_REQUESTS)
        self._writers: dict[str, Writer] = {}
        self._taking = threading.Lock()  # new events are determined from those already here

    def count_from(self, since: float) -> None:
        """Set when the cluster began (epoch seconds): records of earlier runs are not copied."""
        # Ids contain the site's time, and the clock here may be wrong.
        self.since = time.strftime("%Y%m%d-%H%M%S", time.gmtime(since - MAX_CLOCK_ERROR_S))

    def is_complete(self, run_id: str) -> bool:
        """Whether all of a record has been copied."""
        with contextlib.suppress(RecordError):
            if run_id not in self._done and self._store.load(run_id).state in ENDED_STATES:
                self._note_done(run_id)
        return run_id in self._done

    def _note_done(self, run_id: str) -> None:
        if run_id not in self._done:
            self._done.add(run_id)
            # If there is no space for that, it may be copied once more.
            with contextlib.suppress(OSError), self._done_file.open("a", encoding="utf-8") as file:
                file.write(f"{run_id}\n")

    def size(self, run_id: str) -> int:
        """Return how many bytes of a record's events are here; -1 if nothing of the record is."""
        paths = self._store.paths(run_id)
        with contextlib.suppress(OSError):
            return paths.events.stat().st_size
        return -1

    @property
    def live(self) -> list[str]:
        """The runs that are running, as far as is known here."""
        return [run.id for run in self._runs() if run.state == "running"]

    @property
    def are_whole(self) -> bool:
        """Whether all records that are known here are complete."""
        return next(self._runs(), None) is None

    def take(self, told: Json, source: str, after: int, events: bytes) -> None:
        """Write what has arrived of a record: its run.json, and events from byte `after` on.

        A run.json that says that the run is over must come with or after its last event. Events of
        ranks that wrote later may follow, and are ignored if the record was removed here. Raises
        RecordError where it cannot be written, or events before these are missing: they must be
        requested again, from `size` on. Replies may arrive out of order.
        """
        with self._taking:
            run = RunInfo.from_json(told)
            is_late = run.id in self._done
            if is_late and not 0 <= self.size(run.id) < after + len(events):
                return
            raw_state = run.state
            if self.size(run.id) < 0:
                run.owner, run.state = this_process(), "running"
                self._writers[run.id] = self._store.create(run, source)
                run.state = raw_state
            writer = self._writer(run.id)
            size = max(0, self.size(run.id))
            if after > size:
                raise RecordError(MISSING.format(id=run.id, size=size, at=after))
            try:
                writer.append(events[size - after :])
            except RecordError:
                # The next request starts after the part that the disk has accepted.
                self._writers.pop(run.id).close()
                raise
            if is_late and run.state == "running":
                return  # it was the last piece only if it says how the run ended
            if run.state == "running":
                run.owner = this_process()
                if after + len(events) >= size:  # not older than what is here
                    writer.update(run)
            else:
                run.owner = RunInfo.from_json(told).owner
                writer.finish(run)
                self._writers.pop(run.id, None)
                if run.state in ENDED_STATES:
                    self._note_done(run.id)

    def leave(self, note: str) -> None:
        """Add `note` to the records of runs still going on, as no more of them will be copied."""
        for run_id in () if self.is_shared else self.live:
            with contextlib.suppress(RecordError):
                run = self._store.load(run_id)
                run.owner = no_process()
                run.notes = [*run.notes, note]
                self._writer(run_id).update(run)
        for writer in self._writers.values():
            writer.close()
        self._writers.clear()

    def begin(self, run_id: str) -> None:
        """Start copying a record, unless it is complete, being copied, or in a shared store."""
        known = self._tasks.get(run_id)
        if self.is_shared or (known and not known.done()) or self.is_complete(run_id):
            return
        self._tasks[run_id] = asyncio.create_task(self._bring_all(run_id))

    async def begin_now(self, run_id: str) -> str:
        """Like `begin`, but first copy what there is, so that clients find the record here.

        Returns why it cannot be written yet, or an empty string.
        """
        trouble = ""
        if not self.is_shared:
            try:
                await self.bring(run_id)
            except RecordError as error:
                trouble = str(error)
            except (RankroomError, asyncio.TimeoutError, OSError):
                pass
            self.begin(run_id)
        return trouble

    async def bring(self, run_id: str, changed: str = "", seconds: float = 0.0) -> tuple[str, bool]:
        """Request once what is new of a record, waiting up to `seconds` for it; `changed` is the
        version of run.json that is known here.

        Returns the new version, and whether the run is over. Raises RecordError where the record
        cannot be written here, or read there at the moment, RankroomError where it cannot be had,
        TimeoutError, RpcError.
        """
        after = max(0, self.size(run_id))
        said = await self._ask(
            seconds + REPLY_MARGIN_S,
            do="read",
            run=run_id,
            after=after,
            changed=changed,
            wait=seconds,
        )
        if "error" in said:
            passes = said["error"] == UnreadableRecordError.__name__
            raise (UnreadableRecordError if passes else RankroomError)(said["text"])
        events = b"".join(said.buffers)
        await asyncio.to_thread(self.take, said["run"], said["source"], after, events)
        return said["changed"], said["run"]["state"] != "running"

    async def finish(self) -> None:
        """Copy the rest from the records' files at the site, once these are complete. Gives up when
        nothing has arrived for NO_PROGRESS_TIMEOUT_S although the login node can be reached."""
        deadline, pause = time.monotonic() + NO_PROGRESS_TIMEOUT_S, RETRY_DELAY_S
        while not await self._finish_all():
            if self._has_moved or self._is_cut:
                deadline = time.monotonic() + NO_PROGRESS_TIMEOUT_S
            elif time.monotonic() >= deadline:
                return
            is_away = self._is_cut and not self._has_moved
            pause = min(MAX_RETRY_DELAY_S, 2 * pause) if is_away else RETRY_DELAY_S
            await asyncio.sleep(pause)

    async def _finish_all(self) -> bool:
        """Copy what there is of all records; return whether all of them are complete."""
        self._has_moved = self._is_cut = False
        try:
            said = await self._login.ask("finish", self.cluster, self.since)
        except (RankroomError, OSError) as error:
            self._is_cut = isinstance(error, SshError)
            self._say(error)
            return False
        if trouble := said.get("trouble"):
            say(trouble)
        done = not trouble
        for run in () if self.is_shared else said["runs"]:
            try:
                done = await self._finish_one(str(run["id"]), int(run.get("size", 0))) and done
            except (RankroomError, OSError) as error:  # the others may be readable
                self._say(error)
                done = False
                if isinstance(error, SshError):
                    self._is_cut = True
                    break
        return done

    def _say(self, error: Exception) -> None:
        """Log an error, unless it is the same as the last one."""
        if str(error) != self._said:
            self._said = str(error)
            say(error)

    async def stop(self) -> None:
        """Stop copying from the supervisor."""
        tasks = list(self._tasks.values())
        self._tasks.clear()
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)

    async def _bring_all(self, run_id: str) -> None:
        changed, trouble, is_over = "", "", False
        while not is_over:
            try:
                async with self._few:
                    changed, is_over = await self.bring(run_id, changed, LONG_POLL_S)
            except asyncio.TimeoutError:
                pass  # the reply may have been lost with a connection
            except (RecordError, OSError) as error:  # a full disk here, or an unreadable home there
                if str(error) != trouble:
                    trouble = str(error)
                    say(error)
                await asyncio.sleep(RETRY_DELAY_S)
            except SshError:
                return  # it is resumed once the connection is open again
            except RankroomError as error:  # the record no longer exists
                say(error)
                return

    async def bring_late(self, runs: Iterable[Json]) -> None:
        """Copy what was appended to these records at the site after their runs, if anything."""
        for run in () if self.is_shared else runs:
            with contextlib.suppress(RankroomError, OSError, asyncio.TimeoutError):
                if 0 <= self.size(str(run["id"])) < int(run["size"]):
                    await self._finish_one(str(run["id"]), int(run["size"]))

    async def _finish_one(self, run_id: str, size: int) -> bool:
        """Copy what there is of a record with `size` bytes of events (more than the run's own if
        ranks wrote later); return whether that was all."""
        while not self.is_complete(run_id) or 0 <= self.size(run_id) < size:
            after = max(0, self.size(run_id))
            said = await self._login.ask("events", run_id, str(after))
            events = base64.b64decode(said["events"])
            await asyncio.to_thread(self.take, said["run"], said["source"], after, events)
            self._has_moved |= bool(events)
            if said["run"]["state"] in ENDED_STATES:
                return True
            if not events:  # its writer may still be alive, or how it ended cannot be told yet
                return False
        return True

    def _runs(self) -> Iterator[RunInfo]:
        """Yield the runs whose replicas are not complete, as far as is known here."""
        for run_id in self._store.ids():
            if run_id < self.since:
                return
            if run_id in self._done:
                continue
            with contextlib.suppress(RecordError):
                run = self._store.load(run_id)
                if run.state in ENDED_STATES:
                    self._note_done(run_id)
                elif run.cluster == self.cluster:
                    yield run

    def _writer(self, run_id: str) -> Writer:
        if run_id not in self._writers:
            self._writers[run_id] = Writer.again(self._store.paths(run_id))
        return self._writers[run_id]


MISSING = "the replica of run {id} has {size} bytes, but the received events begin at byte {at}"
