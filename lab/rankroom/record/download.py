"""The whole log of a run as one text: every line with its rank in front."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Iterator

from rankroom.record.model import Json

# A line longer than this is cut, and goes on behind another sign, so that no line fills the memory.
_LONG = 1 << 20
_BATCH = 1 << 18


def log_text(events: Iterable[Json], ranks: Collection[int] | None = None) -> Iterator[bytes]:
    """The log in pieces of some 100 KiB, lines as `rank │ text`; `ranks` None means all.

    Text is passed on as the rank wrote it, colours and carriage returns included.
    """
    open_lines: dict[tuple[int, str], _OpenLine] = {}
    out: list[str] = []
    held = 0
    for event in events:
        rank = event["rank"]
        if event["kind"] != "log" or (ranks is not None and rank not in ranks):
            continue
        line = open_lines.setdefault((rank, event["stream"]), _OpenLine(rank))
        first, *rest = event["text"].split("\n")
        line.add(first)
        for text in rest:
            out.append(line.close())
            line.add(text)
        if line.length > _LONG:
            out.append(line.close("┆"))
        held += len(event["text"])
        if held > _BATCH and out:  # not yet, where lines are in the middle
            yield _encode(out)
            out, held = [], 0
    out += [line.close() for line in open_lines.values() if line.length]
    if out:
        yield _encode(out)


class _OpenLine:
    """The line that one stream of one rank is in the middle of, in pieces."""

    def __init__(self, rank: int) -> None:
        self.length = 0
        self._rank = rank
        self._sign = "│"
        self._pieces: list[str] = []

    def add(self, text: str) -> None:
        self._pieces.append(text)
        self.length += len(text)

    def close(self, next_sign: str = "│") -> str:
        text = f"{self._rank} {self._sign} {''.join(self._pieces)}\n"
        self.length, self._sign, self._pieces = 0, next_sign, []
        return text


def _encode(lines: list[str]) -> bytes:
    return "".join(lines).encode("utf-8", "backslashreplace")
