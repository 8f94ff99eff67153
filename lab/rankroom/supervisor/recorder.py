"""A run from its cell to a finished record.

The recorder is the only writer of the record. It sends the cell, notices how each rank ends,
releases the others when one has failed, and closes the record when all have ended.
"""

from __future__ import annotations

import contextlib
import itertools
import re
import threading
import time
from collections.abc import Callable, Mapping
from concurrent.futures import Future
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

from rankroom import config
from rankroom.errors import RecordError
from rankroom.record.model import (
    RANK_ENDED,
    Clock,
    Hang,
    RankInfo,
    RunInfo,
    event_line,
    parse_event,
)
from rankroom.record.patient_writer import PatientWriter
from rankroom.record.store import Store, Writer
from rankroom.supervisor.assembly import Assembly, Spool
from rankroom.supervisor.elastic_ranks import HOPELESS, ElasticRanks
from rankroom.supervisor.processes.agent_process import GIVEN_UP
from rankroom.supervisor.rank_connections import RankConnections, RankGoneError
from rankroom.supervisor.release import Release
from rankroom.supervisor.run_clock import CLOCK_SET, RunClock, widen
from rankroom.supervisor.run_summary import RunSummary
from rankroom.supervisor.stall import StallWatch

TELL_S = 0.02  # after a rank has failed, until followers are told: others fail with it
LATE_S = 0.3  # after a rank's reply, for its last batch, before the spool is read
HELD_S = 2.0  # after an answer, for the rank's debugger to ask again
RETRY_S = 0.5  # between two tries to write the end of a record to a full disk
MOST_LATE = 64  # megabytes that a record takes of what a rank prints after the cell
GIVE_UP_S = 3.0  # after an interrupt, for ranks whose node is silent to end all the same
# When each event was, as `event_line` writes it.
_TIMES = re.compile(rb'^\{"kind":"\w+","rank":\d+,"seq":\d+,"t":(-?\d+)', re.MULTILINE)


class Recorder:
    """One cell executing on ranks, and its record.

    `spool(rank)` is the folder of a rank's spool; `tell(recorder)` is called whenever run.json has
    changed, at last when the run is over.
    """

    def __init__(
        self,
        source: str,
        info: RunInfo,
        ranks: RankConnections,
        store: Store,
        spool: Spool,
        tell: Callable[[Recorder], None] = lambda recorder: None,
    ) -> None:
        self.source = source
        self.info = info
        self._connections = ranks
        self._store = store
        self._tell = tell
        self._writer: PatientWriter | None = None
        self._ranks = {rank.rank: rank for rank in self.info.ranks}
        self._running = {
            rank: None for rank, info in self._ranks.items() if info.state not in RANK_ENDED
        }
        self._summary = RunSummary(info)
        self._updates = False  # run.json, soon
        self._asked_at = float("-inf")  # when a rank last asked something, or was answered
        self._assembly = Assembly(
            self.id, self._ranks, spool, self._summary.remark, self._note_unreadable
        )
        # Ranks on nodes that did not answer any more, and how much of their spools was had then.
        self.given_up: dict[int, int] = {}
        self._elastic = ElasticRanks(self._ranks)
        self._about: dict[str, Any] = {}  # what ranks are told beside the cell
        self._lock = threading.RLock()
        self._over = threading.Event()
        self._ended = False
        self.is_closed = False  # True once all of the record is on disk
        self._replaying = False
        # When the last was that is known, of a run that is completed after its end; else None.
        self._last: int | None = None
        self._clock = RunClock()
        self._release = Release(
            self.id, sorted(self._ranks), ranks, self._present,
            self._summary.raised, self.given_up, self._finish_if_over, self._is_held,
            self.has_begun,
        )  # fmt: skip
        begun = self.info.start
        self._watch = StallWatch(
            sorted(self._ranks), self._running, ranks, begun, config.hang_seconds(), self._say
        )

    @property
    def id(self) -> str:
        return self.info.id

    @property
    def running(self) -> list[int]:
        """The ranks that have not ended."""
        return list(self._running)

    def _present(self) -> list[int]:
        """Those of them whose processes are there."""
        gone = self._elastic.absent
        return [] if self._ended else [rank for rank in self.running if rank not in gone]

    @property
    def is_over(self) -> bool:
        """True once the run has ended, whether or not a full disk keeps its record open."""
        return self._ended

    def wait(self, seconds: float) -> bool:
        """Wait until the run is over; False if that takes longer."""
        return self._over.wait(seconds)

    def interrupt(self) -> None:
        """KeyboardInterrupt on the ranks that still run; blocked collectives are released."""
        with self._lock:
            self._summary.interrupt()
        self._release.interrupt()
        self._wait_for_none()
        self._connections.later(GIVE_UP_S, self._give_up_silent)

    def release(self) -> list[Future[Any]]:
        """Release blocked collectives on all ranks, and what waits for an answer, if any still
        runs; what they answer."""
        asked = self._release.release(prompts=True)
        self._wait_for_none()
        return asked

    def answer(self, text: str, prompts: Mapping[int, int]) -> dict[int, Future[Any]]:
        """Give an answer to the prompts of these numbers, by rank; whether each was `taken`."""
        about = {"run": self.id, "text": text}
        asked = {
            rank: self._connections.request([rank], do="answer", prompt=number, **about)
            for rank, number in prompts.items()
            if rank in self._running
        }
        return {rank: futures[0] for rank, futures in asked.items() if futures}

    @property
    def was_released(self) -> bool:
        """True once collectives of the run were asked to let go, blocked or not."""
        return self._release.asked

    def __repr__(self) -> str:
        return f"<Recorder of {self.id} {self.info.state}>"

    # -- its life

    def start(self, **about: Any) -> None:
        """Create the record and send the cell, `about` which every rank is told: `count` numbers
        it in tracebacks; `settle` says that ranks may be out of step, as a cell before this one
        failed; `profile` has the frameworks' profilers run with it; `own` says that its ranks are
        a world of their own; `epoch` counts how often ranks were wired again.

        Raises RecordError when there is nowhere to keep the record; nothing is sent then.
        """
        self._writer = PatientWriter(self._store.create(self.info, self.source))
        about |= {"run": self.id, "start": self.info.start, "ranks": sorted(self._ranks)}
        self._about = about
        self._connections.subscribe(self.id, self._receive)
        self._send(list(self._ranks), about)
        self.note_silence()

    def _send(self, ranks: list[int], about: dict[str, Any]) -> None:
        sent = self._connections.execute(ranks, self.source, **about)
        for rank, future in sent.items():
            future.add_done_callback(partial(self._replied, rank))

    def complete(self, writer: Writer, how_ended: Callable[[int], str]) -> None:
        """Complete a record whose writer is gone, from what ranks that have ended left on disk. The
        run ended with the last that is known of it, and not now."""
        self._writer, self._last = PatientWriter(writer), 0
        with self._lock:
            self._replay()
            for rank in self._ranks:
                self._assembly.resume(rank, self._summary.next_seq[rank])
            for rank in self.running:
                self._take_rest(rank)
            for rank in self.running:
                how = how_ended(rank) if self._summary.next_seq[rank] else NOT_SENT
                self._lost(rank, how)
            self._finish_if_over()

    def _replay(self) -> None:
        """Learn from the record what its writer knew."""
        self._replaying = True
        with self._store.paths(self.id).events.open("rb") as file:
            for line in file:
                event = parse_event(line)
                if event is None or event["rank"] not in self._ranks:
                    continue
                rank = event["rank"]
                # A full disk may have left some out.
                self._summary.next_seq[rank] = event["seq"]
                self._notice(rank, line)
                if event["kind"] == "status" and event["state"] == "lost":
                    self._summary.blame(rank, str(event.get("note", "")))
        self._replaying = False

    def _receive(self, header: dict[str, Any], lines: bytes) -> None:
        with self._lock:
            self._take(header["rank"], header["at"], lines)

    def _take(self, rank: int, at: int, lines: bytes) -> None:
        # What a rank says that was given up is in its spool, from where it is added later.
        if self._ended or rank not in self._ranks or self._ranks[rank].state == "lost":
            return
        new = self._assembly.take(rank, at, lines)
        self._record(new)
        self._notice(rank, new)

    def _notice(self, rank: int, lines: bytes) -> None:
        """Keep what the summary needs, and see whether the rank has ended."""
        if self._last is not None:
            times = [int(t) - self._offset(rank) for t in _TIMES.findall(lines)]
            self._last = max([self._last, *times])
        for event in self._summary.take(rank, lines):
            match event:
                case {"kind": "mark", "name": "raised"}:
                    self._failed()
                case {"kind": "mark", "name": "stands"}:
                    self._watch.begin()
                case {"kind": "mark", "name": "asks" | "answered"}:
                    self._asked_at = time.monotonic()
                    self._update_soon()
                case {"kind": "status", "state": state}:
                    self._status(rank, state)

    def _say(self, hang: Hang | None) -> None:
        """Put why the run is stuck into the record, or take it out again."""
        with self._lock:
            if self._ended or self._writer is None:
                return
            if hang and self.info.hang and (self._release.interrupted or self.was_released):
                return  # where they stand while it is ended is not why it was
            if hang and (absent := self._elastic.words()):
                hang.text = f"{hang.text}; {absent}"
            if self._summary.hang(hang):
                self._update()

    def remark(self, note: str) -> None:
        """Put a note into the record, while the run is on."""
        with self._lock:
            if self._ended or self._writer is None:
                return
            self._summary.remark(note)
            self._update()

    def _is_held(self) -> bool:
        """Whether somebody works with a rank's debugger, or is about to be asked by it again."""
        return bool(self.info.prompts) or time.monotonic() < self._asked_at + HELD_S

    def _update_soon(self) -> None:
        """Put into the record what ranks ask, or that some failed: many may do so at once."""
        if not self._replaying and not self._updates:
            self._updates = True
            self._connections.later(TELL_S, self._update_now)

    def _update_now(self) -> None:
        with self._lock:
            self._updates = False
            if not self._ended:
                self._update()

    def _update(self) -> None:
        if self._writer is not None:
            with contextlib.suppress(RecordError):
                self._writer.update(self.info)
        self._tell(self)

    def set_clocks(self, clocks: dict[int, Clock]) -> None:
        """Take note of how far the clocks of ranks on other hosts are ahead, while the run is on.

        When they are compared again, what is noted covers all of it.
        """
        with self._lock:
            if self._ended or self._writer is None:
                return
            widen(self.info.ranks, clocks)
            self._update()

    def _status(self, rank: int, state: Any) -> None:
        self._ranks[rank].state = state
        if state in RANK_ENDED:
            self._running.pop(rank, None)
            self._wait_for_none()  # who has ended the cell does not meet others in it
        if not self._running:
            self._finish_if_over()
        elif state in ("error", "lost"):
            self._failed()
            self._update_soon()  # what others do from here on follows from this

    def _failed(self) -> None:
        if not self._replaying:
            self._release.failed()

    def _finish_if_over(self) -> None:
        with self._lock:
            if self._replaying or self._ended or self._running or self._release.pending:
                return
            self._finish()

    def _replied(self, rank: int, done: Future[Any]) -> None:
        """The rank has run the cell, or is gone; in the server's thread."""
        if self._ranks[rank].state in RANK_ENDED:
            return
        if isinstance(done.exception(), RankGoneError):
            return  # how it ended is said by who knows it
        self._connections.later(LATE_S, lambda: self._late(rank))

    def _late(self, rank: int) -> None:
        with self._lock:
            if self._ranks[rank].state not in RANK_ENDED and not self._ended:
                self._take_rest(rank)
                if self._ranks[rank].state not in RANK_ENDED:
                    self._lost(rank, "ended the cell without a word")

    def _take_rest(self, rank: int) -> None:
        rest = self._assembly.rest(rank)
        self._record(rest)
        self._notice(rank, rest)

    def _lost(self, rank: int, how: str) -> None:
        """The rank's process is gone: add its last words, then say how it ended."""
        with self._lock:
            if self._ended or self._ranks[rank].state in RANK_ENDED:
                return
            if not self._take_last(rank):
                return
            self._summary.blame(rank, how)
            more: dict[str, Any] = {}
            if how.startswith(GIVEN_UP):
                # What it writes from here on is added when its spool is seen again.
                more["spooled"] = self.given_up[rank] = self._assembly.taken(rank)
            self._add(rank, "status", state="lost", note=how, **more)

    def _take_last(self, rank: int) -> bool:
        """Take in what a process that is gone left; False if it had ended the cell before."""
        self._take_rest(rank)
        if self._ranks[rank].state in RANK_ENDED:
            return False
        for stream, text, to in self._assembly.last_words(rank, self._summary.spooled[rank]):
            self._add(rank, "log", stream=stream, text=text, to=to)
        return True

    def has_begun(self, rank: int) -> bool:
        """Whether a rank has begun the cell: what it prints from there on is in this record."""
        return rank in self._ranks and (
            bool(self._summary.spooled[rank]) or self._assembly.has_begun(rank)
        )

    def take_late(self, rank: int) -> None:
        """The rank ends, and no other cell has come to it: add what it, or what it has started, has
        printed since it ended this one. Raises RecordError."""
        with self._lock:
            if rank in self._running or self._ranks[rank].state == "lost":
                return  # its last words are taken otherwise, or have been
            known, self._summary.spooled[rank] = self._summary.spooled[rank], {}
            words = self._assembly.last_words(rank, known)
            if (first := next(words, None)) is None:
                return
            if self.is_closed:
                self._writer = PatientWriter(Writer.again(self._store.paths(self.id)))
            for stream, text, to in itertools.chain([first], itertools.islice(words, MOST_LATE)):
                self._add(rank, "log", stream=stream, text=text, to=to)
            if next(words, None) is not None:
                self._summary.note(TOO_MUCH.format(rank=rank, size=MOST_LATE))
            self._summary.spooled[rank] = {}  # of the next process nothing is known
            # One that a full disk keeps open is closed once there is room.
            if self.is_closed and self._writer is not None:
                self._writer.finish(self.info)

    def lose(self, ranks: Mapping[int, str]) -> None:
        """These ranks are gone, and how; take in what they left."""
        for rank in self.running:
            if rank in ranks:
                self._lost(rank, ranks[rank])

    # -- ranks of which nothing is heard

    def note_silence(self) -> None:
        """Which nodes are silent is not as it was, perhaps; in the server's thread."""
        if self._ended or not any(rank in self._running for rank in self._connections.silent):
            return
        self._watch.begin()
        if self._release.interrupted:
            self._connections.later(GIVE_UP_S, self._give_up_silent)

    def _give_up_silent(self) -> None:
        """The run was interrupted: do not wait for ranks that may be cut off. What they still
        write joins the record; they are interrupted themselves when they answer again."""
        with self._lock:
            for rank, silence in self._connections.silent.items():
                if rank in self._running:
                    self._lost(rank, CUT_OFF.format(silence=silence))

    # -- ranks that come back, as the others train elastically

    def note_elastic(self, rank: int, inside: bool) -> None:
        """A rank has the state of an elastic run, or has left that."""
        self._elastic.note(rank, inside)

    def wait_for(self, rank: int, how: str, seconds: float, words: str) -> bool:
        """`rank` is gone, and may be started again: if the others train elastically, have them go
        back to their last commit and wait `seconds` for it; False if they do not. `words` are for
        the record."""
        with self._lock:
            is_whole = len(self._running) == len(self._ranks) == self.info.size
            if self._ended or not is_whole or self._release.interrupted or self.was_released:
                return False
            if not seconds:
                return False
            if self._elastic.is_hopeless(rank):
                self._lost(rank, HOPELESS.format(how=how))
                return False
            if rank in self._elastic.absent:
                self._elastic.wait_longer(rank, seconds)
            else:
                if not self._elastic.go_on_without(rank) or not self._take_last(rank):
                    return False
                self._add(rank, "mark", name="away", args={"why": how})
                self._add(rank, "log", stream="stderr", text=words)
                others = self._elastic.wait_for(rank, how, seconds)
                about = {"run": self.id, "meeting": self._elastic.meeting}
                self._connections.request(others, do="regroup", **about)
            self._connections.later(seconds, self._give_up_overdue)
            return True

    def resume(self, place: RankInfo) -> bool:
        """A rank is there again: if it is waited for, send it the cell."""
        with self._lock:
            rank = place.rank
            if self._ended or rank not in self._elastic.absent:
                return False
            how = self._elastic.come_back(rank)
            self._ranks[rank].pid, self._ranks[rank].host = place.pid, place.host
            self._assembly.restart(rank)
            self._summary.spooled[rank].clear()
            again = {
                "back": how,
                "meeting": self._elastic.meeting,
                "seq": self._summary.next_seq[rank],
                "starts": self._elastic.starts[rank],
                "settle": False,  # the others did, when the run began
            }
            self._send([rank], self._about | again)
            self._update()
            return True

    def _give_up_overdue(self) -> None:
        with self._lock:
            for rank, how in self._elastic.overdue().items():
                self._lost(rank, how)

    def _wait_for_none(self) -> None:
        with self._lock:
            for rank, how in self._elastic.give_up().items():
                self._lost(rank, how)

    def _add(self, rank: int, kind: str, **fields: Any) -> None:
        """An event that the run itself adds on behalf of a rank that cannot."""
        t = time.time_ns() // 1000 - self.info.start
        if self._last is not None:
            t = self._last + self._offset(rank)
        line = event_line(kind, rank, self._summary.next_seq[rank], t, **fields)
        self._record(line)
        self._notice(rank, line)

    def _offset(self, rank: int) -> int:
        """By how much the clock of a rank is ahead of the run's, as far as that is known."""
        clock = self._ranks[rank].clock
        return clock.offset if clock else 0

    def _record(self, lines: bytes) -> None:
        if self._writer is None or not lines:
            return
        try:
            self._writer.append(lines)
        except RecordError as error:
            self._summary.note_lack(f"output is missing from the record: {error}")

    def _note_unreadable(self, error: OSError) -> None:
        """A spool cannot be read: what it has is left there."""
        self._summary.note_lack(f"output may be missing from the record: {error}")

    def _tidy(self) -> None:
        """Remove the ranks' copies, compute profile and metrics, once the record is closed."""
        # Of what a disk refuses as the record is closed, there is only the writer's note.
        is_noted = any("missing from the record" in note for note in self.info.notes)
        if not (is_noted or self._summary.lacks_output):
            self._assembly.clear(self.given_up)
        if self._summary.has_profile or self._summary.has_metrics:
            with contextlib.suppress(RuntimeError):  # no thread can be started: as with a full disk
                threading.Thread(target=self._write_found, args=(self.info,)).start()

    def _write_found(self, info: RunInfo) -> None:
        from rankroom.analysis.metrics.metrics_of_run import write_metrics
        from rankroom.analysis.profile.of_run import write_profile

        # Readers compute what the disk refuses.
        if self._summary.has_profile:
            with contextlib.suppress(OSError):
                write_profile(self._store, info)
        if self._summary.has_metrics:
            with contextlib.suppress(OSError):
                write_metrics(self._store, info)

    def _close_later(self, writer: PatientWriter, note: str) -> None:
        """The run is over, but the disk of its record is full: try until there is room."""
        while _may_be_there(self._store.paths(self.id).folder):
            time.sleep(RETRY_S)
            with self._lock, contextlib.suppress(RecordError):
                notes = [each for each in self.info.notes if each != note]
                written = replace(self.info, notes=notes)
                writer.finish(written)
                self.is_closed = True
                self.info = written
                self._tidy()
                return

    def _finish(self) -> None:
        self._watch.end()
        self._summary.end(self._release.interrupted)
        if self._last is not None:
            self.info.end = self.info.start + self._last
        elif self.info.end is not None and (by := self._clock.set_by()):
            self._summary.remark(CLOCK_SET.format(seconds=by / 1e6))
            self.info.end -= by
        self._connections.unsubscribe(self.id)
        self._ended = True
        if self._writer is not None:
            try:
                self._writer.finish(self.info)
                self.is_closed = True
            except RecordError as error:
                self._summary.note(str(error))
                thread = threading.Thread(target=self._close_later, args=(self._writer, str(error)))
                thread.daemon = True
                with contextlib.suppress(RuntimeError):  # `rankroom runs repair` closes it then
                    thread.start()
        self._over.set()
        self._tell(self)
        if self.is_closed:
            self._tidy()


def _may_be_there(folder: Path) -> bool:
    """False if nothing is there; where that cannot be told, there may be."""
    try:
        folder.stat()
    except FileNotFoundError:
        return False
    except OSError:
        return True
    return True


CUT_OFF = f"{GIVEN_UP} when the run was interrupted: {{silence}}"
TOO_MUCH = "rank {rank} printed more than {size} MB after its last cell: the rest is in no record"
NOT_SENT = "never got the cell: its supervisor ended while it was sent"
