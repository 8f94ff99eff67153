"""The lines that one stream of one rank may still change: the one being written and, for progress
bars below one another (tqdm's, with a position), those above to which the cursor moves back.

The view does the same (`extension/src/log/screen.ts`), and both are tested against
`tests/support/bars.json`.
"""

from __future__ import annotations

import re
from collections.abc import Iterator

from rankroom.display.text import MAX_RETURNS, clean, overprint

_UP = re.compile(r"\x1b\[(\d*)A")
_MAX_MOVE_UP_LINES = 20  # lines that a stream can move back up
_MAX_HELD_CHARS = 1 << 20  # characters held until they are forced to become lines, to bound memory


class Screen:
    """Takes the output of a stream, and yields its lines once they are final."""

    def __init__(self) -> None:
        self._begin()

    def _begin(self) -> None:
        self._lines: list[list[str]] = [[]]  # each in the pieces in which it arrived
        self._at = 0  # the line that is being written
        self._height = 0  # how far up the stream is known to move
        self._since_up = 0  # lines ended since it last moved up
        self._held = 0

    def feed(self, text: str) -> Iterator[str]:
        """Take more output; yield the lines that become final."""
        first, *moves = _UP.split(text)
        if moves:
            up = max(sum(map(_number, _UP.findall(line))) for line in text.split("\n"))
            self._height = max(self._height, min(_MAX_MOVE_UP_LINES, up))
        yield from self._write(first)
        for count, more in zip(moves[::2], moves[1::2], strict=True):
            self._go_up(_number(count))
            yield from self._write(more)
        if self._held > _MAX_HELD_CHARS:
            self._forget_overwritten()
            if self._held > _MAX_HELD_CHARS // 2:
                yield from self.rest()

    def rest(self) -> list[str]:
        """Return the remaining lines, without empty ones at the end, and start over."""
        while self._lines and not self._lines[-1]:
            self._lines.pop()
        left = [overprint("".join(line)) for line in self._lines]
        self._begin()
        return left

    def _forget_overwritten(self) -> None:
        """Drop what a progress bar has overwritten: it may use one line for hours."""
        for line in filter(None, self._lines):
            line[:] = ["\r".join("".join(line).split("\r")[-MAX_RETURNS:])]
        self._held = sum(len(piece) for line in self._lines for piece in line)

    def _write(self, text: str) -> Iterator[str]:
        *whole, rest = text.split("\n")
        for part in whole:
            self._append(part)
            self._at += 1
            self._since_up += 1
            yield from self._final()
        self._append(rest)

    def _go_up(self, count: int) -> None:
        """Move up in the same column; as in rich's output, a line's beginning stays a beginning."""
        is_at_begin = _is_at_begin(self._lines[self._at])
        self._at = max(0, self._at - count)
        self._since_up = 0
        if is_at_begin and self._lines[self._at]:
            self._lines[self._at].append("\r")

    def _append(self, text: str) -> None:
        if text:
            self._lines[self._at].append(text)
            self._held += len(text)

    def _final(self) -> Iterator[str]:
        """Yield the lines that are out of reach from the beginning of the next line."""
        if self._at == len(self._lines):
            self._lines.append([])
        elif self._lines[self._at]:
            self._lines[self._at].append("\r")
        if self._since_up > self._height + 1:
            # The bars are gone: lines are final at once again.
            self._height = 0
        while len(self._lines) > self._height + 1 and self._at > 0:
            line = "".join(self._lines.pop(0))
            self._at -= 1
            self._held -= len(line)
            yield overprint(line)


def _is_at_begin(pieces: list[str]) -> bool:
    """Whether what follows these pieces of a line is written at the line's beginning."""
    for piece in reversed(pieces):
        _, back, last = piece.rpartition("\r")
        if clean(last):
            return False
        if back:
            return True
    return True


def _number(count: str) -> int:
    return int(count[-4:] or 1) or 1
