"""The overview of a long run's timeline: a coarse level of detail, shown while its spans are read.

The run is divided into parts of equal length, about as many as a picture has pixels. A span that
lasts at least as long as a part appears in the overview itself. Shorter ones that begin in the same
part, at the same depth, are merged into one block: it has the name of the longest of them, and
`busy` says how much of it they cover. record.schema.json defines the format.
"""

from __future__ import annotations

import json
from collections.abc import Iterator

import numpy as np
import numpy.typing as npt

from rankroom.analysis.collectives import CATEGORY, Calls, Collectives
from rankroom.analysis.timeline import Column, Timeline
from rankroom.record.model import Json

RULES = 2  # version of what a block is; an overview of another version is ignored
MIN_SPANS = 250_000  # with fewer, the spans themselves load as fast
MAX_PARTS, MIN_PARTS = 2048, 128
TARGET_BLOCKS = 400_000  # approximate total: some megabytes
MAX_DEPTH = 8  # levels; spans nested deeper share blocks with those that contain them
WAIT, TRANSFER = 0, 1  # name numbers of the parts of a collective
_PART_NAMES = [{"name": "wait"}, {"name": "transfer"}]
_SHOWN = ("name", "tensor")  # the fields of a name that a picture needs

Columns = tuple[Column, Column, Column]  # names, starts and ends, in order of the starts


def overview_lines(timeline: Timeline, collectives: Collectives, read: int) -> Iterator[str]:
    """Yield the lines of overview.jsonl for a record of `read` bytes: header first, then lanes."""
    head = {"rules": RULES, "read": read, "spans": timeline.count, "dropped": timeline.dropped}
    yield _line(head)
    width = part_width(timeline)
    for rank in timeline.ranks:
        first = len(_PART_NAMES)
        for cat, lane in timeline.lanes[rank].items():
            if cat == CATEGORY:
                columns, names = _cut(collectives.calls[rank]), _PART_NAMES
                base = 0
            else:
                columns, names = _renumbered(timeline, rank, lane.columns())
                base, first = first, first + len(names)
            yield _line({"rank": rank, "cat": cat, "from": base, "define": names}
                        | blocks(columns, width, base))  # fmt: skip


def part_width(timeline: Timeline) -> int:
    """Return the length of a part in µs: the more lanes, the fewer and longer the parts."""
    lanes = [lane for lanes in timeline.lanes.values() for lane in lanes.values() if len(lane)]
    if not lanes:
        return 1
    begin = min(min(lane.start) for lane in lanes)
    end = max(max(lane.end) for lane in lanes)
    parts = min(max(TARGET_BLOCKS // len(lanes), MIN_PARTS), MAX_PARTS)
    return max(1, -(-(end - begin) // parts))


def blocks(columns: Columns, width: int, base: int = 0) -> Json:
    """Return a lane's spans, with short ones in the same part of `width` µs merged into one block.

    The columns are those of a `spans` event, and `busy`; `base` is added to the name numbers.
    """
    name, start, end = columns
    depth = _depths(start, end)
    levels = (depth == level for level in range(int(depth.max(initial=0)) + 1))
    found = [_merged((name[at], start[at], end[at]), width) for at in levels]
    merged = np.concatenate(found, axis=1)
    # Of spans that begin together, the one that contains the others comes first.
    name, start, dur, busy = merged[:, np.argsort(merged[1], kind="stable")]
    return {
        "name": (name + base).tolist(),
        "start": np.diff(start, prepend=0).tolist(),
        "dur": dur.tolist(),
        "busy": busy.tolist() if (busy < dur).any() else [],
    }


def _depths(start: Column, end: Column) -> Column:
    """Return how many spans contain each span, MAX_DEPTH - 1 at most."""
    if (start[1:] >= end[:-1]).all():
        return np.zeros(len(start), np.int64)
    begun = np.arange(len(start))
    ended = np.searchsorted(np.sort(end), start, "right")
    depth: Column = np.clip(begun - ended, 0, MAX_DEPTH - 1)
    return depth


def _merged(columns: Columns, width: int) -> npt.NDArray[np.int64]:
    """Merge the short spans of one depth; return names, starts, durations and busy times."""
    name, start, end = columns
    if not len(start):
        return np.empty((4, 0), np.int64)
    dur = end - start
    each = np.arange(len(start))
    # Each long span gets a part number of its own, so that nothing is merged with it.
    part = np.where(dur < width, start // width, np.iinfo(np.int64).min + each)
    heads = np.flatnonzero(np.concatenate(([True], part[1:] != part[:-1])))
    longest = np.maximum.reduceat(dur, heads)
    counts = np.diff(heads, append=len(start))
    is_longest = dur == np.repeat(longest, counts)
    named = name[np.minimum.reduceat(np.where(is_longest, each, len(start)), heads)]
    lasting = np.maximum.reduceat(end, heads) - start[heads]
    busy = np.minimum(np.add.reduceat(dur, heads), lasting)
    return np.stack((named, start[heads], lasting, busy))


def _cut(calls: Calls) -> Columns:
    """Return a rank's collectives, each split into its wait and its transfer."""
    waits = calls.wait_end > calls.start
    moves = (calls.end > calls.wait_end) | ~waits
    start = np.concatenate((calls.start[waits], calls.wait_end[moves]))
    end = np.concatenate((calls.wait_end[waits], calls.end[moves]))
    name = np.repeat((WAIT, TRANSFER), (waits.sum(), moves.sum()))
    order = np.argsort(start, kind="stable")
    return name[order], start[order], end[order]


def _renumbered(timeline: Timeline, rank: int, columns: Columns) -> tuple[Columns, list[Json]]:
    """Return the columns with their names numbered from 0, and those names."""
    name, start, end = columns
    numbers, which = np.unique(name, return_inverse=True)
    named = (timeline.named(rank, number) for number in numbers.tolist())
    names = [{key: one[key] for key in _SHOWN if isinstance(one.get(key), str)} for one in named]
    return (which.reshape(-1), start, end), names


def _line(value: Json) -> str:
    return json.dumps(value, separators=(",", ":")) + "\n"
