"""A run as its client sees it: reported by the cluster's supervisor, and read from its record."""

from __future__ import annotations

import contextlib
import threading
import time
from collections.abc import Callable, Collection, Iterator
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING

from rankroom.errors import (
    ALREADY_ANSWERED,
    NOT_ASKED,
    RecordError,
    RunOverError,
    UnreadableRecordError,
    UsageError,
)
from rankroom.record.model import ENDED_RANK_STATES, Json, Prompt, RunInfo, RunState, parse_event
from rankroom.record.store import Store

if TYPE_CHECKING:  # they need NumPy, which a kernel loads only when there is something to compute
    from rankroom.analysis.metrics.metric_rows import MetricRows
    from rankroom.analysis.profile import Profile
    from rankroom.analysis.timeline import Timeline

WRITER_CHECK_INTERVAL_S = 0.5  # between two checks whether the record still has a writer
REPLICA_POLL_INTERVAL_S = 0.01  # between two checks for news in a replica of a record
REREAD_INTERVAL_S = 1.0  # between two reads of a record that has not changed


class Run:
    """One cell on some ranks, while it runs and afterwards.

    `ask(do, **question)` sends a request to the cluster's supervisor; `is_orphaned(run)` is called
    when the record seems to have no writer: it returns whether that is so, and completes the record
    as far as possible. If `is_replica`, changes are not announced, and the record is polled.
    """

    def __init__(
        self,
        info: RunInfo,
        store: Store,
        ask: Callable[..., Json],
        is_orphaned: Callable[[Run], bool] = lambda run: True,
        is_replica: bool = False,
    ) -> None:
        self._info = info
        self._store = store
        self._ask = ask
        self._is_orphaned = is_orphaned
        self._is_replica = is_replica
        self._changed, self._checked = 0, 0.0
        self._over = threading.Event()
        self._ended: set[int] = set()
        self._read = 0
        if info.state != "running":
            self._over.set()

    # -- state reported by the supervisor

    def told(self, info: RunInfo) -> None:
        """Take `info` as the run's run.json now; a run that is over remains so."""
        if not self._over.is_set() or self._info.state == info.state != "running":
            self._info = info
            if info.state != "running":
                self._over.set()

    def look(self) -> None:
        """Read the state of the run from its record, as its supervisor may be gone."""
        now, changed = time.monotonic(), 0
        with contextlib.suppress(OSError):
            changed = self._store.paths(self.id).run.stat().st_mtime_ns
        if changed == self._changed and now < self._checked + REREAD_INTERVAL_S:
            return
        self._changed, self._checked = changed, now
        info = self._loaded()
        if info is not None and info.state == "lost":
            info = self._loaded() if self._is_orphaned(self) else None
        if info is not None:
            self.told(info)

    def _loaded(self) -> RunInfo | None:
        """Return run.json from the record, if it can be read; a run whose record was removed is
        lost."""
        try:
            return self._store.load(self.id)
        except UnreadableRecordError:
            return None
        except RecordError:
            # A replica may not have arrived yet.
            return None if self._is_replica else replace(self._info, state="lost")

    # -- public interface

    @property
    def info(self) -> RunInfo:
        """What its run.json says now."""
        if self._is_replica and not self._over.is_set():
            self.look()
        return self._info

    @property
    def id(self) -> str:
        """Its name on disk and in `%runs`."""
        return self._info.id

    @property
    def source(self) -> str:
        """The source of the cell."""
        return self._store.source(self.id)

    @property
    def state(self) -> RunState:
        """running, done, failed, interrupted, or lost when the process that ran it is gone."""
        return self.info.state

    @property
    def running(self) -> list[int]:
        """The ranks that have not ended."""
        info = self.info
        if info.state == "running":
            self._see_ends()
        ranks = info.ranks
        ended = {rank.rank for rank in ranks if rank.state in ENDED_RANK_STATES} | self._ended
        return [rank.rank for rank in ranks if rank.rank not in ended]

    @property
    def events(self) -> list[Json]:
        """What ranks have reported so far, other than logs, spans and metrics."""
        skipped = (b'{"kind":"log"', b'{"kind":"spans"', b'{"kind":"metrics"')
        lines = (line for line in self._lines() if not line.startswith(skipped))
        return [event for line in lines if (event := parse_event(line)) is not None]

    @property
    def results(self) -> dict[int, str]:
        """The last expression's value on each rank that had one, as text."""
        found = {}
        for line in self._lines():
            if not line.startswith(b'{"kind":"display"'):
                continue
            if (event := parse_event(line)) is not None and event.get("result"):
                found[event["rank"]] = str(event["data"].get("text/plain", ""))
        return dict(sorted(found.items()))

    @property
    def timeline(self) -> Timeline:
        """What each rank did, and when; of a live run, as far as ranks have reported it."""
        from rankroom.analysis.timeline import Timeline

        return Timeline.read(self.info, self._store.paths(self.id).events)

    def profile(self) -> Profile:
        """Return where each rank's time went, and which ranks kept others waiting; of a live run,
        so far."""
        from rankroom.analysis.profile.of_run import profile_of

        return profile_of(self._store, self.info)

    def metrics(self) -> MetricRows:
        """Return what ranks reported with `rankroom.log`, and what was recorded from Keras and from
        TensorBoard writers: rows of name, rank, step, t (seconds) and value; of a live run, so
        far."""
        from rankroom.analysis.metrics.metric_rows import rows_of

        return rows_of(self.info, self._lines())

    @property
    def duration(self) -> float:
        """Seconds from start to end, or to now."""
        end = self.info.end or time.time_ns() // 1000
        return (end - self.info.start) / 1e6

    @property
    def path(self) -> Path:
        """The record's directory."""
        return self._store.paths(self.id).folder

    def wait(self, timeout: float | None = None) -> bool:
        """Wait until every rank has ended; return False if `timeout` seconds pass first.

        Also returns True once no more will be known of the run: its state is `lost` then.
        """
        deadline = float("inf") if timeout is None else time.monotonic() + timeout
        pause = REPLICA_POLL_INTERVAL_S if self._is_replica else WRITER_CHECK_INTERVAL_S
        while not self._over.wait(max(0.0, min(pause, deadline - time.monotonic()))):
            self.look()
            if time.monotonic() >= deadline:
                return self._over.is_set()
        return True

    def interrupt(self) -> bool:
        """Raise KeyboardInterrupt on the ranks still running; blocked collectives are released.

        Returns False if the run is over already: then nothing is done, not even to a later run.
        """
        try:
            self._ask("interrupt", run=self.id)
        except RunOverError:  # it may have ended while this was requested
            return False
        return True

    def release(self) -> None:
        """Release blocked collectives on all ranks of the run, and ranks in the debugger.

        Raises RunOverError if the run is over: then nothing is done, not even to a later run.
        """
        self._ask("release", run=self.id)

    @property
    def prompts(self) -> list[Prompt]:
        """The prompts at which ranks wait now, of the debugger or input(), ordered by rank."""
        return self.info.prompts if self.state == "running" else []

    def answer(self, text: str, ranks: Collection[int] | None = None) -> list[int]:
        """Answer the prompts of all ranks that wait at one, or only of `ranks`: with a command for
        the debugger, or what input() returns there.

        Returns the ranks that took the answer. Raises UsageError if none of them waits for one.
        """
        asked = {p.rank: p.number for p in self.prompts if ranks is None or p.rank in ranks}
        if not asked:
            raise UsageError(NOT_ASKED)
        taken: list[int] = self._ask("answer", run=self.id, text=text, prompts=asked)["ranks"]
        if not taken:
            raise UsageError(ALREADY_ANSWERED)
        return taken

    def __repr__(self) -> str:
        return f"<Run {self.id} {self.state} on {len(self.info.ranks)} of {self.info.size} ranks>"

    def _see_ends(self) -> None:
        read = self._read  # another thread may read the same lines
        for line in self._lines(read):
            read += len(line)
            if not line.startswith(b'{"kind":"status"'):
                continue
            if (event := parse_event(line)) is not None and event["state"] in ENDED_RANK_STATES:
                self._ended.add(event["rank"])
        self._read = read

    def _lines(self, begin: int = 0) -> Iterator[bytes]:
        with contextlib.suppress(OSError), self._store.paths(self.id).events.open("rb") as file:
            file.seek(begin)
            yield from (line for line in file if line.endswith(b"\n"))
