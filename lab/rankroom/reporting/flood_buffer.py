"""Lines of a flood, held back from the spool for a moment in memory that outlives the process.

A system call for each line costs more than all else that printing does. So in a flood lines are put
into a file that is mapped into memory, and go to the spool together: within 2 ms while the flood
lasts, and with the next batch when it stops. After a SIGKILL the operating system still has that
memory, and `left_in` finds it.
"""

from __future__ import annotations

import contextlib
import mmap
import os
from collections.abc import Callable
from pathlib import Path

SIZE = 64 << 10
_HEAD = 16  # where the bytes end; and while they are being moved, the spool's size before that, + 1


class FloodBuffer:
    """The bytes held back for one spool. The caller sees to it that one thread calls at a time.

    Nothing is ever held where memory cannot be mapped or the disk is full.
    """

    def __init__(self, spool: Path) -> None:
        self._size = SIZE
        try:
            self._map = mapped(beside(spool), SIZE)
        except OSError:
            self._size, self._map = 0, mmap.mmap(-1, SIZE)
        self._head = memoryview(self._map)[:_HEAD].cast("Q")
        self._end = self._head[0] = _HEAD

    def __bool__(self) -> bool:
        return self._end > _HEAD

    def add(self, data: bytes) -> bool:
        """Hold `data`; False if there is no room for it."""
        begin = self._end
        end = begin + len(data)
        if end > self._size:
            return False
        self._map[begin:end] = data
        # After the bytes: the process may end between any two of these steps.
        self._head[0] = self._end = end
        return True

    def move(self, write: Callable[[bytes], None], size: int) -> None:
        """Give everything to `write`, which appends it to the spool that holds `size` bytes."""
        data = self._map[_HEAD : self._end]
        self._head[1] = size + 1
        self._end = _HEAD
        try:
            write(data)
        finally:
            # At the beginning again, unless a signal handler printed meanwhile.
            self._head[0] = self._end
            self._head[1] = 0

    def leave(self) -> None:
        """In a forked child: the memory and what it holds are the parent's."""
        self._size, self._end = 0, _HEAD


def left_in(spool: Path) -> bytes:
    """What a process that is gone held back and did not bring into `spool` any more."""
    with contextlib.suppress(OSError):
        raw = beside(spool).read_bytes()
        if len(raw) < SIZE:  # a full disk had no room for it
            return b""
        end, moving = memoryview(raw)[:_HEAD].cast("Q")
        held = raw[_HEAD:end]
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
    """The file that is mapped."""
    return spool.with_name(f"{spool.name}.held")


def mapped(path: Path, size: int) -> mmap.mmap:
    """`size` bytes of memory that are this file's, too. Raises OSError if there is no room."""
    fd = os.open(path, os.O_RDWR | os.O_CREAT | os.O_TRUNC, 0o600)
    try:
        # Have the blocks now: a disk that is full later would end the process at a mere assignment.
        os.posix_fallocate(fd, 0, size)
        return mmap.mmap(fd, size)
    finally:
        os.close(fd)
