"""A run: one cell on some ranks, from its source to a finished record.

The run is the only writer of its record. It sends the cell, notices how each rank ends, lets go
of the others when one has failed, and closes the record when all have ended.
"""

from __future__ import annotations

import contextlib
import json
import re
import threading
import time
from collections.abc import Callable, Collection, Sequence
from concurrent.futures import Future
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

import ipyparallel.error

from rankroom import config
from rankroom.display.summary import MOST, is_told
from rankroom.errors import RankroomError, RecordError
from rankroom.record.model import Clock, Failure, Hang, RankInfo, RunInfo, RunState, event_line
from rankroom.record.owner import nobody, this_process
from rankroom.record.patient_writer import PatientWriter
from rankroom.record.store import Store, new_id
from rankroom.run.assembly import Assembly, Spool
from rankroom.run.clock import hull
from rankroom.run.engine_client import Link
from rankroom.run.release import Release
from rankroom.run.stall import StallWatch
from rankroom.supervisor.placement import GIVEN_UP

if TYPE_CHECKING:  # they need NumPy, which a kernel loads when there is something to compute
    from rankroom.analysis.profile import Profile
    from rankroom.analysis.timeline import Timeline

LATE_S = 0.3  # after a rank's reply, for its last batch, before the spool is read
RETRY_S = 0.5  # between two tries to write the end of a record to a full disk
KEPT_BYTES = 200_000  # of events kept in memory for the summary of a run
# A log line as `event_line` writes it ends with the byte offset up to which its stream is known.
_STREAM = re.compile(rb'"stream":"(\w+)"')
_TO = re.compile(rb'"to":(\d+)}$')
# As `event_line` writes spans, and those that every cell has.
SPANS, ONLY_CELL = b'{"kind":"spans"', b'"cat":"cell"'
ENDED = ("ok", "error", "interrupted", "released", "lost")


class Run:
    """One cell executing on ranks, live; afterwards the way to its record.

    `spool(rank)` is the folder of a rank's spool if this process can read it, else None.
    `how_ended(rank)` tells how a rank's process ended, in words.
    """

    def __init__(
        self,
        source: str,
        ranks: Sequence[RankInfo],
        size: int,
        cluster: str,
        link: Link,
        store: Store,
        spool: Spool,
        how_ended: Callable[[int], str],
        name: str | None = None,
        notes: Sequence[str] = (),
        info: RunInfo | None = None,
    ) -> None:
        start = time.time_ns() // 1000
        self.source = source
        self.info = info or RunInfo(
            id=new_id(start),
            cluster=cluster,
            size=size,
            start=start,
            ranks=list(ranks),
            title=title_of(source),
            name=name,
            notes=list(notes),
            owner=this_process(),
        )
        self.events: list[dict[str, Any]] = []
        self._link = link
        self._how_ended = how_ended
        self._store = store
        self._writer: PatientWriter | None = None
        self._ranks = {rank.rank: rank for rank in self.info.ranks}
        self._assembly = Assembly(self.id, self._ranks, spool, self._note)
        self._next_seq = dict.fromkeys(self._ranks, 0)
        self._spooled: dict[int, dict[str, int]] = {rank: {} for rank in self._ranks}
        self._kept = 0
        self.spans: list[bytes] = []  # the record's lines for the summary, as far as that reads
        self._spans_size = 0
        self._has_profile = False  # more was seen than that the cell ran
        self._given_up: set[int] = set()  # ranks on nodes that did not answer any more
        self._raised: dict[int, int] = {}  # when each rank's error left its cell
        self._lock = threading.RLock()
        self._over = threading.Event()
        self._ended = False
        self._on_end: list[Callable[[Run], None]] = []
        self._release = Release(
            self.id, sorted(self._ranks), link, lambda: [] if self._ended else self.running,
            self._raised, self._finish_if_over,
        )  # fmt: skip
        begun = self.info.start
        self._watch = StallWatch(sorted(self._ranks), link, begun, config.hang_seconds(), self._say)

    # -- what a caller sees

    @property
    def id(self) -> str:
        return self.info.id

    @property
    def state(self) -> RunState:
        return self.info.state

    @property
    def running(self) -> list[int]:
        """The ranks that have not ended."""
        return [rank for rank, info in self._ranks.items() if info.state not in ENDED]

    @property
    def results(self) -> dict[int, str]:
        """The last expression's value on each rank that had one, as text."""
        found = {
            event["rank"]: event["data"].get("text/plain", "")
            for event in self.events
            if event["kind"] == "display" and event.get("result")
        }
        return dict(sorted(found.items()))

    @property
    def seen(self) -> list[dict[str, Any]] | None:
        """The events other than logs and spans; None if they were too many to keep in memory."""
        return self.events if self._kept <= KEPT_BYTES else None

    @property
    def timeline(self) -> Timeline:
        """What each rank did, and when; of a live run, as far as the ranks have said."""
        from rankroom.analysis.timeline import Timeline

        return Timeline.read(self.info, self._store.paths(self.id).events)

    def profile(self) -> Profile:
        """Where each rank's time went, and who kept whom waiting; of a live run, so far."""
        from rankroom.analysis.profile.of_run import profile_of

        return profile_of(self._store, self.info)

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
        """Wait until every rank has ended; False if `timeout` seconds pass first."""
        return self._over.wait(timeout)

    def interrupt(self) -> None:
        """KeyboardInterrupt on the ranks that still run; blocked collectives are released."""
        self._release.interrupt()

    def release(self) -> None:
        """Let go of blocked collectives on all ranks of the run, if any of them still runs."""
        self._release.release()

    @property
    def was_released(self) -> bool:
        """True once collectives of the run were asked to let go, blocked or not."""
        return self._release.asked

    def let_go(self) -> None:
        """Leave a run that goes on to whoever attaches next: its record has no owner then."""
        with self._lock:
            if self._ended or self._writer is None:
                return
            self._ended = True
            self._watch.end()
            self._link.unsubscribe(self.id)
            self.info.owner = nobody()
            with contextlib.suppress(RecordError):
                self._writer.finish(self.info)
            self._writer.close()
        for call in self._on_end:
            call(self)
        self._over.set()

    def on_end(self, call: Callable[[Run], None]) -> None:
        """Have `call(run)` called once, before `wait` returns, in whichever thread ends the run."""
        with self._lock:
            if not self._ended:
                self._on_end.append(call)
                return
        call(self)

    def __repr__(self) -> str:
        return f"<Run {self.id} {self.info.state} on {len(self._ranks)} of {self.info.size} ranks>"

    # -- its life

    def start(
        self,
        epoch: int,
        count: int,
        settle: bool = False,
        *,
        profile: bool = False,
        own: bool = False,
    ) -> Run:
        """Create the record and send the cell. `count` numbers the cell in tracebacks; `settle`
        says that ranks may be out of step, as a cell before this one failed; `profile` has the
        frameworks' profilers run with it; `own` says that its ranks are a world of their own.

        Raises RecordError when there is nowhere to keep the record; nothing is sent then.
        """
        self._writer = PatientWriter(self._store.create(self.info, self.source))
        about = {
            "run": self.id, "start": self.info.start, "ranks": sorted(self._ranks),
            "epoch": epoch, "count": count, "settle": settle, "profile": profile, "own": own,
        }  # fmt: skip
        self._link.subscribe(self.id, self._receive)
        for rank in self._ranks:
            try:
                future = self._link.execute(rank, self.source, about)
            except RankroomError:
                self._lost(rank)
                continue
            future.add_done_callback(partial(self._replied, rank))
        return self

    def _receive(self, header: dict[str, Any], lines: bytes) -> None:
        with self._lock:
            self._take(header["rank"], header["at"], lines)

    def _take(self, rank: int, at: int, lines: bytes) -> None:
        if self._ended or rank not in self._ranks:
            return
        new = self._assembly.take(rank, at, lines)
        self._record(new)
        self._notice(rank, new)

    def _notice(self, rank: int, lines: bytes) -> None:
        """Keep what the summary needs, and see whether the rank has ended."""
        for line in lines.split(b"\n"):
            if not line:
                continue
            self._next_seq[rank] += 1
            if line.startswith(b'{"kind":"log"'):
                # Not parsed, as it may be a flood; an escaped backslash before an n is no line end.
                self.info.lines += line.count(rb"\n") - line.count(rb"\\n")
                if (stream := _STREAM.search(line[:160])) and (to := _TO.search(line[-40:])):
                    self._spooled[rank][stream[1].decode()] = int(to[1])
                continue
            self._keep_spans(line)
            if line.startswith(b'{"kind":"spans"'):
                continue  # they are for whoever looks at the timeline
            event = json.loads(line)
            self._keep(event, len(line))
            if event["kind"] == "mark" and event["name"] == "raised":
                self._raised.setdefault(rank, event["t"])
                self._failed()
            if event["kind"] == "mark" and event["name"] == "unspooled":
                self._note(UNSPOOLED.format(rank=rank, why=event["args"]["why"]))
            if event["kind"] == "mark" and event["name"] == "note":
                self._note(event["args"]["text"])
            if event["kind"] == "mark" and event["name"] == "stands":
                self._watch.begin()
            if event["kind"] == "error" and self._is_cause(rank, event["t"]):
                self.info.failure = Failure(
                    rank, event["ename"], event["evalue"], event.get("cell_line")
                )
            if event["kind"] == "status":
                self._spooled[rank].update(event.get("spool", {}))
                self._status(rank, event["state"])

    def _say(self, hang: Hang | None) -> None:
        """Put why the run is stuck into the record, or take it out again."""
        with self._lock:
            if self._ended or self._writer is None:
                return
            self._remember_hang(hang)
            with contextlib.suppress(RecordError):
                self._writer.update(self.info)

    def remark(self, note: str) -> None:
        """Put a note into the record, while the run is on."""
        with self._lock:
            if self._ended or self._writer is None:
                return
            self._note(note)
            with contextlib.suppress(RecordError):
                self._writer.update(self.info)

    def set_clocks(self, clocks: dict[int, Clock]) -> None:
        """Take note of how far the clocks of ranks on other hosts are ahead, while the run is on.

        When they are compared again, what is noted covers all of it.
        """
        with self._lock:
            if self._ended or self._writer is None:
                return
            for rank in self.info.ranks:
                if fresh := clocks.get(rank.rank):
                    rank.clock = hull(rank.clock, fresh) if rank.clock else fresh
            with contextlib.suppress(RecordError):
                self._writer.update(self.info)

    def _remember_hang(self, hang: Hang | None) -> None:
        before, self.info.hang = self.info.hang, hang
        if before is not None and hang is None:
            self._note(f"it was stuck: {before.text}")

    def _is_cause(self, rank: int, t: int) -> bool:
        """True if this rank raised before all that are known: the others followed from it."""
        known = self.info.failure
        return known is None or self._raised.get(rank, t) < self._raised.get(known.rank, 0)

    def _keep(self, event: dict[str, Any], size: int) -> None:
        self._kept += size
        if self._kept <= KEPT_BYTES:
            self.events.append(event)

    def _keep_spans(self, line: bytes) -> None:
        self._has_profile |= line.startswith(SPANS) and ONLY_CELL not in line
        if self._spans_size <= MOST and is_told(line):
            self.spans.append(line)
            self._spans_size += len(line)

    def _status(self, rank: int, state: Any) -> None:
        self._ranks[rank].state = state
        if not self.running:
            self._finish_if_over()
        elif state in ("error", "lost"):
            self._failed()

    def _failed(self) -> None:
        self._release.failed()

    def _finish_if_over(self) -> None:
        with self._lock:
            if not self._ended and not self.running and not self._release.pending:
                self._finish()

    def _replied(self, rank: int, done: Future[Any]) -> None:
        """The engine has answered, or is gone; in ipyparallel's thread."""
        if self._ranks[rank].state in ENDED:
            return
        result = done.exception() or done.result()
        if isinstance(result, ipyparallel.error.EngineError):
            self._lost(rank)
        else:
            if isinstance(result, BaseException):
                self._note(f"rank {rank} refused the cell: {result}")
            self._link.later(LATE_S, lambda: self._late(rank))

    def _late(self, rank: int) -> None:
        with self._lock:
            if self._ranks[rank].state not in ENDED and not self._ended:
                self._take_rest(rank)
                if self._ranks[rank].state not in ENDED:
                    self._lost(rank)

    def _take_rest(self, rank: int) -> None:
        rest = self._assembly.rest(rank)
        self._record(rest)
        self._notice(rank, rest)

    def _lost(self, rank: int) -> None:
        """The rank's process is gone: add its last words, then say how it ended."""
        with self._lock:
            if self._ended or self._ranks[rank].state in ENDED:
                return
            self._take_rest(rank)
            if self._ranks[rank].state in ENDED:
                return
            for stream, text, to in self._assembly.last_words(rank, self._spooled[rank]):
                self._add(rank, "log", stream=stream, text=text, to=to)
            how = self._how_ended(rank)
            if self.info.failure is None or self.info.failure.ename == "HorovodInternalError":
                self.info.failure = Failure(rank, "RankLost", f"rank {rank} {how}")
            more: dict[str, Any] = {}
            if how.startswith(GIVEN_UP):
                # What it writes from here on is added when its spool is seen again.
                more["spooled"] = self._assembly.taken(rank)
                self._given_up.add(rank)
            self._add(rank, "status", state="lost", note=how, **more)

    def lose(self, ranks: Collection[int] | None = None) -> None:
        """These ranks, or all that still run, are gone; take in what they left."""
        for rank in self.running:
            if ranks is None or rank in ranks:
                self._lost(rank)

    def _add(self, rank: int, kind: str, **fields: Any) -> None:
        """An event that the run itself adds on behalf of a rank that cannot."""
        t = time.time_ns() // 1000 - self.info.start
        line = event_line(kind, rank, self._next_seq[rank], t, **fields)
        self._record(line)
        self._notice(rank, line)

    def _record(self, lines: bytes) -> None:
        if self._writer is None or not lines:
            return
        try:
            self._writer.append(lines)
        except RecordError as error:
            self._note(f"output is missing from the record: {error}")

    def _note(self, text: str) -> None:
        if text not in self.info.notes and len(self.info.notes) < 20:
            self.info.notes.append(text)

    def _close_record(self, writer: PatientWriter, info: RunInfo) -> None:
        writer.finish(info)
        if self._has_profile:
            threading.Thread(target=self._write_profile, args=(info,)).start()
        if not any("missing from the record" in note for note in info.notes):
            self._assembly.clear(self._given_up)

    def _write_profile(self, info: RunInfo) -> None:
        from rankroom.analysis.profile.of_run import write_profile

        with contextlib.suppress(OSError):  # its readers compute it then
            write_profile(self._store, info)

    def _close_later(self, writer: PatientWriter, note: str) -> None:
        """The run is over, but the disk of its record is full: try until there is room."""
        written = replace(self.info, notes=[each for each in self.info.notes if each != note])
        while self.path.is_dir():
            time.sleep(RETRY_S)
            with contextlib.suppress(RecordError):
                self._close_record(writer, written)
                self.info = written
                return

    def _finish(self) -> None:
        self._watch.end()
        self._remember_hang(None)
        states = {rank.state for rank in self._ranks.values()}
        if states == {"ok"}:
            self.info.state = "done"
        elif (self._release.interrupted or "error" not in states) and "lost" not in states:
            self.info.state = "interrupted"
        else:
            self.info.state = "failed"
        if self.info.state != "failed":
            self.info.failure = None
        self.info.end = time.time_ns() // 1000
        self._link.unsubscribe(self.id)
        self._ended = True
        if self._writer is not None:
            try:
                self._close_record(self._writer, self.info)
            except RecordError as error:
                self._note(str(error))
                thread = threading.Thread(target=self._close_later, args=(self._writer, str(error)))
                thread.daemon = True
                thread.start()
        for call in self._on_end:
            call(self)
        self._over.set()


def title_of(source: str) -> str:
    """The first line of a cell that says something, cut to 80 characters."""
    for line in source.splitlines():
        text = line.strip()
        if text and not text.startswith("#"):
            return text[:80]
    return ""


UNSPOOLED = "rank {rank}: {why}: for a while, what it wrote was not kept on its own disk"
