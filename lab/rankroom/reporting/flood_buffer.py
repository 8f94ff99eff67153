"""Lines of a flood, buffered for a moment in memory that outlives the process.

A system call for each line would cost more than the rest of printing. So in a flood, lines are put
into a file that is mapped into memory, and written to the spool together: within 2 ms while the
flood lasts, and with the next batch when it stops. After a SIGKILL the operating system still has
the file's contents, and `left_in` reads them.
"""

from __future__ import annotations

import contextlib
import mmap
import os
from collections.abc import Callable
from pathlib import Path

BUFFER_BYTES = 64 << 10
# Bytes of the head, two integers: where the data ends; and, while it is being moved to the spool, 1
# + the spool's size before that, else 0.
_HEADER_BYTES = 16


class FloodBuffer:
    """The bytes buffered for one spool. Not thread-safe: the caller holds a lock.

    Nothing is ever buffered where memory cannot be mapped or the disk is full.
    """

    def __init__(self, spool: Path) -> None:
        self._size = BUFFER_BYTES
        try:
            self._map = mapped(beside(spool), BUFFER_BYTES)
        except OSError:
            self._size, self._map = 0, mmap.mmap(-1, BUFFER_BYTES)
        self._head = memoryview(self._map)[:_HEADER_BYTES].cast("Q")
        self._end = self._head[0] = _HEADER_BYTES

    def __bool__(self) -> bool:
        return self._end > _HEADER_BYTES

    def add(self, data: bytes) -> bool:
        """Buffer `data`; return False if it does not fit."""
        begin = self._end
        end = begin + len(data)
        if end > self._size:
            return False
        self._map[begin:end] = data
        # After the data: the process may end between any two of these steps.
        self._head[0] = self._end = end
        return True

    def move(self, write: Callable[[bytes], None], size: int) -> None:
        """Pass everything to `write`, which appends it to the spool, now `size` bytes long."""
        data = self._map[_HEADER_BYTES : self._end]
        self._head[1] = size + 1
        self._end = _HEADER_BYTES
        try:
            write(data)
        finally:
            # Empty again, unless a signal handler has printed during `write`.
            self._head[0] = self._end
            self._head[1] = 0

    def leave(self) -> None:
        """In a forked child: stop buffering, as the memory and its contents are the parent's."""
        self._size, self._end = 0, _HEADER_BYTES


def left_in(spool: Path) -> bytes:
    """Return what a process that has ended had buffered and not yet written to `spool`."""
    with contextlib.suppress(OSError):
        raw = beside(spool).read_bytes()
        if len(raw) < BUFFER_BYTES:  # it could not be allocated on a full disk
            return b""
        end, moving = memoryview(raw)[:_HEADER_BYTES].cast("Q")
        held = raw[_HEADER_BYTES:end]
        if not moving or not held:
            return held
        with spool.open("rb") as file:
            file.seek(moving - 1)
            moved = file.read()
        if held in moved:
            return b""
        return held[len(moved) :] if held.startswith(moved) else held
    return b""


def beside(spool: Path) -> Path:
    """Return the path of the mapped file."""
    return spool.with_name(f"{spool.name}.held")


def mapped(path: Path, size: int) -> mmap.mmap:
    """Create a file of `size` bytes and map it into memory. Raises OSError if there is no space."""
    fd = os.open(path, os.O_RDWR | os.O_CREAT | os.O_TRUNC, 0o600)
    try:
        # Allocate the blocks now: if the disk were full later, a mere assignment to the memory
        # would kill the process.
        os.posix_fallocate(fd, 0, size)
        return mmap.mmap(fd, size)
    finally:
        os.close(fd)
