"""The whole log of a run as one text, with the rank in front of every line."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Iterator

from rankroom.record.model import Json

# Characters: a longer line is cut, and continued after the sign `┆`, so that no line fills memory.
_MAX_LINE_LENGTH = 1 << 20
_BATCH_LENGTH = 1 << 18


def log_text(events: Iterable[Json], ranks: Collection[int] | None = None) -> Iterator[bytes]:
    """Yield the log in pieces of some 100 KiB, its lines as `rank │ text`; `ranks` None means all.

    Text is unchanged, including colors and carriage returns.
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
        if line.length > _MAX_LINE_LENGTH:
            out.append(line.close("┆"))
        held += len(event["text"])
        if held > _BATCH_LENGTH and out:  # `out` is empty while no line has ended
            yield _encode(out)
            out, held = [], 0
    out += [line.close() for line in open_lines.values() if line.length]
    if out:
        yield _encode(out)


class _OpenLine:
    """The incomplete line of one stream of one rank, in pieces."""

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
