"""The rows of a profile that are about collectives: each kind of them, and who came last."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable

from rankroom.analysis.collectives import CATEGORY, Collective, key_of
from rankroom.analysis.profile.intervals import Interval, both, covered, length, union, without
from rankroom.analysis.profile.rows import Kind, Straggler
from rankroom.analysis.profile.shares import Shares
from rankroom.analysis.timeline import Timeline, whole


def kinds(shares: Shares) -> list[Kind]:
    """One row for each operation of each library, the most time first."""
    found: dict[tuple[str, str], list[Collective]] = {}
    for collective in shares.collectives:
        found.setdefault((collective.key.library, collective.key.op), []).append(collective)
    sizes = _sizes(shares.timeline)
    out = []
    for kind, same in found.items():
        spans: dict[int, list[Interval]] = {}
        waits: dict[int, list[Interval]] = {}
        transfers: dict[int, list[Interval]] = {}
        for collective in same:
            for place, rank in enumerate(collective.ranks):
                start, end = collective.arrivals[place], collective.ends[place]
                until = collective.until(place)
                spans.setdefault(rank, []).append((start, end))
                waits.setdefault(rank, []).append((start, until))
                transfers.setdefault(rank, []).append((until, end))
        transfer = _mean(shares, transfers.values())
        total, count = sizes.get(kind, (0, 0))
        each = total / count if count else None
        rate = len(same) * each / (transfer / 1e6) if each is not None and transfer else None
        times = _mean(shares, spans.values()), _mean(shares, waits.values()), transfer
        out.append(Kind(*kind, len(same), each, *times, rate))
    return sorted(out, key=lambda kind: (-kind.time, kind.library, kind.op))


def stragglers(shares: Shares) -> list[Straggler]:
    """The ranks that others waited for, the costliest first."""
    shared = shares.shared
    late: dict[int, list[Interval]] = {}
    last: Counter[int] = Counter()
    for collective in shared:
        rank = collective.straggler
        late.setdefault(rank, []).append((collective.last - collective.cost, collective.last))
        last[rank] += collective.spread > 0
    waiting = [times.waiting for times in shares.ranks.values()]
    anyone, several = covered(waiting, 1), covered(waiting, 2)
    out = []
    for rank, intervals in late.items():
        # Being late costs nothing while nobody waits, as with collectives behind computing.
        others = [*several, *without(anyone, shares.ranks[rank].waiting)]
        cost = length(both(union(intervals), union(others)))
        if cost:
            out.append(Straggler(rank, last[rank], len(shared), cost))
    return sorted(out, key=lambda straggler: (-straggler.cost, straggler.rank))


def _mean(shares: Shares, ranks: Iterable[list[Interval]]) -> int:
    """How long each rank's intervals are together, averaged over these ranks."""
    lengths = [length(shares.within(intervals)) for intervals in ranks]
    return sum(lengths) // len(lengths)


def _sizes(timeline: Timeline) -> dict[tuple[str, str], tuple[int, int]]:
    """For each kind, the bytes of all spans that say them, and how many do."""
    out: dict[tuple[str, str], tuple[int, int]] = {}
    for rank in timeline.ranks:
        for number, count in Counter(timeline.lane(rank, CATEGORY).name).items():
            named = timeline.named(rank, number)
            size = named.get("bytes")
            if whole(size) and size >= 0:
                key = key_of(named)
                total, seen = out.get((key.library, key.op), (0, 0))
                out[key.library, key.op] = total + int(size) * count, seen + count
    return out
