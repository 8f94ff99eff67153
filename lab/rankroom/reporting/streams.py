"""A rank's stdout and stderr: output is spooled as soon as a line ends, whatever wrote it.

File descriptors 1 and 2 point at two append-only spool files, so the output of C libraries and
child processes, and the last output before a SIGKILL, end up in the same place as Python's own.
`Spooled.read` turns new bytes into pieces of text with the time at which they were written. Bytes
that a full disk refuses are held in memory for `read`: they are reported, but not spooled.
"""

from __future__ import annotations

import codecs
import contextlib
import io
import os
import threading
import time
from collections import deque
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, NamedTuple

from rankroom.reporting.flood_buffer import FloodBuffer

MAX_PIECE_BYTES = 1 << 20  # bytes in one log event at most, so that a 100 MB line stays manageable
# A time mark at most every 2 ms: cheap in floods, exact for slow prints.
TIME_MARK_INTERVAL_NS = 2_000_000
MAX_TIME_MARKS = 10_000  # not read yet; beyond that, times between cells are less exact
# Lines written to disk one by one after a time mark; more of them are a flood.
LINES_BEFORE_FLOOD = 64
MAX_READ_BYTES = 16 << 20  # bytes that one `read` takes into memory at most
TRIM_THRESHOLD_BYTES = (
    64 << 20
)  # once this many more bytes have been read, their disk space is freed
_PUNCH_HOLE = 0x01 | 0x02  # Linux: FALLOC_FL_KEEP_SIZE and FALLOC_FL_PUNCH_HOLE


class Piece(NamedTuple):
    """Text written at `t` (epoch microseconds), ending at byte `to` of the spool."""

    t: int
    text: str
    to: int


class Refused(NamedTuple):
    """Bytes that the disk refused at time `t`, when the spool was `at` bytes long."""

    at: int
    t: int
    data: bytes


class Spooled:
    """One spool file behind one file descriptor, and how far it has been read."""

    def __init__(self, path: Path, fd: int) -> None:
        self.path = path
        self.fd = fd
        self.marks: deque[tuple[int, int]] = deque()
        self._file = self._open()
        self._read_fd = os.open(path, os.O_RDONLY)
        self._read_to = self._trimmed_to = 0
        self._read_time = time.time_ns() // 1000
        self._mark_until = 0
        self._since_mark = 0
        self._decoder = _decoder()
        self._buffer = FloodBuffer(path)
        self._refused: deque[Refused] = deque()
        self.trouble = ""  # why the disk refuses writes; empty while it accepts them
        # Re-entrant: a signal handler may print while its own thread holds the lock.
        self.lock = threading.RLock()
        self._size = 0
        self.wake: Callable[[], None] = lambda: None
        # Whether an interrupt arrived in the middle of a write, and the function that raises it.
        self.interrupted = False
        self.raise_interrupt: Callable[[], None] = lambda: None

    def _open(self) -> int:
        flags = os.O_WRONLY | os.O_APPEND | os.O_CREAT | os.O_TRUNC
        file = os.open(self.path, flags, 0o600)
        os.dup2(file, self.fd)
        return file

    def write(self, data: Any) -> int:
        """Append `data`; call `wake` when that sets a time mark.

        In a flood the bytes are held for a moment in the flood buffer, which survives the process.
        """
        if type(data) is not bytes:
            data = memoryview(data).tobytes()
        now = time.time_ns()
        with self.lock:
            # Also true if the clock has been set back.
            marks = not now < self._mark_until <= now + TIME_MARK_INTERVAL_NS
            if marks:
                self._mark_until = now + TIME_MARK_INTERVAL_NS
                self._since_mark = 0
            else:
                self._since_mark += 1
            # While the disk is full, the next `read` is soon enough to try the disk again.
            held = (self._since_mark > LINES_BEFORE_FLOOD or self.trouble) and self._buffer.add(
                data
            )
            if not held:
                self.drain()
                if marks:
                    if len(self.marks) >= MAX_TIME_MARKS:  # printed for days by a thread, say
                        self.marks = deque([*self.marks][::2])
                    self.marks.append((self.size, now // 1000))
                self._append(data)
        if marks and not held:
            self.wake()
        if self.interrupted:
            self.raise_interrupt()
        return len(data)

    def drain(self) -> None:
        """Write the contents of the flood buffer to the spool."""
        if self._buffer:
            with self.lock:
                self._buffer.move(self._append, self.size)

    def after_fork(self) -> None:
        """In a forked child: drop buffered bytes, which the parent writes, and renew the lock,
        which another thread may have held."""
        self._buffer.leave()
        self._refused.clear()
        self.lock = threading.RLock()

    def _append(self, data: bytes) -> None:
        # A user's print must not fail because the disk is full.
        try:
            written = os.write(self._file, data)
            while written < len(data):  # a signal arrived, or the disk is filling up
                data = data[written:]
                written = os.write(self._file, data)
            self.trouble = ""
        except OSError as error:
            self.trouble = self._words(error)
            at, now = self.size, time.time_ns() // 1000
            for begin in range(0, len(data), MAX_PIECE_BYTES):
                self._refused.append(Refused(at, now, data[begin : begin + MAX_PIECE_BYTES]))

    @property
    def size(self) -> int:
        """Bytes in the spool; the last known size while a file server does not report it."""
        try:
            self._size = os.fstat(self._file).st_size
        except OSError as error:
            self.trouble = self._words(error)
        return self._size

    def _words(self, error: OSError) -> str:
        return f"{error.strerror or error}: {self.path.parent}"

    @property
    def position(self) -> int:
        """Bytes read so far."""
        return self._read_to

    def read(self, final: bool = False) -> Iterator[Piece]:
        """Yield the text written since the last call, up to MAX_READ_BYTES; with `final`, also the
        bytes of an incomplete last character."""
        now = time.time_ns() // 1000
        self.drain()
        if (whole := self.size) < self._read_to:
            whole = self._restore(whole)
        size = min(whole, self._read_to + MAX_READ_BYTES)
        while True:
            begin = self._read_to
            t = self._read_time
            if self._refused and self._refused[0].at <= begin:
                _, t, data = self._refused.popleft()
                yield Piece(t, self._decoder.decode(data), begin)
                continue
            if begin >= size:
                break
            while self.marks and self.marks[0][0] <= begin:
                t = max(t, self.marks.popleft()[1])
            end = min(size, begin + MAX_PIECE_BYTES)
            if self.marks:
                end = min(end, self.marks[0][0])
            if self._refused:
                end = min(end, self._refused[0].at)
            try:
                data = os.pread(self._read_fd, end - begin, begin)
            except OSError as error:  # the data is still there: the next call tries again
                self.trouble = self._words(error)
                break
            if not data:
                break
            self._read_to += len(data)
            self._read_time = t
            text = self._decoder.decode(data)
            if text:
                yield Piece(t, text, self._read_to - len(self._decoder.getstate()[0]))
        self._read_time = now
        if final and size == whole and self._decoder.getstate()[0]:
            text = self._decoder.decode(b"", True)
            self._decoder = _decoder()
            yield Piece(now, text, self._read_to)

    def _restore(self, whole: int) -> int:
        """Move the `whole` bytes of a file that was emptied behind what was read before, so that
        positions in it stay the same; return its size then. A child does that by opening
        /dev/stderr by its name, as in `echo text > /dev/stderr`."""
        with self.lock:
            try:
                written = os.pread(self._read_fd, min(whole, MAX_READ_BYTES), 0)
                os.ftruncate(self._file, self._read_to)
            except OSError as error:
                self.trouble = self._words(error)
                return whole
            self.marks.clear()
            self._append(written)
            return self.size

    def trim(self) -> bool:
        """Free the disk space of what has been read, if it is TRIM_THRESHOLD_BYTES or more; return
        whether that was done.

        The file stays the same, with a hole: processes that were started long ago still write to
        it, and so may threads in C code. File systems without support for holes, such as NFS before
        4.2, keep all of it for the lifetime of the cluster.
        """
        much = self._read_to - self._trimmed_to
        if much < TRIM_THRESHOLD_BYTES or not punch_hole(self._file, self._trimmed_to, much):
            return False
        self._trimmed_to = self._read_to
        return True


def punch_hole(file: int, begin: int, size: int) -> bool:
    """Free the disk space of `size` bytes, which then read as zeros; return False on failure."""
    import ctypes

    try:
        fallocate = ctypes.CDLL(None).fallocate
    except (OSError, AttributeError):  # only Linux has it
        return False
    fallocate.argtypes = [ctypes.c_int, ctypes.c_int, ctypes.c_int64, ctypes.c_int64]
    return bool(fallocate(file, _PUNCH_HOLE, begin, size) == 0)


def _decoder() -> codecs.IncrementalDecoder:
    # Bytes that are not UTF-8 stay legible as \xNN instead of being replaced.
    return codecs.getincrementaldecoder("utf-8")("backslashreplace")


class RankStream(io.TextIOWrapper):
    """sys.stdout or sys.stderr of a rank: a complete line survives the process once print returns.

    The text layer is Python's own, in C: a flood costs little more than writing its bytes.
    """

    def __init__(self, spool: Spooled, name: str, wake: Callable[[], None]) -> None:
        spool.wake = wake
        self._raw = _Raw(spool, name)
        super().__init__(self._raw, "utf-8", "backslashreplace", newline="\n", line_buffering=True)

    def flush(self) -> None:
        """Write all that was printed to the spool, including incomplete lines and floods."""
        super().flush()
        self._raw.spool.drain()

    def close(self) -> None:
        """Only flush: a cell that closes its stdout must not close the rank's."""
        self.flush()

    def detach(self) -> Any:
        """Return the bytes layer; this stream stays usable, as the rank still prints to it."""
        self.flush()
        return self._raw

    def after_fork(self) -> None:
        """In a forked child: drop the incomplete line and all else that the parent will write."""
        self._raw.spool.after_fork()
        write, self._raw.write = self._raw.write, len  # type: ignore[method-assign, assignment]
        self.flush()
        self._raw.write = write  # type: ignore[method-assign]


class _Raw(io.RawIOBase):
    """sys.stdout.buffer: bytes go straight to the spool."""

    def __init__(self, spool: Spooled, name: str) -> None:
        self.spool = spool
        self.name = f"<{name}>"  # as libraries expect
        self.write = spool.write  # type: ignore[method-assign]

    def writable(self) -> bool:
        return True

    def fileno(self) -> int:
        """Return the real descriptor, so that subprocesses given this stream write to its spool."""
        self.spool.drain()
        return self.spool.fd

    def close(self) -> None:
        """Do nothing: a text layer that a cell creates over this one closes it when freed."""


class CStdio:
    """The C library's stdout and stderr: line-buffered, and flushed before the spool is read."""

    def __init__(self) -> None:
        import ctypes

        self._libc: Any = None
        self._files: tuple[Any, ...] = ()
        with contextlib.suppress(OSError, ValueError, AttributeError):
            self._libc = ctypes.CDLL(None)
            stdout, stderr = (
                ctypes.c_void_p.in_dll(self._libc, name) for name in ("stdout", "stderr")
            )
            line_buffered = 1
            self._libc.setvbuf(stdout, None, line_buffered, 0)
            self._files = stdout, stderr

    def flush(self) -> None:
        # Not all open files: another thread may be reading one, and hold its lock for hours.
        for file in self._files:
            self._libc.fflush(file)
