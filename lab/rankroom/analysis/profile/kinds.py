"""The rows of a profile about collectives: each kind of them, and the stragglers."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from rankroom.analysis.profile.intervals import (
    both,
    covered,
    joined,
    length,
    union,
    without,
)  # fmt: skip
from rankroom.analysis.profile.rows import Kind, Straggler
from rankroom.analysis.profile.shares import Shares
from rankroom.analysis.timeline import whole


def kinds(shares: Shares) -> list[Kind]:
    """Return one row for each operation of each library, the one with the most time first."""
    collectives = shares.collectives
    named = sorted({(key.library, key.op) for key in collectives.keys})
    place = {kind: i for i, kind in enumerate(named)}
    of_key = np.array([place[key.library, key.op] for key in collectives.keys], np.int64)
    kind_of = of_key[collectives.key]
    count = np.bincount(kind_of[shares.chosen], minlength=len(named)).tolist()
    found: list[list[tuple[int, int, int]]] = [[] for _ in named]
    sizes = [[0, 0] for _ in named]
    chosen = [0] * len(named)  # calls of all ranks
    for rank, calls in shares.collectives.calls.items():
        of_call = kind_of[calls.collective]
        for kind in np.unique(of_call).tolist():
            mine = of_call == kind
            start, until, end = calls.start[mine], calls.wait_end[mine], calls.end[mine]
            edges = (start, end), (start, until), (until, end)
            times = [length(shares.cut_to_window(*each)) for each in edges]
            found[kind].append((times[0], times[1], times[2]))
            mine &= shares.chosen[calls.collective]
            chosen[kind] += int(mine.sum())
            for number, many in zip(
                *np.unique(calls.numbers[mine], return_counts=True), strict=True
            ):
                size = shares.timeline.named(rank, int(number)).get("bytes")
                if whole(size) and size >= 0:
                    sizes[kind][0] += int(size) * int(many)
                    sizes[kind][1] += int(many)
    out = []
    for kind, (library, op) in enumerate(named):
        time, wait, transfer = (_mean(each) for each in zip(*found[kind], strict=True))
        if not count[kind] and not time:
            continue  # occurs in other phases only
        total, seen = sizes[kind]
        each = total / seen if seen else None
        moving = sum(transfer for _, _, transfer in found[kind])
        rate = chosen[kind] * each / (moving / 1e6) if each is not None and moving else None
        out.append(Kind(library, op, count[kind], each, time, wait, transfer, rate))
    return sorted(out, key=lambda kind: (-kind.time, kind.library, kind.op))


def stragglers(shares: Shares) -> list[Straggler]:
    """Return the ranks that others waited for, the costliest first."""
    found = shares.collectives
    shared, chosen = found.shared, found.shared & shares.chosen
    many = int(chosen.sum())
    waiting = [times.waiting for times in shares.ranks.values()]
    anyone, several = covered(waiting, 1), covered(waiting, 2)
    out = []
    for rank in np.unique(found.straggler[shared]).tolist():
        mine = shared & (found.straggler == rank)
        # Count only the lateness that an error of the clocks cannot explain.
        cost = np.maximum(found.cost[mine] - shares.timeline.doubt[rank], 0)
        late = union(found.last[mine] - cost, found.last[mine])
        # Lateness costs nothing while no rank waits, as when computing hides a collective.
        others = joined(several, without(anyone, shares.ranks[rank].waiting))
        if total := length(both(late, others)):
            last = int((found.spread[mine & chosen] > 0).sum())
            out.append(Straggler(rank, last, many, total))
    return sorted(out, key=lambda straggler: (-straggler.cost, straggler.rank))


def _mean(values: Sequence[int]) -> int:
    return sum(values) // len(values)
