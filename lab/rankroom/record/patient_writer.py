"""A record writer for disks that are full for a while: what they refuse is buffered in memory."""

from __future__ import annotations

from collections import deque

from rankroom.errors import RecordError, UnwrittenError
from rankroom.record.model import RunInfo
from rankroom.record.store import Writer

MAX_BUFFERED_BYTES = 64 << 20  # bytes buffered in memory at most; the ranks' spools hold the rest


class PatientWriter:
    """A Writer that buffers what the disk refuses, and writes it in order once there is space."""

    def __init__(self, writer: Writer) -> None:
        self._writer = writer
        self._waiting: deque[bytes] = deque()
        self._size = 0
        self._trouble = ""

    def append(self, lines: bytes) -> None:
        """Append whole JSON lines. Raises RecordError, and drops these lines, when the buffer is
        full."""
        if not self._catch_up():
            self._keep(lines)
            return
        try:
            self._writer.append(lines)
        except UnwrittenError as error:
            self._trouble = str(error)
            self._keep(error.rest)

    def update(self, run: RunInfo) -> None:
        """Replace run.json. Raises RecordError when the disk refuses it."""
        self._writer.update(run)

    def finish(self, run: RunInfo) -> None:
        """Write all buffered lines, then the run's final state. Raises RecordError when the disk
        refuses them; it may then be called again."""
        if not self._catch_up():
            raise RecordError(self._trouble)
        self._writer.finish(run)

    def close(self) -> None:
        """Close the file."""
        self._writer.close()

    def _keep(self, lines: bytes) -> None:
        if self._size + len(lines) > MAX_BUFFERED_BYTES:
            raise RecordError(self._trouble)
        self._waiting.append(lines)
        self._size += len(lines)

    def _catch_up(self) -> bool:
        while self._waiting:
            lines = self._waiting[0]
            try:
                self._writer.append(lines)
            except UnwrittenError as error:
                self._trouble = str(error)
                self._size -= len(lines) - len(error.rest)
                self._waiting[0] = error.rest
                return False
            self._waiting.popleft()
            self._size -= len(lines)
        return True
