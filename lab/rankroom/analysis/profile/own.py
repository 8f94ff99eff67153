"""The user's own spans: how long each rank spent in them while nothing held it up."""

from __future__ import annotations

from rankroom.analysis.profile.intervals import both, length, union
from rankroom.analysis.profile.shares import Shares

CATEGORY = "user"
LONGEST = 40  # characters of a name that is said in a sentence


def own_spans(shares: Shares, who: list[int], cost: int) -> dict[str, dict[int, int]]:
    """By name the microseconds of each rank, of spans that may cost so much on the ranks `who`."""
    timeline = shares.timeline
    longest: dict[str, int] = {}
    for rank in who:
        lane = timeline.lane(rank, CATEGORY)
        for number, start, end in zip(lane.name, lane.start, lane.end, strict=True):
            name = timeline.named(rank, number)["name"]
            longest[name] = longest.get(name, 0) + end - start
    chosen = [name for name, dur in longest.items() if 2 * dur >= cost and _is_plain(name)]
    if not chosen:
        return {}
    found: dict[str, dict[int, int]] = {name: {} for name in chosen}
    for rank, times in shares.ranks.items():
        free = union([*times.compute, *times.data])
        lane = timeline.lane(rank, CATEGORY)
        spans: dict[str, list[tuple[int, int]]] = {name: [] for name in chosen}
        for number, start, end in zip(lane.name, lane.start, lane.end, strict=True):
            if (name := timeline.named(rank, number)["name"]) in spans:
                spans[name].append((start, end))
        for name, intervals in spans.items():
            found[name][rank] = length(both(union(intervals), free))
    return found


def _is_plain(name: str) -> bool:
    return 0 < len(name) <= LONGEST and all(c >= " " and c != "\x7f" for c in name)
