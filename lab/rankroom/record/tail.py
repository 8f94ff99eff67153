"""Reading events.jsonl: whole lines after an offset, of a live or ended run, or single events."""

from __future__ import annotations

import asyncio
import contextlib
import os
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import NamedTuple

from rankroom.record.model import Json, RunInfo, RunState, parse_event

READ_LIMIT_BYTES = 1 << 20
# Bytes. No event is this long (a log event holds at most 1 MiB): a longer line is garbage, and
# skipped.
MAX_LINE_BYTES = 64 << 20
MIN_POLL_INTERVAL_S = 0.025
POLL_BACKOFF_FACTOR, MAX_POLL_INTERVAL_S = (
    1.3,
    0.05,
)  # back-off factor of the poll interval, and its maximum
_BLOCK_BYTES = 4 << 20
_LOG_EVENT_PREFIX = b'{"kind":"log"'  # as `event_line` begins
MAX_LATE_LOG_BYTES = (
    1 << 20
)  # bytes appended after a run that are checked for being log events only
# Seconds between two checks, while a reader waits, whether the run's owner is still alive.
OWNER_CHECK_INTERVAL_S = 1.0


def only_log_after(events: Path, read: int) -> bool:
    """Whether results computed from the first `read` bytes of `events` are still valid: after them
    there is nothing, or only log events printed after the run. Raises OSError."""
    size = events.stat().st_size
    if not 0 <= size - read <= MAX_LATE_LOG_BYTES:
        return False
    with events.open("rb") as file:
        file.seek(read)
        return all(line.startswith(_LOG_EVENT_PREFIX) for line in file)


class Chunk(NamedTuple):
    """Whole lines, the offset to read from next, the file's size, and the run's state, which was
    read before the lines.

    `changed` differs whenever run.json has been replaced.
    """

    data: bytes
    next: int
    size: int
    state: RunState
    changed: str = ""


class Tail:
    """A reader of events.jsonl whose position advances with each read."""

    def __init__(self, events: Path, load: Callable[[], RunInfo], after: int = 0) -> None:
        self.after = after
        self._events = events
        self._load = load
        self._seen = _Seen()

    def read(self, limit: int = READ_LIMIT_BYTES) -> Chunk:
        """Return the next lines, about `limit` bytes; a longer line is returned whole.

        An incomplete last line is held back while the run is live, and returned once it has ended.
        Raises RecordError when the record is gone or damaged.
        """
        # Read the state first: if the run has ended, all that it wrote is in the file by now.
        self._seen = self._look()
        changed = self._seen.changed
        state = self._load().state
        try:
            with self._events.open("rb") as file:
                size = os.fstat(file.fileno()).st_size
                self.after = min(max(self.after, 0), size)
                file.seek(self.after)
                data = file.read(min(limit, size - self.after))
                at_end = self.after + len(data) >= size
                cut = data.rfind(b"\n") + 1
                if not cut and not at_end:
                    more = file.readline(MAX_LINE_BYTES)
                    data += more
                    if data.endswith(b"\n") or len(more) == MAX_LINE_BYTES:
                        cut = len(data)
                    else:
                        at_end = True
        except FileNotFoundError:
            return Chunk(b"", self.after, 0, state, changed)
        if at_end and state != "running":
            cut = len(data)
        self.after += cut
        if at_end:  # an incomplete line does not count yet: the reader has all there is
            size = self.after
        data = data[:cut]
        if data and not data.endswith(b"\n"):
            data += b"\n"
        return Chunk(data, self.after, max(size, self.after), state, changed)

    async def next(
        self,
        limit: int = READ_LIMIT_BYTES,
        wait: float = 0.0,
        gone: Callable[[], bool] = lambda: False,
        known: str | None = None,
    ) -> Chunk:
        """Like `read`, but wait up to `wait` seconds for lines or the run's end, unless `gone()`.

        The wait also ends when run.json is not the version `known`, a `Chunk.changed` (by default
        that of the present one).
        """
        until = time.monotonic() + wait
        while True:
            chunk = await asyncio.to_thread(self.read, limit)
            known = chunk.changed if known is None else known
            if chunk.data or chunk.state != "running" or chunk.changed != known:
                return chunk
            recheck, pause = time.monotonic() + OWNER_CHECK_INTERVAL_S, MIN_POLL_INTERVAL_S
            # In a thread: a file system that does not respond must not block the server.
            while await asyncio.to_thread(self._look) == self._seen:
                if time.monotonic() >= min(until, recheck):
                    break
                if gone():
                    return chunk
                await asyncio.sleep(pause)
                pause = min(MAX_POLL_INTERVAL_S, pause * POLL_BACKOFF_FACTOR)
            if time.monotonic() >= until:
                return chunk

    def pause(self, seconds: float, until: float = float("inf")) -> None:
        """Sleep for `seconds`, and again while nothing changes, until `until` or a recheck is due.

        `until` is in `time.monotonic` seconds.
        """
        recheck = time.monotonic() + OWNER_CHECK_INTERVAL_S
        while True:
            time.sleep(seconds)
            if self._look() != self._seen or time.monotonic() >= min(until, recheck):
                return

    def _look(self) -> _Seen:
        try:
            run = self._events.with_name("run.json").stat()
            # Two replacements may fall within one tick of the file system's clock.
            changed = f"{run.st_mtime_ns}-{run.st_ino}"
        except OSError:
            changed = ""
        try:
            return _Seen(changed, self._events.stat().st_size)
        except OSError:
            return _Seen(changed, 0)


class _Seen(NamedTuple):
    """A cheap fingerprint of a record's files, which changes when they do."""

    changed: str = ""
    size: int = 0


class Events:
    """The events on those lines of a file that begin at or after byte `start`, and before `end`.

    Lines that start with one of `passed` are skipped. `dropped` counts lines that are not events or
    are longer than `longest` bytes; `at` is the present read position.
    """

    def __init__(
        self,
        path: Path,
        start: int = 0,
        end: int | None = None,
        longest: int = MAX_LINE_BYTES,
        passed: tuple[bytes, ...] = (),
    ) -> None:
        self.dropped = 0
        self.at = start
        self._longest = longest
        self._path = path
        self._start = start
        self._end = end
        self._passed = passed

    def __iter__(self) -> Iterator[Json]:
        self.dropped = 0
        whole = True
        try:
            file = self._path.open("rb")
        except FileNotFoundError:
            return
        with file:
            file.seek(self._start)
            self.at = self._start
            while self._end is None or self.at < self._end:
                line = file.readline(self._longest)
                if not line:
                    return
                self.at += len(line)
                starts, whole = whole, line.endswith(b"\n")
                if not starts:
                    continue  # the rest of a line that was too long, which was counted already
                if line.startswith(self._passed):
                    continue
                event = parse_event(line)
                if event is not None:
                    yield event
                elif line.strip():
                    self.dropped += 1


def lines_after(path: Path, begin: int) -> Iterator[tuple[list[bytes], int]]:
    """Yield the whole lines from byte `begin` on in batches, each with the offset of the next one.

    Yields nothing if there is no such file. Lines of over MAX_LINE_BYTES, such as the zeros that a
    crash of the machine may leave, are left out.
    """
    with contextlib.suppress(FileNotFoundError), path.open("rb") as file:
        file.seek(begin)
        rest, is_too_long = b"", False
        while piece := file.read(_BLOCK_BYTES):
            whole, end, rest = (rest + piece).rpartition(b"\n")
            lines = whole.split(b"\n") if end else []
            if end and is_too_long:
                lines, is_too_long = lines[1:], False
            if is_too_long or len(rest) > MAX_LINE_BYTES:
                rest, is_too_long = b"", True
            yield lines, file.tell() - len(rest)


def line_near_end(path: Path, *backs: int) -> int:
    """Return the offset of the first whole line in the last `backs[0]` bytes of a file.

    If no line begins there, the next of `backs` is tried; if none is found, returns the file's
    size. 0 if there is no such file.
    """
    with contextlib.suppress(FileNotFoundError), path.open("rb") as file:
        size = os.fstat(file.fileno()).st_size
        for back in backs:
            if back >= size:
                return 0
            file.seek(size - back)
            at = file.read(back).find(b"\n")
            if 0 <= at < back - 1:
                return size - back + at + 1
        return size
    return 0
