"""The records of a cluster on a site, as they come to be in the store here.

A replica holds the same bytes; only while the run goes on is its owner another: the process here
that writes it, by which readers tell whether it is live. Its state is written after all events that
were there when it was read: who reads "done" here has every line.
"""

from __future__ import annotations

import contextlib
import os
import threading
import time
from collections.abc import Iterator

from rankroom.errors import RecordError
from rankroom.record.model import Json, RunInfo
from rankroom.record.owner import no_process, this_process
from rankroom.record.store import Store, Writer

ENDED = ("done", "failed", "interrupted")


class Replicas:
    """The replicas of one cluster's records that began `since` (epoch seconds)."""

    def __init__(self, store: Store, cluster: str, since: float) -> None:
        self._store = store
        self._cluster = cluster
        self._since = time.strftime("%Y%m%d-%H%M%S", time.gmtime(since))
        self._writers: dict[str, Writer] = {}
        self._taking = threading.Lock()  # what is new is worked out from what is there

    def is_complete(self, run_id: str) -> bool:
        """Whether all of a record is here."""
        with contextlib.suppress(RecordError):
            return self._store.load(run_id).state in ENDED
        return False

    def size(self, run_id: str) -> int:
        """How much of a record's events is here; -1 if nothing of the record is."""
        paths = self._store.paths(run_id)
        with contextlib.suppress(OSError):
            return paths.events.stat().st_size
        return -1

    @property
    def live(self) -> list[str]:
        """The runs that go on, as far as is known here."""
        return [run.id for run in self._runs() if run.state == "running"]

    def take(self, told: Json, source: str, after: int, events: bytes) -> None:
        """Write what came of a record: its run.json, and events from byte `after` on.

        With a run.json that says that the run is over, all events must have come. Raises
        RecordError where it cannot be written, or events before these are missing: they are to be
        asked for again, from `size` on.
        """
        with self._taking:
            self._take(told, source, after, events)

    def _take(self, told: Json, source: str, after: int, events: bytes) -> None:
        run = RunInfo.from_json(told)
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
            # What the disk has taken of it is taken from there when it is asked for again.
            self._writers.pop(run.id).close()
            raise
        if run.state == "running":
            run.owner = this_process()
            writer.update(run)
        else:
            run.owner = RunInfo.from_json(told).owner
            writer.finish(run)
            self._writers.pop(run.id, None)

    def leave(self, note: str) -> None:
        """Nothing more comes of the runs that went on: say so in their records."""
        for run_id in self.live:
            with contextlib.suppress(RecordError):
                run = self._store.load(run_id)
                run.owner = no_process()
                run.notes = [*run.notes, note]
                self._writer(run_id).update(run)
        for writer in self._writers.values():
            writer.close()
        self._writers.clear()

    def _runs(self) -> Iterator[RunInfo]:
        for run_id in self._store.ids():
            if run_id < self._since:
                return
            with contextlib.suppress(RecordError):
                run = self._store.load(run_id)
                if run.cluster == self._cluster:
                    yield run

    def _writer(self, run_id: str) -> Writer:
        if run_id not in self._writers:
            paths = self._store.paths(run_id)
            try:
                events = os.open(paths.events, os.O_WRONLY | os.O_APPEND)
            except OSError as error:
                raise RecordError(f"cannot go on with {paths.events}: {error.strerror}") from None
            self._writers[run_id] = Writer(paths, events)
        return self._writers[run_id]


MISSING = "the replica of run {id} has {size} bytes, and what came begins at {at}"
