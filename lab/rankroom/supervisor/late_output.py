"""What ranks write after the record of their run is closed: added to it afterwards.

A rank may have been given up because its node was cut off: it is lost for the run then, and its
spool is kept until it can write no more. And what a cell has started may print when the cell is
over: that output belongs to the next cell, or to the last one if the rank ends before another.
"""

from __future__ import annotations

import contextlib
import threading
import time
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field, replace
from pathlib import Path

from rankroom.errors import RecordError
from rankroom.record.model import Json, RunInfo, event_line, parse_event
from rankroom.record.store import RecordPaths, Store, Writer
from rankroom.supervisor.recorder import Recorder

SPOOL_POLL_INTERVAL_S = 5.0  # between two checks of spools
MARK = "late"  # the event that says how far a spool has been added


class LateOutput:
    """Adds what ranks wrote after their run, once the run's record is closed."""

    def __init__(self, store: Store, spool: Callable[[int], Path]) -> None:
        self._store = store
        self._spool = spool
        self._runs: list[Recorder] = []
        self._latest: dict[int, Recorder] = {}  # by living rank: the latest run that began there
        self._before: dict[int, Recorder | None] = {}  # by rank: the run before that
        self._looked = 0.0
        self._sizes: dict[Path, int] = {}  # of spools when they were last added
        self._thread: threading.Thread | None = None

    def follow(self, run: Recorder) -> None:
        """Expect more output from the ranks of `run`, which is over."""
        if run.given_up:
            self._runs.append(run)
        for rank in run.info.ranks:
            if run.has_begun(rank.rank):  # if not, output still belongs to the run before
                self._before[rank.rank] = self._latest.get(rank.rank)
                self._latest[rank.rank] = run

    def forget(self, run_id: str) -> None:
        """Forget a run in which nothing was printed, as its record is removed: later output belongs
        to the run before it."""
        for rank, run in list(self._latest.items()):
            if run.id == run_id:
                del self._latest[rank]
                if before := self._before.get(rank):
                    self._latest[rank] = before

    def take(self, ranks: Iterable[int], current: Recorder | None) -> None:
        """Add what was printed on these ranks, whose processes end, since their last cell to that
        cell's record. `current` is the run in progress, or the last one."""
        for rank in ranks:
            run = self._latest.pop(rank, None)  # nothing is known of the rank's next process
            if current is not None and current.has_begun(rank):
                run = current
            if run is not None:
                # Without a record, or with a full disk, the output is lost.
                with contextlib.suppress(OSError, RecordError):
                    run.take_late(rank)

    def look(self) -> None:
        """Add new output from time to time; in a thread, as it takes long for a long record."""
        if not self._runs or time.monotonic() < self._looked + SPOOL_POLL_INTERVAL_S:
            return
        if self._thread is None or not self._thread.is_alive():
            self._looked = time.monotonic()
            self._thread = threading.Thread(target=self.add, name="rankroom-late", daemon=True)
            with contextlib.suppress(RuntimeError):  # no thread available: the next call retries
                self._thread.start()

    def add(self) -> None:
        """Add new output now."""
        for run in list(self._runs):
            for rank, had in list(run.given_up.items()) if run.is_closed else ():
                spool = self._spool(rank) / f"{run.id}.jsonl"
                # What cannot be read or written now is retried later.
                with contextlib.suppress(OSError, RecordError):
                    size = spool.stat().st_size
                    # A record is read only if there is something to add.
                    if size > self._sizes.get(spool, had):
                        _add(self._store.paths(run.id), spool)
                        self._sizes[spool] = size


@dataclass
class Known:
    """How much of one rank a record has at its last mark of how far the spool was added: events,
    bytes of the spool, and bytes of each stream."""

    events: int = 0
    spooled: int | None = None  # None: the rank was not given up
    time: int = 0  # of its latest event
    streams: dict[str, int] = field(default_factory=dict)


def add_late(store: Store, run: RunInfo, spool: Path) -> int:
    """Add a rank's `spool` to the record of a run that is over; return how many events it added."""
    if run.state != "failed" or not any(rank.state == "lost" for rank in run.ranks):
        return 0
    with contextlib.suppress(OSError, RecordError):
        return _add(store.paths(run.id), spool)
    return 0


def _add(record: RecordPaths, spool: Path) -> int:
    """Add the events of a rank's spool that the record lacks; return how many."""
    rank = int(spool.parent.name)
    with contextlib.closing(Writer.again(record)) as writer, writer.alone():
        # Read under the lock, so that a second call finds nothing to add.
        known, unmarked = _known(record.events, rank)
        if known.spooled is None:
            return 0
        with spool.open("rb") as file:
            file.seek(known.spooled)
            data = file.read()
        data = data[: data.rfind(b"\n") + 1]
        if not data:
            return 0
        new = [line for each in data.splitlines() if (line := _line(each, rank, known))]
        args = {"spooled": known.spooled + len(data)}
        mark = event_line("mark", rank, known.events, known.time, name=MARK, args=args)
        writer.mend()
        writer.append(b"".join([*new[unmarked:], mark]))
        return len(new) - unmarked


def _line(line: bytes, rank: int, known: Known) -> bytes:
    """Return an event of the spool as the record takes it; empty if the record has it already."""
    event = parse_event(line.rpartition(b"\0")[2])  # after a hole that a full disk left
    if event is None:
        return b""
    if event["kind"] == "log":
        event = _unknown(event, known)
    if not event or event["kind"] == "status":
        return b""  # the record already says how the run ended for this rank
    fields = {key: event[key] for key in event if key not in ("kind", "rank", "seq", "t")}
    known.events, known.time = known.events + 1, event["t"]
    return event_line(event["kind"], rank, known.events - 1, event["t"], **fields)


def _unknown(event: Json, known: Known) -> Json:
    """Return a log event without the text that the record has, as the rank's last output was taken
    from its streams."""
    have, to = known.streams.get(event["stream"], 0), int(event.get("to", 0))
    if to <= have:
        return {}
    known.streams[event["stream"]] = to
    text = event["text"].encode()
    return {**event, "text": text[max(0, len(text) - (to - have)) :].decode("utf-8", "replace")}


def _known(events: Path, rank: int) -> tuple[Known, int]:
    """Return what the record has at its last mark, and how many events it has beyond that: those
    whose mark a full disk refused."""
    known, now = Known(), Known()
    with events.open("rb") as file:
        for line in file:
            event = parse_event(line)
            if event is None or event["rank"] != rank:
                continue
            now.events, now.time = event["seq"] + 1, event["t"]
            if event["kind"] == "log" and "to" in event:
                now.streams[event["stream"]] = event["to"]
            elif event["kind"] == "status" and "spooled" in event:
                known = replace(now, spooled=event["spooled"], streams=now.streams.copy())
            elif event["kind"] == "mark" and event["name"] == MARK:
                spooled = event["args"]["spooled"]
                known = replace(now, spooled=spooled, streams=now.streams.copy())
    return known, now.events - known.events
