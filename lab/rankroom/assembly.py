"""Puts together what the ranks of one run report: in order, each byte once, none missing.

Each rank numbers the bytes it reports. What is missing in between is read from the rank's spool;
when a rank dies, so are its last words.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path

from rankroom.rank.held import left_in

Spool = Callable[[int], "Path | None"]


class Assembly:
    """The reports of a run's ranks.

    `spool(rank)` is the folder of a rank's spool if this process can read it, else None;
    `note(text)` is told what could not be had.
    """

    def __init__(
        self, run: str, ranks: Iterable[int], spool: Spool, note: Callable[[str], None]
    ) -> None:
        self._file = f"{run}.jsonl"
        self._spool = spool
        self._note = note
        self._received = dict.fromkeys(ranks, 0)

    def take(self, rank: int, at: int, lines: bytes) -> bytes:
        """What is new in a batch that begins at byte `at`, with what was missing before it."""
        have = self._received[rank]
        end = at + len(lines)
        if end <= have:
            return b""
        if at <= have:
            self._received[rank] = end
            return lines[have - at :]
        missing = self._read(rank, have, at)
        if len(missing) < at - have:
            self._note(f"{at - have - len(missing):,} bytes of rank {rank} were lost on the way")
        self._received[rank] = end
        return missing + lines

    def rest(self, rank: int) -> bytes:
        """Everything in the rank's spool that has not been reported."""
        data = self._read(rank, self._received[rank])
        self._received[rank] += len(data)
        return data

    def last_words(self, rank: int, reported: dict[str, int]) -> Iterator[tuple[str, str]]:
        """Stream and text that the rank wrote but had no time to report.

        `reported` says for each stream up to which byte its output is known.
        """
        folder = self._spool(rank)
        if folder is None:
            self._note(f"the last output of rank {rank} may be missing: its spool is elsewhere")
            return
        for stream, begin in reported.items():
            with contextlib.suppress(OSError), (folder / stream).open("rb") as file:
                file.seek(begin)
                data = file.read() + left_in(folder / stream)
                text = data.decode("utf-8", "backslashreplace")
                if text:
                    yield stream, text

    def clear(self) -> None:
        """The record holds everything: the ranks' copies of this run can go."""
        for rank in self._received:
            folder = self._spool(rank)
            if folder is not None:
                with contextlib.suppress(OSError):
                    (folder / self._file).unlink()

    def _read(self, rank: int, begin: int, end: int | None = None) -> bytes:
        """Whole lines of the rank's spool from byte `begin`."""
        folder = self._spool(rank)
        data = b""
        if folder is not None:
            with contextlib.suppress(OSError), (folder / self._file).open("rb") as file:
                file.seek(begin)
                data = file.read() if end is None else file.read(end - begin)
        return data[: data.rfind(b"\n") + 1]
