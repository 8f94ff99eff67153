"""The last events that a full disk refused of a run, kept in memory that outlives the process.

They are on the wire only. A rank that is killed before they have left would take them along; the
operating system still has this memory then, and `left_in` finds it.
"""

from __future__ import annotations

import contextlib
import struct
from collections import deque
from pathlib import Path

from rankroom.reporting.flood_buffer import SIZE as HELD
from rankroom.reporting.flood_buffer import mapped

SIZE = 4 * HELD  # of events; one that holds all that a flood held back fits
_HEAD = struct.Struct("64sQQ")  # the run, and from which byte of its spool file to which


class Overflow:
    """The latest of the lines that did not get their place in a run's spool file.

    Byte `i` of that file stands at `i % SIZE` here. Nothing is kept where memory cannot be mapped.
    """

    def __init__(self, folder: Path) -> None:
        self._map = None
        with contextlib.suppress(OSError):
            self._map = mapped(_file(folder), _HEAD.size + SIZE)
        self.begin("")

    def begin(self, run: str) -> None:
        """Another run: what is here is forgotten."""
        self._run = run.encode()
        self._starts: deque[int] = deque()
        self._end = 0
        self._say(0, 0)

    def add(self, at: int, line: bytes) -> None:
        """Keep `line`, whose place is from byte `at`."""
        end = at + len(line)
        if self._map is None or len(line) > SIZE:
            return
        if at != self._end:
            self._starts.clear()
        self._starts.append(at)
        while self._starts[0] < end - SIZE:
            self._starts.popleft()
        # What is overwritten is given up before: the process may end between any two steps.
        self._say(self._starts[0], max(at, self._starts[0]))
        place = at % SIZE
        first = line[: SIZE - place]
        self._put(place, first)
        self._put(0, line[len(first) :])
        self._end = end
        self._say(self._starts[0], end)

    def _put(self, place: int, data: bytes) -> None:
        assert self._map is not None
        self._map[_HEAD.size + place : _HEAD.size + place + len(data)] = data

    def _say(self, begin: int, end: int) -> None:
        if self._map is not None:
            self._map[: _HEAD.size] = _HEAD.pack(self._run, begin, end)


def left_in(folder: Path, run: str) -> tuple[int, bytes]:
    """Whole lines that the rank of this spool folder kept of `run`, and from which byte on."""
    with contextlib.suppress(OSError), _file(folder).open("rb") as file:
        head = file.read(_HEAD.size)
        if len(head) == _HEAD.size:
            name, begin, end = _HEAD.unpack(head)
            if begin < end and name.rstrip(b"\0") == run.encode():
                data, place = file.read(), begin % SIZE
                return begin, (data[place:] + data[:place])[: end - begin]
    return 0, b""


def _file(folder: Path) -> Path:
    return folder / "spare"
