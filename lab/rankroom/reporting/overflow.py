"""The last events of a run that a full disk refused, kept in memory that outlives the process.

They are not in the spool, only sent: if the rank is killed first, they would be lost. The memory is
a mapped file, which the operating system still has then, so that `left_in` can read it.
"""

from __future__ import annotations

import contextlib
import struct
from collections import deque
from pathlib import Path

from rankroom.reporting.flood_buffer import BUFFER_BYTES as HELD
from rankroom.reporting.flood_buffer import mapped

OVERFLOW_BYTES = (
    4 * HELD
)  # bytes of events; fits an event with the whole contents of a flood buffer
_HEADER = struct.Struct("64sQQ")  # the run's id, and the range of bytes of its spool file held here


class Overflow:
    """A ring buffer of the latest lines that could not be written to a run's spool file.

    Byte `i` of that file is at `i % OVERFLOW_BYTES` here. Nothing is kept where memory cannot be
    mapped.
    """

    def __init__(self, folder: Path) -> None:
        self._map = None
        with contextlib.suppress(OSError):
            self._map = mapped(_file(folder), _HEADER.size + OVERFLOW_BYTES)
        self.begin("")

    def begin(self, run: str) -> None:
        """Start another run: drop what is held."""
        self._run = run.encode()
        self._starts: deque[int] = deque()
        self._end = 0
        self._say(0, 0)

    def add(self, at: int, line: bytes) -> None:
        """Keep `line`, which belongs at byte `at` of the spool file."""
        end = at + len(line)
        if self._map is None or len(line) > OVERFLOW_BYTES:
            return
        if at != self._end:
            self._starts.clear()
        self._starts.append(at)
        while self._starts[0] < end - OVERFLOW_BYTES:
            self._starts.popleft()
        # Give up what will be overwritten first: the process may end between any two steps.
        self._say(self._starts[0], max(at, self._starts[0]))
        place = at % OVERFLOW_BYTES
        first = line[: OVERFLOW_BYTES - place]
        self._put(place, first)
        self._put(0, line[len(first) :])
        self._end = end
        self._say(self._starts[0], end)

    def _put(self, place: int, data: bytes) -> None:
        assert self._map is not None
        self._map[_HEADER.size + place : _HEADER.size + place + len(data)] = data

    def _say(self, begin: int, end: int) -> None:
        if self._map is not None:
            self._map[: _HEADER.size] = _HEADER.pack(self._run, begin, end)


def left_in(folder: Path, run: str) -> tuple[int, bytes]:
    """Return the whole lines of `run` that the rank of this spool folder kept, and before them the
    offset at which they belong in its spool file."""
    with contextlib.suppress(OSError), _file(folder).open("rb") as file:
        head = file.read(_HEADER.size)
        if len(head) == _HEADER.size:
            name, begin, end = _HEADER.unpack(head)
            if begin < end and name.rstrip(b"\0") == run.encode():
                data, place = file.read(), begin % OVERFLOW_BYTES
                return begin, (data[place:] + data[:place])[: end - begin]
    return 0, b""


def _file(folder: Path) -> Path:
    return folder / "spare"
