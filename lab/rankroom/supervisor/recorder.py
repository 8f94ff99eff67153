"""A run from its cell to a finished record.

The recorder is the only writer of the record. It sends the cell, notes how each rank ends,
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
    ENDED_RANK_STATES,
    MISSING_FROM_RECORD,
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
from rankroom.supervisor.elastic_ranks import RESTARTS_EXHAUSTED, ElasticRanks
from rankroom.supervisor.processes.agent_process import GIVEN_UP
from rankroom.supervisor.rank_connections import RankConnections, RankGoneError
from rankroom.supervisor.release import Release
from rankroom.supervisor.run_clock import CLOCK_SET, RunClock, widen
from rankroom.supervisor.run_summary import RunSummary
from rankroom.supervisor.stall import StallWatch

UPDATE_DELAY_S = 0.02  # delay of updates after a failure or prompt, as more ranks often follow
# After a rank's reply, to wait for its last batch before its spool is read.
LAST_BATCH_TIMEOUT_S = 0.3
NEXT_PROMPT_TIMEOUT_S = 2.0  # after a prompt or answer, for the rank's debugger to prompt again
CLOSE_RETRY_INTERVAL_S = 0.5  # between two attempts to write the end of a record to a full disk
MAX_LATE_OUTPUT_MB = 64  # megabytes of a rank's output after the cell that a record takes
GIVE_UP_SILENT_DELAY_S = 3.0  # after an interrupt, before ranks on silent nodes are given up
# The time of each event, as `event_line` writes it.
# That of a rank's loss is on the writer's clock.
_EVENT_TIME_PATTERN = re.compile(
    rb'^\{"kind":"\w+","rank":\d+,"seq":\d+,"t":(-?\d+)(?!\d)(?!,"state":"lost")', re.MULTILINE
)


class Recorder:
    """One cell executing on ranks, and its record.

    `spool(rank)` is the folder of a rank's spool; `tell(recorder)` is called whenever run.json has
    changed, for the last time when its record is closed.
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
            rank: None for rank, info in self._ranks.items() if info.state not in ENDED_RANK_STATES
        }
        self._summary = RunSummary(info)
        self._updates = False  # an update of run.json is scheduled
        self._asked_at = float("-inf")  # when a rank last prompted, or was answered
        self._assembly = Assembly(
            self.id, self._ranks, spool, self._summary.remark, self._note_unreadable
        )
        # Ranks given up as their node was silent, and how many bytes of their spool were recorded.
        self.given_up: dict[int, int] = {}
        self._elastic = ElasticRanks(self._ranks)
        self._cell_options: dict[str, Any] = {}  # what is sent to ranks along with the cell
        self._lock = threading.RLock()
        self._over = threading.Event()
        self._ended = False
        self.is_closed = False  # True once all of the record is on disk
        self._replaying = False
        # While a record is completed after the run: when its last known event was; else None.
        self._last_event_us: int | None = None
        self._clock = RunClock()
        self._release = Release(
            self.id, sorted(self._ranks), ranks, self._present,
            self._summary.raised, self.given_up, self._finish_if_over, self._is_held,
            self.has_begun,
        )  # fmt: skip
        begun = self.info.start
        self._watch = StallWatch(
            sorted(self._ranks), self._running, ranks, begun, config.hang_seconds(),
            self._report_hang,
        )  # fmt: skip

    @property
    def id(self) -> str:
        return self.info.id

    @property
    def running(self) -> list[int]:
        """The ranks that have not ended."""
        return list(self._running)

    def _present(self) -> list[int]:
        """Return the running ranks whose processes exist."""
        gone = self._elastic.absent
        return [] if self._ended else [rank for rank in self.running if rank not in gone]

    @property
    def is_over(self) -> bool:
        """True once the run has ended, even if a full disk keeps its record open."""
        return self._ended

    def wait(self, seconds: float) -> bool:
        """Wait until the run is over; False if that takes longer."""
        return self._over.wait(seconds)

    def interrupt(self) -> None:
        """Raise KeyboardInterrupt on the ranks still running; blocked collectives are released."""
        with self._lock:
            self._summary.interrupt()
        self._release.interrupt()
        self._wait_for_none()
        self._connections.later(GIVE_UP_SILENT_DELAY_S, self._give_up_silent)

    def release(self) -> list[Future[Any]]:
        """Release blocked collectives and prompts on all ranks, unless all have ended; return the
        ranks' replies."""
        asked = self._release.release(prompts=True)
        self._wait_for_none()
        return asked

    def answer(self, text: str, prompts: Mapping[int, int]) -> dict[int, Future[Any]]:
        """Answer the prompts with these numbers, by rank; each reply says if it was `taken`."""
        about = {"run": self.id, "text": text}
        asked = {
            rank: self._connections.request([rank], do="answer", prompt=number, **about)
            for rank, number in prompts.items()
            if rank in self._running
        }
        return {rank: futures[0] for rank, futures in asked.items() if futures}

    @property
    def was_released(self) -> bool:
        """True once ranks were asked to release collectives of the run, blocked or not."""
        return self._release.asked

    def __repr__(self) -> str:
        return f"<Recorder of {self.id} {self.info.state}>"

    # -- life cycle

    def start(self, **about: Any) -> None:
        """Create the record and send the cell, with `about` for every rank: `count` numbers the
        cell in tracebacks; `settle` says that ranks may be out of step, as a cell before this one
        failed; `profile` runs the frameworks' profilers with it; `own` says that its ranks are a
        world of their own; `epoch` counts how often ranks were rewired.

        Raises RecordError if the record cannot be created; nothing is sent then.
        """
        self._writer = PatientWriter(self._store.create(self.info, self.source))
        about |= {"run": self.id, "start": self.info.start, "ranks": sorted(self._ranks)}
        self._cell_options = about
        self._connections.subscribe(self.id, self._receive)
        self._send(list(self._ranks), about)
        self.note_silence()

    def _send(self, ranks: list[int], about: dict[str, Any]) -> None:
        sent = self._connections.execute(ranks, self.source, **about)
        for rank, future in sent.items():
            future.add_done_callback(partial(self._replied, rank))

    def complete(self, writer: Writer, how_ended: Callable[[int], str]) -> None:
        """Complete a record whose writer is gone, from what its ranks, which have ended, left on
        disk. The run's end is the time of its last known event, not the present."""
        self._writer, self._last_event_us = PatientWriter(writer), 0
        with self._lock:
            self._replay()
            for rank in self._ranks:
                self._assembly.resume(rank, self._summary.next_seq[rank])
            for rank in self.running:
                self._take_rest(rank)
            for rank in self.running:
                how = how_ended(rank) if self._summary.next_seq[rank] else CELL_NOT_SENT
                self._lost(rank, how)
            self._finish_if_over()

    def _replay(self) -> None:
        """Rebuild from the record what its writer knew."""
        self._replaying = True
        with self._store.paths(self.id).events.open("rb") as file:
            for line in file:
                event = parse_event(line)
                if event is None or event["rank"] not in self._ranks:
                    continue
                rank = event["rank"]
                # Not a count of lines: a full disk may have left some out.
                self._summary.next_seq[rank] = event["seq"]
                self._notice(rank, line)
                if event["kind"] == "status" and event["state"] == "lost":
                    self._summary.blame(rank, str(event.get("note", "")))
        self._replaying = False

    def _receive(self, header: dict[str, Any], lines: bytes) -> None:
        with self._lock:
            self._take(header["rank"], header["at"], lines)

    def _take(self, rank: int, at: int, lines: bytes) -> None:
        # What a rank reports after it was given up is in its spool, and is added from there later.
        if self._ended or rank not in self._ranks or self._ranks[rank].state == "lost":
            return
        new = self._assembly.take(rank, at, lines)
        self._record(new)
        self._notice(rank, new)

    def _notice(self, rank: int, lines: bytes) -> None:
        """Pass events to the summary, and act on failures, stalls, prompts and ends of ranks."""
        if self._last_event_us is not None:
            times = [int(t) - self._offset(rank) for t in _EVENT_TIME_PATTERN.findall(lines)]
            self._last_event_us = max([self._last_event_us, *times])
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

    def _report_hang(self, hang: Hang | None) -> None:
        """Record why the run is stuck, or with None that it no longer is."""
        with self._lock:
            if self._ended or self._writer is None:
                return
            if hang and self.info.hang and (self._release.interrupted or self.was_released):
                return  # where ranks are while they are freed is not why the run was stuck
            if hang and (absent := self._elastic.words()):
                hang.text = f"{hang.text}; {absent}"
            if self._summary.hang(hang):
                self._update()

    def remark(self, note: str) -> None:
        """Add a note to the record while the run is in progress."""
        with self._lock:
            if self._ended or self._writer is None:
                return
            self._summary.remark(note)
            self._update()

    def _is_held(self) -> bool:
        """Return whether a rank prompts for input, or its debugger is about to prompt again."""
        return bool(self.info.prompts) or time.monotonic() < self._asked_at + NEXT_PROMPT_TIMEOUT_S

    def _update_soon(self) -> None:
        """Schedule an update of run.json with prompts and failures: many ranks may have some."""
        if not self._replaying and not self._updates:
            self._updates = True
            self._connections.later(UPDATE_DELAY_S, self._update_now)

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
        """Record how far the clocks of ranks on other hosts are ahead, while the run goes on.

        If they are compared again, the recorded bounds cover all comparisons.
        """
        with self._lock:
            if self._ended or self._writer is None:
                return
            widen(self.info.ranks, clocks)
            self._update()

    def _status(self, rank: int, state: Any) -> None:
        self._ranks[rank].state = state
        if state in ENDED_RANK_STATES:
            self._running.pop(rank, None)
            self._wait_for_none()  # a rank that has ended the cell cannot regroup with others
        if not self._running:
            self._finish_if_over()
        elif state in ("error", "lost"):
            self._failed()
            self._update_soon()  # what other ranks do from here on may be a consequence

    def _failed(self) -> None:
        if not self._replaying:
            self._release.failed()

    def _finish_if_over(self) -> None:
        with self._lock:
            if self._replaying or self._ended or self._running or self._release.pending:
                return
            self._finish()

    def _replied(self, rank: int, done: Future[Any]) -> None:
        """Handle the reply of a rank that has run the cell, or is gone; in the server's thread."""
        if self._ranks[rank].state in ENDED_RANK_STATES:
            return
        if isinstance(done.exception(), RankGoneError):
            return  # `lose` or `wait_for` says how it ended
        self._connections.later(LAST_BATCH_TIMEOUT_S, lambda: self._late(rank))

    def _late(self, rank: int) -> None:
        with self._lock:
            if self._ranks[rank].state not in ENDED_RANK_STATES and not self._ended:
                self._take_rest(rank)
                if self._ranks[rank].state not in ENDED_RANK_STATES:
                    self._lost(rank, "ended the cell without reporting its outcome")

    def _take_rest(self, rank: int) -> None:
        rest = self._assembly.rest(rank)
        self._record(rest)
        self._notice(rank, rest)

    def _lost(self, rank: int, how: str) -> None:
        """Record the loss of a rank's process: its last output, then how it ended."""
        with self._lock:
            if self._ended or self._ranks[rank].state in ENDED_RANK_STATES:
                return
            if not self._take_last(rank):
                return
            self._summary.blame(rank, how)
            more: dict[str, Any] = {}
            if how.startswith(GIVEN_UP):
                # What it writes from here on is added once its spool can be read again.
                more["spooled"] = self.given_up[rank] = self._assembly.taken(rank)
            self._add(rank, "status", state="lost", note=how, **more)

    def _take_last(self, rank: int) -> bool:
        """Record what a lost process left; return False if it had ended the cell before."""
        self._take_rest(rank)
        if self._ranks[rank].state in ENDED_RANK_STATES:
            return False
        for stream, text, to in self._assembly.last_words(rank, self._summary.spooled[rank]):
            self._add(rank, "log", stream=stream, text=text, to=to)
        return True

    def has_begun(self, rank: int) -> bool:
        """Return whether a rank has begun the cell: its output from then on is in this record."""
        return rank in self._ranks and (
            bool(self._summary.spooled[rank]) or self._assembly.has_begun(rank)
        )

    def take_late(self, rank: int) -> None:
        """Record what a rank, or a process that it started, has printed since it ended this cell,
        as the rank ends without another cell. Raises RecordError."""
        with self._lock:
            if rank in self._running or self._ranks[rank].state == "lost":
                return  # `_lost` records its last output, or has done so
            known, self._summary.spooled[rank] = self._summary.spooled[rank], {}
            words = self._assembly.last_words(rank, known)
            if (first := next(words, None)) is None:
                return
            if self.is_closed:
                self._writer = PatientWriter(Writer.again(self._store.paths(self.id)))
            for stream, text, to in itertools.chain(
                [first], itertools.islice(words, MAX_LATE_OUTPUT_MB)
            ):
                self._add(rank, "log", stream=stream, text=text, to=to)
            if next(words, None) is not None:
                self._summary.note(LATE_OUTPUT_TRUNCATED.format(rank=rank, size=MAX_LATE_OUTPUT_MB))
            self._summary.spooled[rank] = {}  # nothing is known of the rank's next process
            # A record that a full disk keeps open is closed by `_close_later`.
            if self.is_closed and self._writer is not None:
                self._writer.finish(self.info)

    def lose(self, ranks: Mapping[int, str]) -> None:
        """Note that these ranks are gone, and how; record what they left."""
        for rank in self.running:
            if rank in ranks:
                self._lost(rank, ranks[rank])

    # -- silent ranks

    def note_silence(self) -> None:
        """React to a possible change in which nodes are silent; in the server's thread."""
        if self._ended or not any(rank in self._running for rank in self._connections.silent):
            return
        self._watch.begin()
        if self._release.interrupted:
            self._connections.later(GIVE_UP_SILENT_DELAY_S, self._give_up_silent)

    def _give_up_silent(self) -> None:
        """Give up ranks that may be cut off, as the run was interrupted. What they still write is
        added to the record; they are interrupted themselves when they answer again."""
        with self._lock:
            for rank, silence in self._connections.silent.items():
                if rank in self._running:
                    self._lost(rank, GIVEN_UP_ON_INTERRUPT.format(silence=silence))

    # -- ranks that rejoin elastic training

    def note_elastic(self, rank: int, inside: bool) -> None:
        """Note that a rank has the state of an elastic run, or has left `hvd.elastic.run`."""
        self._elastic.note(rank, inside)

    def wait_for(self, rank: int, how: str, seconds: float, words: str) -> bool:
        """Wait up to `seconds` for `rank`, which is gone and may be restarted, if the others train
        elastically: they go back to their last commit. `words` are added to the rank's log.
        Returns False if the run does not wait."""
        with self._lock:
            is_whole = len(self._running) == len(self._ranks) == self.info.size
            if self._ended or not is_whole or self._release.interrupted or self.was_released:
                return False
            if not seconds:
                return False
            if self._elastic.is_hopeless(rank):
                self._lost(rank, RESTARTS_EXHAUSTED.format(how=how))
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
        """Send the cell to a rank that is back; return False if the run does not wait for it."""
        with self._lock:
            rank = place.rank
            if self._ended or rank not in self._elastic.absent:
                return False
            how = self._elastic.note_restarted(rank)
            self._ranks[rank].pid, self._ranks[rank].host = place.pid, place.host
            self._assembly.restart(rank)
            self._summary.spooled[rank].clear()
            again = {
                "back": how,
                "meeting": self._elastic.meeting,
                "seq": self._summary.next_seq[rank],
                "starts": self._elastic.starts[rank],
                "settle": False,  # the others did so when the run began
            }
            self._send([rank], self._cell_options | again)
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
        """Add an event on behalf of a rank that cannot report it."""
        t = time.time_ns() // 1000 - self.info.start
        if self._last_event_us is not None:
            is_lost = kind == "status" and fields.get("state") == "lost"
            t = self._last_event_us + (0 if is_lost else self._offset(rank))
        line = event_line(kind, rank, self._summary.next_seq[rank], t, **fields)
        self._record(line)
        self._notice(rank, line)

    def _offset(self, rank: int) -> int:
        """Return how far a rank's clock is ahead of the run's (µs), as far as that is known."""
        clock = self._ranks[rank].clock
        return clock.offset if clock else 0

    def _record(self, lines: bytes) -> None:
        if self._writer is None or not lines:
            return
        try:
            self._writer.append(lines)
        except RecordError as error:
            self._summary.note_lack(f"output is {MISSING_FROM_RECORD}: {error}")

    def _note_unreadable(self, error: OSError) -> None:
        """Note that a spool cannot be read: its contents are left there."""
        self._summary.note_lack(f"output may be {MISSING_FROM_RECORD}: {error}")

    def _clean_up(self) -> None:
        """Remove the ranks' spool files, compute profile and metrics, once the record is closed."""
        # Of what the disk refused until the record was closed, only the writer's note tells.
        if not (self.info.may_lack_output or self._summary.lacks_output):
            self._assembly.clear(self.given_up)
        if self._summary.has_profile or self._summary.has_metrics:
            with contextlib.suppress(RuntimeError):  # no thread available: readers compute them
                threading.Thread(target=self._write_analysis, args=(self.info,)).start()

    def _write_analysis(self, info: RunInfo) -> None:
        from rankroom.analysis.metrics.metrics_of_run import write_metrics
        from rankroom.analysis.profile.of_run import write_profile

        # Readers compute what a full disk refuses.
        if self._summary.has_profile:
            with contextlib.suppress(OSError):
                write_profile(self._store, info)
        if self._summary.has_metrics:
            with contextlib.suppress(OSError):
                write_metrics(self._store, info)

    def _close_later(self, writer: PatientWriter, note: str) -> None:
        """Close the record of a run that is over, once its disk is no longer full."""
        while _may_be_there(self._store.paths(self.id).folder):
            time.sleep(CLOSE_RETRY_INTERVAL_S)
            with self._lock, contextlib.suppress(RecordError):
                notes = [each for each in self.info.notes if each != note]
                written = replace(self.info, notes=notes)
                writer.finish(written)
                self.info.notes = written.notes  # the summary has the same object
                self.is_closed = True
                self._clean_up()
                self._connections.later(0, lambda: self._tell(self))
                return

    def _finish(self) -> None:
        self._watch.end()
        self._summary.end(self._release.interrupted)
        if self._last_event_us is not None:
            self.info.end = self.info.start + self._last_event_us
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
            self._clean_up()


def _may_be_there(folder: Path) -> bool:
    """Return False if nothing exists at `folder`, True if it does or that cannot be told."""
    try:
        folder.stat()
    except FileNotFoundError:
        return False
    except OSError:
        return True
    return True


GIVEN_UP_ON_INTERRUPT = f"{GIVEN_UP} when the run was interrupted: {{silence}}"
LATE_OUTPUT_TRUNCATED = (
    "rank {rank} printed more than {size} MB after its last cell: the rest was not recorded"
)
CELL_NOT_SENT = "never received the cell: the supervisor ended while sending it"
