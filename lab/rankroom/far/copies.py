"""The records of a cluster on a site, as they come to be in the store here.

A copy holds the same bytes; only while the run goes on is its owner another: the process here that
writes it, by which readers tell whether it is live.
"""

from __future__ import annotations

import contextlib
import json
import os
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from rankroom.errors import RecordError
from rankroom.far.followed import Place
from rankroom.far.frames import Head
from rankroom.record.model import RunInfo
from rankroom.record.owner import nobody, this_process
from rankroom.record.store import Store, Writer

ENDED = ("done", "failed", "interrupted")


class Copies:
    """The copies of one cluster's records that began `since` (epoch seconds)."""

    def __init__(self, store: Store, cluster: str, since: float) -> None:
        self._store = store
        self._cluster = cluster
        self._since = time.strftime("%Y%m%d-%H%M%S", time.gmtime(since))
        self._writers: dict[str, Writer] = {}

    def have(self) -> dict[str, dict[str, Any]]:
        """What there is of each of them: whether all, else how much of the events."""
        return {
            run.id: {"done": run.state in ENDED, **vars(Place.of(self._events(run.id)))}
            for run in self._runs()
        }

    @property
    def live(self) -> list[str]:
        """The runs that go on, as far as is known here."""
        return [run.id for run in self._runs() if run.state == "running"]

    def take(self, head: Head, body: bytes) -> None:
        """Write what came of a record.

        Raises RecordError where it cannot be written, or lines before it are missing: whoever
        sends is to begin again with what `have` says.
        """
        run_id = str(head["run"])
        if head["file"] == "source":
            self._begin(run_id, head["run.json"], body)
        elif head["file"] == "run":
            self._update(run_id, body)
        elif head.get("anew"):
            self._writer(run_id)
            os.truncate(self._events(run_id), 0)
        else:
            self._append(run_id, int(head["at"]), body)

    def leave(self, note: str) -> None:
        """Nothing more comes of the runs that went on: say so in their records."""
        for run_id in self.live:
            with contextlib.suppress(RecordError):
                run = self._store.load(run_id)
                run.owner = nobody()
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

    def _begin(self, run_id: str, run_json: str, source: bytes) -> None:
        run = RunInfo.from_json({**json.loads(run_json), "id": run_id, "state": "running"})
        run.owner = this_process()
        if not self._store.paths(run_id).folder.is_dir():
            text = source.decode("utf-8", "replace")
            self._writers[run_id] = self._store.create(run, text)

    def _append(self, run_id: str, at: int, data: bytes) -> None:
        writer = self._writer(run_id)
        size = self._events(run_id).stat().st_size
        if at > size:
            raise RecordError(MISSING.format(id=run_id, size=size, at=at))
        try:
            writer.append(data[size - at :])
        except RecordError:
            # What the disk has taken of it is taken from there when it is sent again.
            self._writers.pop(run_id).close()
            raise

    def _update(self, run_id: str, raw: bytes) -> None:
        run = RunInfo.from_json({**json.loads(raw), "id": run_id})
        writer = self._writer(run_id)
        if run.state == "running":
            run.owner = this_process()
            writer.update(run)
            return
        writer.replace(raw)
        self._writers.pop(run_id).close()

    def _writer(self, run_id: str) -> Writer:
        if run_id not in self._writers:
            paths = self._store.paths(run_id)
            try:
                events = os.open(paths.events, os.O_WRONLY | os.O_APPEND)
            except OSError as error:
                raise RecordError(f"cannot go on with {paths.events}: {error.strerror}") from None
            self._writers[run_id] = Writer(paths, events)
        return self._writers[run_id]

    def _events(self, run_id: str) -> Path:
        return self._store.paths(run_id).events


MISSING = "the copy of run {id} has {size} bytes, and what came begins at {at}"
