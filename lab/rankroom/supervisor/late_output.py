"""What ranks write when the record of their run is closed: added to it afterwards.

A rank may have been given up, as its node was cut off: it is lost for the run then, and its spool
is kept until it can write no more. And what a cell has started may print when the cell is over:
that is the next cell's; if the rank ends before there is one, it is the last one's.
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

LOOK_S = 5.0  # between two looks at spools
MARK = "late"  # the event that says how far a spool has been added


class LateOutput:
    """Adds what ranks wrote after their run, once all of that run's record is on disk."""

    def __init__(self, store: Store, spool: Callable[[int], Path]) -> None:
        self._store = store
        self._spool = spool
        self._runs: list[Recorder] = []
        self._latest: dict[int, Recorder] = {}  # by rank, which lives
        self._before: dict[int, Recorder | None] = {}  # those before these
        self._looked = 0.0
        self._sizes: dict[Path, int] = {}  # of spools, as far as they were added
        self._thread: threading.Thread | None = None

    def follow(self, run: Recorder) -> None:
        """`run` is over; its ranks may have more to say."""
        if run.given_up:
            self._runs.append(run)
        for rank in run.info.ranks:
            if run.has_begun(rank.rank):  # if not, what is there is still that of the run before
                self._before[rank.rank] = self._latest.get(rank.rank)
                self._latest[rank.rank] = run

    def forget(self, run_id: str) -> None:
        """This run's record is removed, in which nothing was printed: what comes is for the run
        before it."""
        for rank, run in list(self._latest.items()):
            if run.id == run_id:
                del self._latest[rank]
                if before := self._before.get(rank):
                    self._latest[rank] = before

    def take(self, ranks: Iterable[int], current: Recorder | None) -> None:
        """The processes of these ranks end: what was printed there since their last cell has no
        other record to go to than that cell's; `current` is the run that is on, or was the last."""
        for rank in ranks:
            run = self._latest.pop(rank, None)  # of the next process nothing is known
            if current is not None and current.has_begun(rank):
                run = current
            if run is not None:
                # Without a record, or with a full disk, there is no place for it.
                with contextlib.suppress(OSError, RecordError):
                    run.take_late(rank)

    def look(self) -> None:
        """Add what is new, now and then; in a thread of its own, as a record may be long."""
        if not self._runs or time.monotonic() < self._looked + LOOK_S:
            return
        if self._thread is None or not self._thread.is_alive():
            self._looked = time.monotonic()
            self._thread = threading.Thread(target=self.add, name="rankroom-late", daemon=True)
            with contextlib.suppress(RuntimeError):  # no thread can be started: the next look
                self._thread.start()

    def add(self) -> None:
        """Add what is new now."""
        for run in list(self._runs):
            for rank, had in list(run.given_up.items()) if run.is_closed else ():
                spool = self._spool(rank) / f"{run.id}.jsonl"
                # What cannot be read or written now is tried again with the next look.
                with contextlib.suppress(OSError, RecordError):
                    size = spool.stat().st_size
                    # A record is read only if there is something to add.
                    if size > self._sizes.get(spool, had):
                        _add(self._store.paths(run.id), spool)
                        self._sizes[spool] = size


@dataclass
class Known:
    """What a record has of one rank where it says how far its spool is added: events, bytes of the
    spool, and bytes of its streams."""

    events: int = 0
    spooled: int | None = None  # None: the rank was not given up
    time: int = 0  # of its latest event
    streams: dict[str, int] = field(default_factory=dict)


def add_late(store: Store, run: RunInfo, spool: Path) -> int:
    """Add to the record of a run that is over what `spool` has of a rank; how many events."""
    if run.state != "failed" or not any(rank.state == "lost" for rank in run.ranks):
        return 0
    with contextlib.suppress(OSError, RecordError):
        return _add(store.paths(run.id), spool)
    return 0


def _add(record: RecordPaths, spool: Path) -> int:
    """Move what the record lacks of a rank from its spool to there; how many events."""
    rank = int(spool.parent.name)
    with contextlib.closing(Writer.again(record)) as writer, writer.alone():
        # A second call finds nothing to add.
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
    """An event of the spool as the record takes it; empty if the record has it."""
    event = parse_event(line.rpartition(b"\0")[2])  # behind a hole that a full disk left
    if event is None:
        return b""
    if event["kind"] == "log":
        event = _unknown(event, known)
    if not event or event["kind"] == "status":
        return b""  # the record has said already how it ended for this rank
    fields = {key: event[key] for key in event if key not in ("kind", "rank", "seq", "t")}
    known.events, known.time = known.events + 1, event["t"]
    return event_line(event["kind"], rank, known.events - 1, event["t"], **fields)


def _unknown(event: Json, known: Known) -> Json:
    """A log event without what the record has: last words were taken from the rank's streams."""
    have, to = known.streams.get(event["stream"], 0), int(event.get("to", 0))
    if to <= have:
        return {}
    known.streams[event["stream"]] = to
    text = event["text"].encode()
    return {**event, "text": text[max(0, len(text) - (to - have)) :].decode("utf-8", "replace")}


def _known(events: Path, rank: int) -> tuple[Known, int]:
    """What the record says that it has, and how many events it has beyond: of a disk that was full
    before their mark was written."""
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
