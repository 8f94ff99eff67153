"""How lists of ranks are written: `0,2-3` as typed, `0,2–3` as shown."""

from __future__ import annotations

import operator
import re
from collections.abc import Collection, Iterable

from rankroom.errors import UsageError

_PART = re.compile(r"(\d{1,9})(?:\s*[-–]\s*(\d{1,9}))?")


def parse_ranks(text: str, size: int) -> list[int]:
    """Return the ranks that `text` names, sorted, each once; `all` names every rank.

    Raises UsageError if a part is not a rank or a range, or is not in a cluster of `size` ranks.
    """
    if text.strip() == "all":
        return list(range(size))
    chosen: set[int] = set()
    for part in text.split(","):
        match = _PART.fullmatch(part.strip())
        if match is None:
            raise UsageError(NOT_RANKS.format(text=text, valid=_valid(size)))
        first = int(match[1])
        last = int(match[2] or first)
        if last < first:
            raise UsageError(BACKWARDS.format(text=text, first=first, last=last))
        if last >= size:
            raise UsageError(NO_SUCH_RANK.format(text=text, rank=last, valid=_valid(size)))
        chosen.update(range(first, last + 1))
    return sorted(chosen)


def choose_ranks(ranks: Iterable[int] | int | str | None, size: int) -> list[int]:
    """Return these ranks, sorted, each once; all for None. A single rank, or text as for
    `parse_ranks`, is accepted as well.

    Raises UsageError for a value that is not a rank, or is not in a cluster of `size` ranks, and if
    no rank is chosen.
    """
    if isinstance(ranks, str):
        return parse_ranks(ranks, size)
    try:
        every = range(size) if ranks is None else ranks
        numbers = every if isinstance(every, Iterable) else [every]
        chosen = sorted({operator.index(each) for each in numbers})  # NumPy's integers are not int
    except TypeError:
        raise UsageError(NOT_RANKS.format(text=ranks, valid=_valid(size))) from None
    if not chosen:
        raise UsageError("no ranks chosen: leave --ranks out for all of them")
    for rank in chosen:
        if not 0 <= rank < size:
            text = format_ranks(chosen)
            raise UsageError(NO_SUCH_RANK.format(text=text, rank=rank, valid=_valid(size)))
    return chosen


def format_ranks(ranks: Iterable[int]) -> str:
    """Format ranks for people: consecutive ones become `0–3`, and commas join the rest."""
    runs: list[tuple[int, int]] = []
    for rank in sorted(set(ranks)):
        if runs and runs[-1][1] == rank - 1:
            runs[-1] = runs[-1][0], rank
        else:
            runs.append((rank, rank))
    return ",".join(_range(first, last) for first, last in runs)


def count_ranks(count: int) -> str:
    """Return `1 rank` or `3 ranks`."""
    return "1 rank" if count == 1 else f"{count} ranks"


def name_ranks(ranks: Collection[int]) -> str:
    """Return `rank 3` or `ranks 0–1,3`."""
    return f"rank{'s' if len(ranks) > 1 else ''} {format_ranks(ranks)}"


def _range(first: int, last: int) -> str:
    return str(first) if first == last else f"{first}–{last}"


def _valid(size: int) -> str:
    return _range(0, size - 1) if size > 1 else "only rank 0"


NOT_RANKS = "cannot read {text!r} as ranks: write them like 0,2-3 (this cluster has {valid})"
BACKWARDS = "{text!r} counts backwards: write {last}-{first}"
NO_SUCH_RANK = "no rank {rank} (asked for {text!r}): this cluster has {valid}"
