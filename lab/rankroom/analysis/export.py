"""A run's timeline as Chrome JSON, which Perfetto opens: one process per rank.

The file keeps the rules of importers, which silently drop events that break them: the spans of a
thread nest or do not overlap, no time is negative, thread numbers are unique across processes, and
text is valid for a strict parser. tests/support/perfetto_rules.py checks the same rules.
"""

from __future__ import annotations

import contextlib
import json
import math
import zlib
from collections.abc import Iterable, Iterator
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from rankroom.analysis.collectives import CATEGORY, Collective, Collectives
from rankroom.analysis.importers.foreign_names import RANKROOM_CATEGORIES, STRAGGLER_CATEGORY
from rankroom.analysis.timeline import TEN_YEARS_US, Timeline
from rankroom.record.model import Json, RankInfo, RunInfo, parse_event
from rankroom.record.store import Store

MAX_ROWS = 32  # of overlapping spans in one category; further ones get no thread
MAX_DEPTH = 500  # levels of nested spans; importers allow a few more
MIN_STRAGGLER_COST_US = 1000  # µs; a rank that costs the others less is not marked
MAX_FLOWS = 20_000  # arrows from stragglers to waiting ranks; the costliest collectives come first
PHASE_CATEGORY = "phase"  # category of the phases of collectives, drawn inside these where they fit
_PIECE_CHARS = 1 << 18
_KIND, _SAMPLE = b'{"kind":"', b'{"kind":"sample"'  # as `event_line` writes them
_EXACT = 1 << 63
_COUNTERS = {
    "cpu": ("CPU", "%"),
    "memory": ("memory", "bytes"),
    "gpu": ("GPU", "%"),
    "gpu_memory": ("GPU memory", "bytes"),
}

_Sample = tuple[int, int, dict[str, float]]


def chrome_json(store: Store, run_id: str) -> Iterator[bytes]:
    """Yield the timeline in pieces of some 256 KiB. Raises RecordError if the record is missing."""
    run = store.load(run_id)
    timeline = Timeline.read(run, store.paths(run_id).events)
    # Read twice rather than kept, as a long run has millions.
    samples = partial(_samples, run, store.paths(run_id).events)
    zero = min(zero_of(timeline), min((at for _, at, _ in samples()), default=0))
    head = _outer({"rankroom": _about(run, zero)})
    yield f'{{"otherData":{head},"traceEvents":[\n'.encode("utf-8", "replace")
    separator = b""
    for piece in pieces(_events(run, timeline, samples(), zero)):
        yield separator + piece.encode("utf-8", "replace")
        separator = b",\n"
    yield b"\n]}\n"


def zero_of(timeline: Timeline) -> int:
    """Return the earliest time, at most 0: a run begins at 0, but an inaccurate clock may put spans
    before that, which importers would drop."""
    starts = [min(lane.start) for lanes in timeline.lanes.values() for lane in lanes.values()]
    return min([0, *starts])


def compressed(pieces: Iterable[bytes]) -> Iterator[bytes]:
    """Yield the same bytes as a gzip file."""
    pack = zlib.compressobj(6, wbits=31)
    for piece in pieces:
        if data := pack.compress(piece):
            yield data
    yield pack.flush()


def _about(run: RunInfo, zero: int) -> Json:
    """Return what an import needs to restore the record; times count from `start` + `zero`."""
    ranks = [{"rank": r.rank, "host": r.host, "device": r.device} for r in run.ranks]
    return {"run": run.id, "start": run.start, "zero": zero, "title": run.title, "ranks": ranks}


def _events(
    run: RunInfo, timeline: Timeline, samples: Iterable[_Sample], zero: int
) -> Iterator[str]:
    stride = max(timeline.ranks, default=0) + 1
    width = len(str(max((rank.rank for rank in run.ranks), default=0)))
    for rank in run.ranks:
        yield from _process(rank, width)
    where: dict[tuple[int, int, int], int] = {}  # the thread of each collective's span
    for number in timeline.ranks:
        lanes = timeline.lanes[number]
        own = [cat for cat in lanes if cat not in RANKROOM_CATEGORIES]
        for category in lanes:
            if category == PHASE_CATEGORY and CATEGORY in lanes:
                continue  # exported together with the collectives
            place = (
                RANKROOM_CATEGORIES.index(category)
                if category in RANKROOM_CATEGORIES
                else len(RANKROOM_CATEGORIES) + own.index(category)
            )
            threads = Threads(number, place, stride)
            together = [category]
            if category == CATEGORY and PHASE_CATEGORY in lanes:
                together.append(PHASE_CATEGORY)
            yield from _spans(timeline, number, together, threads, zero, where)
    found = Collectives(timeline)
    late = np.flatnonzero(found.shared & (found.cost >= MIN_STRAGGLER_COST_US))
    yield from (_straggler(found[place], zero) for place in late.tolist())
    yield from _flows(found, late[np.argsort(-found.cost[late], kind="stable")], where, zero)
    for number, at, values in samples:
        for key, value in values.items():
            name, unit = _COUNTERS[key]
            yield text({"ph": "C", "name": name, "pid": number, "tid": number,
                         "ts": at - zero, "args": {unit: value}})  # fmt: skip


def _process(rank: RankInfo, width: int) -> Iterator[str]:
    number = rank.rank
    where = " on ".join(filter(None, (rank.device, rank.host)))
    for what, args in (
        ("process_name", {"name": f"rank {number:{width}}"}),  # padded, as names are sorted as text
        ("process_sort_index", {"sort_index": number}),
        ("process_labels", {"labels": where}),
    ):
        yield _described(what, number, number, args)


def _described(what: str, pid: int, tid: int, args: Json) -> str:
    return text({"ph": "M", "name": what, "pid": pid, "tid": tid, "args": args})


class Threads:
    """The threads of one category of a rank, one per row, with numbers that no other rank has.

    A rank's first thread, that of its cells, has the number of its process.
    """

    def __init__(self, rank: int, place: int, stride: int) -> None:
        self.rank = rank
        self.place = place * MAX_ROWS
        self._stride = stride
        self._ends: list[list[int]] = []

    def take(self, start: int, end: int) -> int:
        """Return a span's row, -1 if there is none. Spans come by start, longer ones first."""
        for row, ends in enumerate(self._ends):
            while ends and ends[-1] <= start:
                ends.pop()
            if not ends or (end <= ends[-1] and len(ends) < MAX_DEPTH):
                ends.append(end)
                return row
        if len(self._ends) == MAX_ROWS:
            return -1
        self._ends.append([end])
        return len(self._ends) - 1

    def tid(self, row: int) -> int:
        return (self.place + row) * self._stride + self.rank


def _spans(
    timeline: Timeline,
    rank: int,
    categories: list[str],
    threads: Threads,
    zero: int,
    where: dict[tuple[int, int, int], int],
) -> Iterator[str]:
    """Yield the spans of categories that share threads; add those of collectives to `where`."""
    lanes = [timeline.lanes[rank][category] for category in categories]
    heads = [f'"cat":{text(category)},"pid":{rank}' for category in categories]
    names: dict[int, str] = {}
    rows = 0
    order = sorted(
        ((lane.start[i], -lane.end[i], which, i) for which, lane in enumerate(lanes)
         for i in range(len(lane)))
    )  # fmt: skip
    for start, less_end, which, i in order:
        end, number = -less_end, lanes[which].name[i]
        name = names.get(number)
        if name is None:
            named = timeline.named(rank, number)
            args = {key: value for key, value in named.items() if key != "name"}
            name = names[number] = f'"name":{text(named["name"])}' + (
                f',"args":{text(args)}' if args else ""
            )
        row = threads.take(start, end)
        if row < 0:
            for phase, at in (("b", start), ("e", end)):
                yield f'{{"ph":"{phase}","id":{i},{heads[which]},"ts":{at - zero},{name}}}'
            continue
        tid = threads.tid(row)
        if row == rows:
            rows += 1
            title = categories[0] if row == 0 else f"{categories[0]} {rows}"
            yield _described("thread_name", rank, tid, {"name": title})
            yield _described("thread_sort_index", rank, tid, {"sort_index": threads.place + row})
        if categories[which] == CATEGORY:
            where[rank, start, end] = tid
        when = f'"tid":{tid},"ts":{start - zero},"dur":{end - start}'
        yield f'{{"ph":"X",{heads[which]},{when},{name}}}'


def _straggler(collective: Collective, zero: int) -> str:
    """Return an instant event at the last rank's arrival, with what that cost the others.

    It is global, in a row above all ranks: Perfetto shows the processes with the most events first,
    so ranks stay in order only while they have equally many.
    """
    rank, key = collective.straggler, collective.key
    what = " ".join(filter(None, (f"rank {rank} last in", key.op, key.tensor)))
    times = zip(collective.arrivals, collective.ends, strict=True)
    waited = sum(collective.last - arrival for arrival, end in times if end >= collective.last)
    args = {"late_us": collective.cost, "others_waited_us": waited, "ranks": collective.ranks}
    return text({"ph": "i", "s": "g", "cat": STRAGGLER_CATEGORY, "name": what, "pid": rank,
                  "tid": rank, "ts": collective.last - zero, "args": args})  # fmt: skip


def _flows(
    found: Collectives,
    places: npt.NDArray[np.int64],
    where: dict[tuple[int, int, int], int],
    zero: int,
) -> Iterator[str]:
    """Yield arrows from the straggler's arrival at a collective to the spans of waiting ranks."""
    count = 0
    for place in places.tolist():
        one = found[place]
        threads = {
            rank: where.get((rank, arrival, end))
            for rank, arrival, end in zip(one.ranks, one.arrivals, one.ends, strict=True)
            if arrival <= one.last <= end
        }
        source = threads.pop(one.straggler, None)
        if source is None:
            continue
        for rank, thread in threads.items():
            if thread is None:
                continue
            if count == MAX_FLOWS:
                return
            count += 1
            about = {
                "cat": STRAGGLER_CATEGORY, "name": f"waited for rank {one.straggler}",
                "id": count, "ts": one.last - zero,
            }  # fmt: skip
            yield text({"ph": "s", "pid": one.straggler, "tid": source, **about})
            yield text({"ph": "f", "bp": "e", "pid": rank, "tid": thread, **about})


def _samples(run: RunInfo, events: Path) -> Iterator[_Sample]:
    """Yield rank, time and values of each sample of utilization."""
    offsets = {rank.rank: rank.clock.offset if rank.clock else 0 for rank in run.ranks}
    with contextlib.suppress(FileNotFoundError), events.open("rb") as lines:
        for line in lines:
            if line.startswith(_KIND) and not line.startswith(_SAMPLE):
                continue
            event = parse_event(line)
            if event is None or event["kind"] != "sample" or event["rank"] not in offsets:
                continue
            at = event["t"] - offsets[event["rank"]]
            values = {key: event[key] for key in _COUNTERS if _is_number(event.get(key))}
            if values and abs(at) <= TEN_YEARS_US:
                yield event["rank"], at, values


def pieces(events: Iterable[str]) -> Iterator[str]:
    held: list[str] = []
    length = 0
    for event in events:
        held.append(event)
        length += len(event)
        if length > _PIECE_CHARS:
            yield ",\n".join(held)
            held, length = [], 0
    if held:
        yield ",\n".join(held)


def text(value: Any) -> str:
    return json.dumps(_sound(value), separators=(",", ":"), ensure_ascii=False)


def _outer(value: Any) -> str:
    # A raw DEL character outside the events makes Perfetto reject the file.
    return text(value).replace("\x7f", "\\u007f")


def _sound(value: Any) -> Any:
    """Return a copy in which numbers that JSON cannot hold are text."""
    if isinstance(value, dict):
        return {str(key): _sound(item) for key, item in value.items()}
    if isinstance(value, (list, tuple)):
        return [_sound(item) for item in value]
    if isinstance(value, (int, float)) and not isinstance(value, bool) and not _is_number(value):
        return str(value)
    return value


def _is_number(value: Any) -> bool:
    if isinstance(value, bool) or not isinstance(value, (int, float)):
        return False
    return math.isfinite(value) and abs(value) < _EXACT
