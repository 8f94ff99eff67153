"""Assembles what the ranks of one run report: in order, each byte once, none missing.

Each rank numbers the bytes it reports. Gaps are filled from the rank's spool, and from what was
kept in memory while its disk was full; when a rank dies, so is its last output.
"""

from __future__ import annotations

import codecs
import contextlib
import os
import re
from collections.abc import Callable, Collection, Iterable, Iterator
from pathlib import Path
from typing import BinaryIO

from rankroom.reporting import flood_buffer, overflow
from rankroom.reporting.streams import MAX_PIECE_BYTES

# How every event begins, as `event_line` writes it; a newline within a text is always escaped.
_EVENT_HEAD_PATTERN = re.compile(rb'\{"kind":"\w+","rank":\d+,"seq":(\d+),')
Spool = Callable[[int], "Path | None"]


class Assembly:
    """The reports of a run's ranks.

    `spool(rank)` is the folder of a rank's spool if this process can read it, else None;
    `note(text)` is called with what is missing, `keep(error)` if it may still be in a spool that
    cannot be read now.
    """

    def __init__(
        self,
        run: str,
        ranks: Iterable[int],
        spool: Spool,
        note: Callable[[str], None],
        keep: Callable[[OSError], None],
    ) -> None:
        self._run = run
        self._file = f"{run}.jsonl"
        self._spool = spool
        self._note = note
        self._keep = keep
        self._received = dict.fromkeys(ranks, 0)

    def resume(self, rank: int, seq: int) -> None:
        """Continue where a record whose writer is gone stops: before the rank's event `seq`."""
        folder = self._spool(rank)
        if folder is not None:
            with self._reading(), (folder / self._file).open("rb") as file:
                self._received[rank] = _place_of(file, seq)

    def restart(self, rank: int) -> None:
        """Begin again at byte 0, as another process reports for this rank from here on."""
        self._received[rank] = 0
        # The process may end before it empties the spool of the one before it.
        if (folder := self._spool(rank)) is not None:
            with contextlib.suppress(OSError):
                (folder / self._file).unlink()

    def take(self, rank: int, at: int, lines: bytes) -> bytes:
        """Return what is new in a batch that begins at byte `at`, after what was missing before."""
        have = self._received[rank]
        end = at + len(lines)
        if end <= have:
            return b""
        if at <= have:
            self._received[rank] = end
            return lines[have - at :]
        missing, _ = self._read(rank, have, at)
        self._miss(rank, at - have - len(missing))
        self._received[rank] = end
        return missing + lines

    def rest(self, rank: int) -> bytes:
        """Return everything in the rank's spool that has not been reported."""
        data, size = self._read(rank, self._received[rank])
        self._miss(rank, size - len(data))
        self._received[rank] += size
        return data

    def last_words(self, rank: int, reported: dict[str, int]) -> Iterator[tuple[str, str, int]]:
        """Yield the output that the rank wrote but could not report: stream, text, end (bytes).

        `reported` says for each stream up to which byte its output is known.
        """
        folder = self._spool(rank)
        if folder is None:
            self._note(f"the last output of rank {rank} may be missing: its spool is elsewhere")
            return
        for stream, begin in reported.items():
            decoder = codecs.getincrementaldecoder("utf-8")("backslashreplace")
            to = begin
            for data in self._pieces(folder / stream, begin):
                to += len(data)
                if text := decoder.decode(data):
                    yield stream, text, to - len(decoder.getstate()[0])
            if text := decoder.decode(b"", final=True):
                yield stream, text, to

    def _pieces(self, stream: Path, begin: int) -> Iterator[bytes]:
        """Yield the bytes of a rank's stream from `begin` on, up to a megabyte at a time."""
        with self._reading(), stream.open("rb") as file:
            size = os.fstat(file.fileno()).st_size
            file.seek(begin)
            for place in range(begin, size, MAX_PIECE_BYTES):
                yield file.read(min(MAX_PIECE_BYTES, size - place))
            if held := flood_buffer.left_in(stream)[max(0, begin - size) :]:
                yield held

    def has_begun(self, rank: int) -> bool:
        """Return whether the rank has created its file of the run, which it does before it reports
        anything; True if that cannot be told now."""
        folder = self._spool(rank)
        try:
            return folder is not None and (folder / self._file).exists()
        except OSError:
            return True

    def taken(self, rank: int) -> int:
        """Return how many bytes of the rank's spool have been taken."""
        return self._received[rank]

    def clear(self, given_up: Collection[int] = ()) -> None:
        """Remove the ranks' spool files of this run, as the record holds everything.

        Those of ranks that were given up stay: such ranks may still write.
        """
        for rank in self._received.keys() - set(given_up):
            folder = self._spool(rank)
            if folder is not None:
                with contextlib.suppress(OSError):
                    (folder / self._file).unlink()

    @contextlib.contextmanager
    def _reading(self) -> Iterator[None]:
        """Handle errors while a spool file is read; it does not exist if nothing was written."""
        try:
            yield
        except FileNotFoundError:
            pass
        except OSError as error:
            self._keep(error)

    def _miss(self, rank: int, size: int) -> None:
        if size:
            self._note(f"{size:,} bytes of events from rank {rank} were lost")

    def _read(self, rank: int, begin: int, end: int | None = None) -> tuple[bytes, int]:
        """Return whole lines of the rank's spool from byte `begin`, and how many bytes they cover.

        They cover more than their length where the rank's disk was full.
        """
        folder = self._spool(rank)
        data = b""
        if folder is not None:
            with self._reading(), (folder / self._file).open("rb") as file:
                file.seek(begin)
                data = file.read() if end is None else file.read(end - begin)
            data = _filled(data, begin, end, *overflow.left_in(folder, self._run))
        data = data[: data.rfind(b"\n") + 1]
        return (_without_holes(data) if b"\0" in data else data), len(data)


def _without_holes(data: bytes) -> bytes:
    """Return the lines without what a full disk left in place of others: zeros, and before them the
    beginning of a line that no longer fit."""
    return b"\n".join(line.rpartition(b"\0")[2] for line in data.split(b"\n"))


def _filled(data: bytes, begin: int, end: int | None, at: int, kept: bytes) -> bytes:
    """Return a spool's bytes from `begin` on, with the bytes that were `kept` in memory put in
    place from byte `at` on."""
    if end is not None:
        kept = kept[: max(0, end - at)]
    kept, at = kept[max(0, begin - at) :], max(0, at - begin)
    if not kept:
        return data
    return data[:at].ljust(at, b"\0") + kept + data[at + len(kept) :]


def _place_of(file: BinaryIO, seq: int) -> int:
    """Return the offset of event `seq` or a later one; that of the end if there is none yet."""
    place = 0
    for line in file:
        head = _EVENT_HEAD_PATTERN.match(line, line.rfind(b"\0") + 1)
        if (head is not None and int(head[1]) >= seq) or not line.endswith(b"\n"):
            break
        place += len(line)
    return place
