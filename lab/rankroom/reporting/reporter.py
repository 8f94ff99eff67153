"""Turns what a rank does into events: ordered, on disk first, then on the wire.

One lock orders everything. Before the main thread emits an event, all that was printed earlier is
taken in, so that the record has things in the order in which they happened. Each run has its own
spool file, `<run>.jsonl`, with exactly the bytes that belong in the record; messages carry their
offset in it, so a reader notices a gap and can fill it from the file. On a full disk the file has
holes (zeros; each later line is still at its own offset): what belongs there was only sent, and the
last of it is in memory beside the file.
"""

from __future__ import annotations

import contextlib
import functools
import os
import signal
import subprocess
import sys
import threading
from collections.abc import Callable
from pathlib import Path

# Bound here, as a cell may replace them in their module, to test its own code.
from time import monotonic, sleep, time_ns
from time import time as epoch_s
from typing import Any

from rankroom.record.model import event_line, spans_line
from rankroom.reporting import metrics, spans
from rankroom.reporting.log_metrics import LogMetrics
from rankroom.reporting.overflow import Overflow
from rankroom.reporting.samples import Sampler
from rankroom.reporting.streams import CStdio, RankStream, Spooled
from rankroom.reporting.wake import Wake

# Between two messages of a rank while output keeps coming, with up to RANKS_AT_FULL_RATE ranks.
BATCH_INTERVAL_S = 0.05
# With more ranks each sends less often, so that the supervisor gets no more messages.
RANKS_AT_FULL_RATE = 128
# Poll interval for output of C code while there is none; Python's wakes the pump.
QUIET_POLL_INTERVAL_S = 0.5
REPORT_INTERVAL_S = 1.0  # between two reports of spans, of metrics and of how busy this rank is
# Poll interval for a run: as cells may be short, their start does not wake the pump.
IDLE_POLL_INTERVAL_S = 0.5
PREPARED_SPOOL_NAME = "blank"  # the name of the next run's spool file before that run starts
_CREATE_FLAGS = os.O_WRONLY | os.O_CREAT | os.O_TRUNC
MAX_BATCH_BYTES = 1 << 20  # a batch of this many bytes is sent without waiting
# The functions that start a process without Python's own fork. An audit hook would see all of them,
# but slow down every training loop: it is called for each id(), too.
PROCESS_STARTERS = (
    (subprocess.Popen, "__init__"),
    *((os, name) for name in ("system", "posix_spawn", "posix_spawnp", "execv", "execve")),
)

Send = Callable[[dict[str, Any], bytes], None]


def batch_s(size: int) -> float:
    """Return the seconds between two messages of each of `size` ranks while output keeps coming."""
    return BATCH_INTERVAL_S * max(1.0, size / RANKS_AT_FULL_RATE)


class Reporter:
    """The events of one rank.

    `send(header, lines)` sends a batch; the header is `{run, rank, at, ended}`, where `at` is the
    byte offset of `lines` in the run's spool file.
    """

    def __init__(self, rank: int, spool: Path, send: Send, size: int = 1) -> None:
        self.rank = rank
        self._batch_s = batch_s(size)
        self.spool = spool
        self.run: str | None = None
        self._send = send
        self._start = 0
        self._seq = self._before = 0  # events in total, and those of this rank's earlier processes
        self._file = self._blank = -1
        self._blank_name = str(spool / PREPARED_SPOOL_NAME)
        self._at = 0
        self._end = 0
        self._reported = 0  # when spans were last reported (epoch, in units of REPORT_INTERVAL_S)
        # Called before spans are reported, to add those that were collected elsewhere.
        self.sources: list[Callable[[], None]] = []
        self._broken: list[Callable[[], None]] = []  # the sources that failed in this run
        self.sampler: Sampler | None = None
        self._sampled: str | None = None  # the run that the current samples belong to
        self._log_metrics = LogMetrics(metrics.points.add_logged)
        self._overflow = Overflow(spool)
        self._told = False  # whether it was reported that the spool is incomplete
        self._unsent: list[bytes] = []
        self._unsent_size = 0
        self._lock = threading.RLock()
        self._awake = Wake()
        self._streams = {
            "stdout": Spooled(spool / "stdout", 1),
            "stderr": Spooled(spool / "stderr", 2),
        }
        for stream in self._streams.values():
            stream.raise_interrupt = self._raise_interrupt
        self._ends_cell: BaseException | None = None  # the error that the next SIGINT raises
        self.is_interrupted = False  # an interrupt was raised in the cell, which may catch it
        # The SIGINT handler while a cell runs.
        self.handles_interrupt: Callable[[int, Any], None] = self.interrupt
        self._set_interrupt(None)
        self.stdout = RankStream(self._streams["stdout"], "stdout", self._wake)
        self.stderr = RankStream(self._streams["stderr"], "stderr", self._wake)
        self._cstdio = CStdio()
        self._pid = os.getpid()
        os.register_at_fork(before=self._drain, after_in_child=self._after_fork)
        self._thread = threading.Thread(target=self._pump, name="rankroom-report", daemon=True)

    def install(self) -> None:
        """Redirect this rank's output to this reporter, and start its thread."""
        sys.stdout = sys.__stdout__ = self.stdout  # type: ignore[misc]
        sys.stderr = sys.__stderr__ = self.stderr  # type: ignore[misc]
        for owner, name in PROCESS_STARTERS:
            setattr(owner, name, self._draining(getattr(owner, name)))
        self._thread.start()

    def begin(self, run: str, start: int, seq: int = 0, starts: int = 0) -> None:
        """Start a run; `start` (epoch microseconds) is the zero of its events' times.

        Output written after the previous run's end belongs to this one, with negative times. If
        `starts` earlier processes of this rank died in the run, they have reported `seq` events.
        """
        with self._lock:
            for stream in self._streams.values():
                stream.trim()
            self._file = self._open(run)
            self._start, self._at, self._end = start, 0, 0
            self._seq = self._before = seq
            self._told = False
            self._broken.clear()
            self._overflow.begin(run)
            self.run = run
            self._ends_cell = None
            self.is_interrupted = False
            self._set_interrupt(None)
            read_from = {name: stream.position for name, stream in self._streams.items()}
            self._append("status", time_ns() // 1000, state="running", spool=read_from)
            metrics.points.begin(starts)
            self._log_metrics.begin()
            spans.recorder.begin(starts)
            self._reported = int(epoch_s() / REPORT_INTERVAL_S)

    def prepare(self) -> None:
        """Create the spool file of the next run in advance, to save its cell the wait."""
        with self._lock, contextlib.suppress(OSError):
            if self._blank < 0:
                self._blank = os.open(self._blank_name, _CREATE_FLAGS, 0o600)

    def _open(self, run: str) -> int:
        path = f"{self.spool}/{run}.jsonl"  # a Path would take a tenth of an empty cell's time
        file, self._blank = self._blank, -1
        if file >= 0:
            try:
                os.rename(self._blank_name, path)  # noqa: PTH104
                return file
            except OSError:
                os.close(file)
        with contextlib.suppress(OSError):
            return os.open(path, _CREATE_FLAGS, 0o600)
        return -1  # each write will fail and report why

    def is_forked(self) -> bool:
        """Whether this process is not the rank's own, but forked from it."""
        return os.getpid() != self._pid

    def emit(self, kind: str, **fields: Any) -> None:
        """Add an event, timed now; outside a run it is dropped, as there is no record for it."""
        if self.is_forked():
            return
        with self._lock:
            if self.run is None:
                return
            self._take_in()
            self._append(kind, time_ns() // 1000, **fields)
        self._awake.set()
        if self._interrupt is not None:
            self._raise_interrupt()

    def emit_now(self, kind: str, **fields: Any) -> None:
        """Add an event and send it at once, as it cannot wait for a batch."""
        self.emit(kind, **fields)
        with self._lock:
            if self.run is not None and not self.is_forked():
                self._flush()
        if self._interrupt is not None:
            self._raise_interrupt()

    def end(self, state: str, at: int | None = None, **fields: Any) -> None:
        """Add the run's last event; all events have been sent when this returns.

        `at` is when the cell ended (epoch microseconds), by default now.
        """
        if self.is_forked():
            return
        with self._lock:
            if self.run is None:
                return
            self._take_in(final=True)
            metrics.points.settle()
            self._take_spans(last=True)
            spans.recorder.on = False
            self._append("status", at or time_ns() // 1000, state=state, **fields)
            self._flush(ended=True)
            if self._file >= 0:
                with contextlib.suppress(OSError):  # a quota, say: all has been sent already
                    os.close(self._file)
            self._file, self.run = -1, None

    def _take_in(self, final: bool = False) -> None:
        """Turn all that was printed until now into events."""
        self.stdout.flush()
        self.stderr.flush()
        self._cstdio.flush()
        now = [(each, each.size) for each in self._streams.values()]
        while self._take_turn(final) and any(each.position < size for each, size in now):
            pass

    def _take_turn(self, final: bool = False) -> bool:
        """Turn what was printed into events, up to a limit; return whether there was anything."""
        self.stdout.flush()
        self.stderr.flush()
        self._cstdio.flush()
        troubles = [stream.trouble for stream in self._streams.values()]
        pieces = [
            (piece.t, name, piece)
            for name, stream in self._streams.items()
            for piece in stream.read(final)
        ]
        pieces.sort(key=lambda item: item[0])
        for t, name, piece in pieces:
            with contextlib.suppress(ValueError):  # lose a metric rather than a line
                self._log_metrics.take(t, name, piece.text)
            self._append("log", t, stream=name, text=piece.text, to=piece.to)
        # Reading tries the disk again, so some may be over by now, and others new.
        troubles += [stream.trouble for stream in self._streams.values()]
        for trouble in filter(None, troubles):
            self._tell(trouble)
        return bool(pieces)

    def _take_spans(self, last: bool = False) -> None:
        for source in self.sources:
            if source in self._broken:
                continue
            try:
                source()
            except Exception as error:  # the timeline may be incomplete, but the cell must not fail
                self._broken.append(source)
                spans.recorder.note(f"spans are missing from rank {self.rank}: {error!r}")
        now = time_ns() // 1000
        for fields in spans.recorder.take(self._start, last):
            columns = {key: fields.pop(key) for key in ("name", "start", "dur")}
            at = now - self._start
            try:
                line = spans_line(self.rank, self._seq, at, fields, columns)
            except (TypeError, ValueError) as error:  # it would end this thread, or the cell
                spans.recorder.note(f"details of spans are missing from rank {self.rank}: {error}")
                # Names are defined only once: later spans refer to these, too.
                fields["define"] = [{"name": each["name"]} for each in fields["define"]]
                line = spans_line(self.rank, self._seq, at, fields, columns)
            self._add(line)
        for fields in metrics.points.take(self._start):
            self._append("metrics", now, **fields)
        for note in spans.recorder.new_notes():
            self._append("mark", now, name="note", args={"text": note})

    def _append(self, kind: str, t: int, **fields: Any) -> None:
        self._add(event_line(kind, self.rank, self._seq, t - self._start, **fields))

    def _add(self, line: bytes) -> None:
        """Add this rank's next event, as a line."""
        self._seq += 1
        # On disk before anything else: it is kept even if the rank is killed now.
        trouble = self._keep(line)
        self._unsent.append(line)
        self._unsent_size += len(line)
        if trouble:
            self._tell(trouble)
        if self._unsent_size > MAX_BATCH_BYTES:
            self._flush()

    def _keep(self, line: bytes) -> str:
        """Write `line` to its place in the run's spool file; return why that failed, if it did."""
        begin, self._end = self._end, self._end + len(line)
        if self._told:  # before trying the disk: the rank may be killed meanwhile
            self._overflow.add(begin, line)
        place, rest = begin, line
        try:
            while rest:
                written = os.pwrite(self._file, rest, place)
                place, rest = place + written, rest[written:]
        except OSError as error:
            if not self._told:
                self._overflow.add(begin, line)
            return f"{error.strerror or error}: {self.spool}"
        return ""

    def _tell(self, trouble: str) -> None:
        """Report, once per run, that the spool is incomplete: events not received are lost."""
        if not self._told:
            self._told = True
            now = time_ns() // 1000
            self._append("mark", now, name="unspooled", args={"why": trouble})

    def _flush(self, ended: bool = False) -> None:
        if not self._unsent:
            return
        lines = b"".join(self._unsent)
        self._unsent.clear()
        self._unsent_size = 0
        header = {"run": self.run, "rank": self.rank, "at": self._at, "ended": ended}
        self._at += len(lines)
        self._send(header, lines)

    def interrupt(
        self, number: int, frame: Any, raises: type[BaseException] = KeyboardInterrupt
    ) -> None:
        """Handle SIGINT while a cell runs: raise `raises`, or the error of `end_cell`.

        In the middle of a report, half of which would be lost, it is raised at the report's end.
        """
        self._set_interrupt(self.ends_with() or raises)
        self._raise_interrupt()

    def end_cell(self, error: BaseException) -> bool:
        """Make the main thread raise `error` in the cell as soon as it runs Python code there;
        called from another thread. Returns False where the cell has its own SIGINT handler, and
        nothing is done."""
        handler = signal.getsignal(signal.SIGINT)
        if handler == self.handles_interrupt:
            self._ends_cell = error
        elif handler is not signal.default_int_handler:  # which ends the cell as an interrupt does
            return not callable(handler)  # interrupts are ignored: the cell has ended already
        os.kill(os.getpid(), signal.SIGINT)
        return True

    def ends_with(self) -> BaseException | None:
        """Return, once, the error that `end_cell` sent with a SIGINT; None for an interrupt."""
        error, self._ends_cell = self._ends_cell, None
        return error

    def _set_interrupt(self, raises: BaseException | type[BaseException] | None) -> None:
        self._interrupt = raises
        for stream in self._streams.values():
            stream.interrupted = raises is not None

    def _raise_interrupt(self) -> None:
        is_main = threading.current_thread() is threading.main_thread()
        raises = self._interrupt
        if is_main and raises is not None and not self._is_reporting():
            self._set_interrupt(None)
            self.is_interrupted |= isinstance(raises, type)
            raise raises

    def _is_reporting(self) -> bool:
        """Whether this thread is in the middle of a report."""
        locks = (self._lock, *(stream.lock for stream in self._streams.values()))
        return any(lock._is_owned() for lock in locks)  # type: ignore[attr-defined]

    def _wake(self) -> None:
        self._awake.set()

    def _pump(self) -> None:
        while True:
            try:
                self._report()
            except Exception as error:  # without this thread, all would wait for the cell's end
                spans.recorder.note(REPORT_FAILED.format(rank=self.rank, error=error))
                sleep(BATCH_INTERVAL_S)

    def _report(self) -> None:
        sent, came = 0.0, False
        while True:
            self._awake.wait(self._pause(came))
            pause = sent + self._batch_s - monotonic()
            if pause > 0:
                sleep(pause)
                self._awake.wait(0)  # what has arrived during the pause is taken in now
            second = int(epoch_s() / REPORT_INTERVAL_S)
            is_due = second != self._reported
            self._reported = second  # first of all, so that what fails is not made again at once
            sample = self._sample(is_due)
            with self._lock:
                if self.run is None:
                    continue
                came = self._take_turn()
                if is_due:
                    for stream in self._streams.values():
                        stream.trim()
                    self._take_spans()
                    if sample and self.run == self._sampled:
                        self._append("sample", time_ns() // 1000, **sample)
                if self._seq > self._before + 1 and self._unsent:
                    # Not for "running" alone: the first line would then wait for the next batch.
                    self._flush()
                    sent = monotonic()

    def _pause(self, came: bool) -> float:
        """Return the seconds until the next poll; `came` tells whether the last one found output.

        Quiet ranks poll, and report, at the same clock times: a rank that does so delays those that
        train with it, and if all do so at the same time, they are delayed only once.
        """
        if self.run is None:
            return IDLE_POLL_INTERVAL_S
        return self._batch_s if came else QUIET_POLL_INTERVAL_S - epoch_s() % QUIET_POLL_INTERVAL_S

    def _sample(self, is_due: bool) -> dict[str, Any] | None:
        """Return how busy this rank was since the last sample of the same run, if one is due;
        called on the reporting thread only."""
        if self.sampler is None or self.run is None:
            return None
        if self._sampled != self.run:
            self._sampled = self.run
            self.sampler.start()
        # Over too short a time, CPU utilization would mean nothing.
        return (
            self.sampler.sample()
            if is_due and self.sampler.seconds > REPORT_INTERVAL_S / 2
            else None
        )

    def _drain(self) -> None:
        """Write buffered output to the spools, so that it precedes what a child prints."""
        for stream in self._streams.values():
            stream.drain()

    def _draining(self, starts_child: Callable[..., Any]) -> Callable[..., Any]:
        @functools.wraps(starts_child)
        def drained(*args: Any, **kwargs: Any) -> Any:
            self._drain()
            return starts_child(*args, **kwargs)

        return drained

    def _after_fork(self) -> None:
        self._lock = threading.RLock()
        self._awake = Wake()
        for stream in (self.stdout, self.stderr):
            stream.after_fork()


REPORT_FAILED = "a report of rank {rank} failed, and was repeated a moment later: {error!r}"
