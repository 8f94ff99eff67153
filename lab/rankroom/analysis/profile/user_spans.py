"""The user's own spans: how long each rank spent in them while it was not blocked."""

from __future__ import annotations

import numpy as np

from rankroom.analysis.profile.intervals import both, joined, length, union
from rankroom.analysis.profile.shares import Shares
from rankroom.analysis.timeline import Column

CATEGORY = "user"
MAX_NAME_LENGTH = 40  # characters of a name in the sentence


def own_spans(shares: Shares, who: list[int], cost: int) -> dict[str, dict[int, int]]:
    """Return by name each rank's µs in spans that may explain this cost on the ranks `who`."""
    longest: dict[str, int] = {}
    for rank in who:
        number, start, end = shares.timeline.lane(rank, CATEGORY).columns()
        for name, numbers in _names(shares, rank, number).items():
            mine = np.isin(number, numbers)
            longest[name] = longest.get(name, 0) + int((end[mine] - start[mine]).sum())
    chosen = [name for name, dur in longest.items() if 2 * dur >= cost and _is_plain(name)]
    if not chosen:
        return {}
    found: dict[str, dict[int, int]] = {name: {} for name in chosen}
    for rank, times in shares.ranks.items():
        free = joined(times.compute, times.data)
        number, start, end = shares.timeline.lane(rank, CATEGORY).columns()
        names = _names(shares, rank, number)
        for name in chosen:
            mine = np.isin(number, names.get(name, []))
            found[name][rank] = length(both(union(start[mine], end[mine]), free))
    return found


def _names(shares: Shares, rank: int, numbers: Column) -> dict[str, list[int]]:
    """Return for each name the numbers by which the rank refers to it."""
    out: dict[str, list[int]] = {}
    for number in np.unique(numbers).tolist():
        out.setdefault(shares.timeline.named(rank, number)["name"], []).append(number)
    return out


def _is_plain(name: str) -> bool:
    return 0 < len(name) <= MAX_NAME_LENGTH and all(c >= " " and c != "\x7f" for c in name)
