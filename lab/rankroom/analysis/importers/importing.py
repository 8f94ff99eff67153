"""Imports files of other programs as one record: a rank per file, all on one clock if possible.

A rank has several files if Horovod's timeline comes with another program's trace, or if a profiler
ran several times.
"""

from __future__ import annotations

import gc
import time
from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from operator import sub
from pathlib import Path
from typing import Any, NamedTuple

from rankroom.analysis.collectives import CATEGORY, Key, key_of
from rankroom.analysis.importers import horovod_trace
from rankroom.analysis.importers.foreign_names import RANKROOM_CATEGORIES
from rankroom.analysis.importers.lanes import Lane, Names
from rankroom.analysis.importers.trace_file import MOST_EVENTS, RankOfFile, TraceFile, read_file
from rankroom.analysis.importers.trace_repair import TraceError
from rankroom.analysis.profile.shares import UNRECORDED
from rankroom.record.model import RankInfo, RunInfo, event_line
from rankroom.record.owner import this_process
from rankroom.record.store import Store, new_id
from rankroom.text.rank_ranges import name_ranks

EVENT_SPANS = 4096  # spans in one event
MAX_FILE_GAP_US = 3_600_000_000  # at most, between two files of one run
Json = dict[str, Any]


@dataclass
class FileReport:
    """What was read from one file."""

    path: Path
    program: str
    ranks: list[int]
    spans: int
    dropped: Counter[str]
    repaired: Counter[str]

    def __str__(self) -> str:
        spans = f"{self.spans:,} span{'' if self.spans == 1 else 's'}"
        of = f" of {name_ranks(self.ranks)}" if self.ranks else ""
        parts = [f"{self.path.name}: {spans}{of} ({self.program})"]
        for what, counts in (("dropped", self.dropped), ("repaired", self.repaired)):
            if counts:
                told = ", ".join(f"{n:,} × {why}" for why, n in counts.most_common(6))
                parts.append(f"{what}: {told}")
        return "; ".join(parts)


@dataclass
class Import:
    """The new record, and what was read into it."""

    run: RunInfo
    files: list[FileReport]
    notes: list[str] = field(default_factory=list)


@dataclass
class _Rank:
    """A rank of the record: its lanes, each with the table that its name numbers refer to."""

    rank: int
    info: RankInfo | None = None
    lanes: list[tuple[str, Lane, Names]] = field(default_factory=list)


def import_files(paths: Sequence[Path], store: Store, name: str | None = None) -> Import:
    """Read `paths` into a new record of `store`.

    Raises TraceError for a file that is not a trace at all; anything else wrong in the files is
    repaired or dropped, and counted.
    """
    if not paths:
        raise TraceError("no files to read")
    collecting = gc.isenabled()
    gc.disable()  # it would traverse a million events again and again, in vain
    try:
        read: dict[int, TraceFile] = {}
        left = MOST_EVENTS
        # The largest last: they share what the others leave, so that none is cut needlessly.
        for at in sorted(range(len(paths)), key=lambda at: _size(paths[at])):
            most = left // (len(paths) - len(read))
            read[at] = read_file(paths[at], alone=len(paths) == 1, most=most)
            left = max(0, left - read[at].events)
        files = [read[at] for at in range(len(paths))]
        notes: list[str] = []
        _assign_ranks(files, notes)
        start = _one_clock(files, notes)
        ranks = _ranks(files, notes)
        reports = [
            FileReport(
                file.path, file.program, sorted({r.rank or 0 for r in file.ranks}),
                file.spans, file.dropped, file.repaired,
            )
            for file in files
        ]  # fmt: skip
        run = _write(store, ranks, start, files, reports, notes, name)
    finally:
        if collecting:
            gc.enable()
    return Import(run, reports, notes)


def _size(path: Path) -> int:
    try:
        return path.stat().st_size
    except OSError:  # reported when it is read
        return 0


def _assign_ranks(files: list[TraceFile], notes: list[str]) -> None:
    """Give each file's rank a number; files share a number only if both are of one rank."""
    taken: dict[int, list[_FileTime]] = {}
    twice = []
    again: set[int] = set()
    late: list[tuple[TraceFile, RankOfFile]] = []
    for file in files:
        when = _when(file)
        for rank in file.ranks:
            others = taken.get(rank.rank, []) if rank.rank is not None else []
            if rank.rank is None or rank.rank > 1 << 20 or not all(map(when.fits, others)):
                if rank.rank is not None:
                    twice.append(file.path.name)
                late.append((file, rank))
            else:
                if any(other.program == file.program for other in others):
                    again.add(rank.rank)
                taken.setdefault(rank.rank, []).append(when)
    # A rank in Horovod's timeline is not given to a file that may be another rank's.
    told = {rank for file in files if file.timeline is not None for rank in file.timeline.ready}
    free = (number for number in range(1 << 21) if number not in taken)
    untold = (number for number in range(1 << 21) if number not in taken and number not in told)
    for file, rank in late:
        rank.rank = next(untold if file.timeline is None else free)
        taken[rank.rank] = []
    if twice:
        said = ", ".join(dict.fromkeys(twice))
        notes.append(f"{said}: another file has the same rank, so the next free number is used")
    if again:
        notes.append(
            f"{name_ranks(again)}: several files, one after the other; what is between them is not "
            "recorded"
        )


class _FileTime(NamedTuple):
    """Which program wrote a file, and the time it covers, since the epoch, if known."""

    program: str
    has_clock: bool
    time: tuple[int, int] | None
    processes: frozenset[int]

    def fits(self, other: _FileTime) -> bool:
        """Whether both may be of one rank: Horovod's timeline and another program's trace, or the
        traces of a profiler that ran twice in one process."""
        if not (self.has_clock and other.has_clock):
            return False
        if self.program != other.program:
            return "Horovod" in (self.program, other.program)
        if self.program != "PyTorch" or not self.processes & other.processes:
            return False
        if self.time is None or other.time is None:
            return False
        apart = max(self.time[0] - other.time[1], other.time[0] - self.time[1])
        return 0 <= apart < MAX_FILE_GAP_US


def _when(file: TraceFile) -> _FileTime:
    time = None
    if file.zero is not None and (extent := file.extent) is not None:
        time = file.zero + extent[0], file.zero + extent[1]
    return _FileTime(file.program, file.zero is not None, time, file.processes)


def _one_clock(files: list[TraceFile], notes: list[str]) -> int:
    """Convert all times to µs since the record's start; return the start, since the epoch."""
    for file in files:
        if file.timeline is not None:
            _horovod_lanes(file)
    firsts = [
        file.zero + extent[0]
        for file in files
        if file.zero is not None and (extent := file.extent) is not None
    ]
    start = min(firsts, default=time.time_ns() // 1000)
    if len(files) == 1 and files[0].start is not None:
        start = files[0].start
    aligned = []
    for file in files:
        extent = file.extent
        if extent is None:
            continue
        if file.zero is None:
            aligned.append(file.path.name)
            _shift(file, -extent[0])
        else:
            _shift(file, file.zero - start)
    if aligned and len(files) > 1:
        said = ", ".join(aligned[:4]) + (", …" if len(aligned) > 4 else "")
        notes.append(f"no common clock: in {said}, time starts at the first event")
    hosts = {
        rank.info.host
        for file in files
        if file.zero is not None and file.start is None  # the clocks of a record have been compared
        for rank in file.ranks
        if rank.info is not None and rank.info.host
    }
    if len(hosts) > 1:
        notes.append(f"the clocks of {len(hosts)} hosts were not compared and may differ")
    return start


def _shift(file: TraceFile, by: int) -> None:
    for rank in file.ranks:
        for lane in rank.lanes.values():
            lane.shift(by)
    if file.timeline is not None:
        for done in file.timeline.done:
            done.begin += by
            done.end += by
            done.ready = {rank: at + by for rank, at in done.ready.items()}


def _horovod_lanes(file: TraceFile) -> None:
    """Make preliminary lanes, so that the file has a first and a last time."""
    timeline, rank = file.timeline, file.ranks[0]
    assert timeline is not None and rank.rank is not None
    file.names = timeline.names
    rank.lanes["collective"] = horovod_trace.collectives(timeline, rank.rank, timeline.names, {})
    if len(timeline.phases):
        rank.lanes["phase"] = timeline.phases


def _ranks(files: list[TraceFile], notes: list[str]) -> list[_Rank]:
    ranks: dict[int, _Rank] = {}
    _drop_doubles(files)
    for file in files:
        for rank in file.ranks:
            number = rank.rank or 0
            mine = ranks.setdefault(number, _Rank(number))
            mine.info = mine.info or rank.info
            mine.lanes += [(cat, lane, file.names) for cat, lane in rank.lanes.items()]
    gaps = _add_horovod_arrivals(files, ranks, notes)
    cut = {each.rank or 0 for file in files if file.is_cut for each in file.ranks}
    _compare_counts([rank for rank in ranks.values() if rank.rank not in cut], notes)
    _mark_unrecorded(files, ranks, gaps)
    return [ranks[number] for number in sorted(ranks)]


def _add_horovod_arrivals(
    files: list[TraceFile], ranks: dict[int, _Rank], notes: list[str]
) -> dict[int, int]:
    """Add what Horovod's timeline of one rank records about the others. Where that would be too
    much, return by rank the time from which it is left out."""
    timelines = [file for file in files if file.timeline is not None]
    told = next((file for file in timelines if file.timeline and file.timeline.ready), None)
    if told is None or told.timeline is None:
        return {}
    ready = horovod_trace.arrivals(told.timeline)
    # The coordinator's file says when the others became ready; their own, what they did then.
    for file in timelines:
        if file is not told and file.timeline is not None:
            number = file.ranks[0].rank or 0
            lane = horovod_trace.collectives(file.timeline, number, file.names, ready)
            rest = [
                each for each in ranks[number].lanes
                if each[0] != CATEGORY or each[2] is not file.names
            ]  # fmt: skip
            ranks[number].lanes = [(CATEGORY, lane, file.names), *rest]
    every, members = told.timeline.ready, told.timeline.members
    only = sorted(every - {file.ranks[0].rank for file in timelines})
    most = MOST_EVENTS // max(1, len(only))
    for number in only:
        lane = Lane()
        for done in told.timeline.done[:most]:
            # Where no rank's arrival is recorded, all begin when rank 0 does.
            if number in (done.ready or members[done.op, done.tensor] or every):
                begin = min(done.ready.get(number, done.begin), done.end)
                lane.add(told.names.number(*horovod_trace.words(done)), begin, done.end - begin)
        ranks.setdefault(number, _Rank(number)).lanes.append((CATEGORY, lane, told.names))
    if only:
        they, own = "they", "their own timelines are"
        if len(only) == 1:
            they, own = "it", "its own timeline is"
        notes.append(
            f"{name_ranks(only)}: only the times when {they} became ready, as recorded by rank 0; "
            f"{own} missing"
        )
    if unknown := sum(not done.ready for done in told.timeline.done):
        count = len(told.timeline.done)
        notes.append(
            f"when ranks became ready is unknown for {unknown:,} of {count:,} "
            f"operation{'' if count == 1 else 's'}: Horovod had them in its cache"
        )
    if not only or len(told.timeline.done) <= most:
        return {}
    dropped = len(told.timeline.done) - most
    told.dropped["operations of ranks without a timeline of their own"] += dropped
    return dict.fromkeys(only, told.timeline.done[most].begin)


def _drop_doubles(files: list[TraceFile]) -> None:
    """Drop NCCL's kernels of Horovod's operations, as the operations themselves are there."""
    told = {
        rank
        for file in files
        if file.timeline is not None
        for rank in {file.ranks[0].rank, *file.timeline.ready}
    }
    for file in (each for each in files if each.timeline is None):
        for rank in file.ranks:
            lane = rank.lanes.get(CATEGORY)
            if rank.rank not in told or lane is None or not rank.unlinked:
                continue
            kept = Lane()
            for name, start, dur in zip(lane.name, lane.start, lane.dur, strict=True):
                if name not in rank.unlinked:
                    kept.add(name, start, dur)
            if len(kept) < len(lane):
                file.dropped["kernels of Horovod's operations"] += len(lane) - len(kept)
                rank.lanes[CATEGORY] = kept


def _compare_counts(ranks: Sequence[_Rank], notes: list[str]) -> None:
    """Note that ranks have different numbers of a collective without tensor names: its n-th call on
    one rank is matched with the n-th of the others, wherever their profilers began."""
    counts: dict[Key, dict[int, int]] = {}
    for rank in ranks:
        for category, lane, names in rank.lanes:
            if category != CATEGORY:
                continue
            for number, count in Counter(lane.name).items():
                if "tensor" not in (define := names.defined[number]):
                    of = counts.setdefault(key_of(define), {})
                    of[rank.rank] = of.get(rank.rank, 0) + count
    if uneven := sorted({key.op for key, of in counts.items() if len(set(of.values())) > 1}):
        what = ", ".join(uneven[:4]) + (", …" if uneven[4:] else "")
        notes.append(
            f"ranks have different numbers of {what}: if their profilers started at different "
            "calls, the waits shown are wrong"
        )


def _mark_unrecorded(files: list[TraceFile], ranks: dict[int, _Rank], gaps: dict[int, int]) -> None:
    """Mark moments that are not recorded, so that no rank is taken to compute in them: the unread
    rest of a file, the time between the files of a rank, and what comes after a rank's time in
    `gaps`."""
    names = Names()
    name = names.number("not recorded", {})
    end = 0
    parts: dict[int, list[tuple[int, int, int | None]]] = {}
    for file in files:
        if (extent := file.extent) is not None:
            end = max(end, extent[1])
            for each in file.ranks:
                until = None
                if file.is_cut:
                    found = each.read_until(file.timeline is not None)
                    until = extent[0] if found is None else found
                parts.setdefault(each.rank or 0, []).append((*extent, until))
    for number, rank in ranks.items():
        missing = [(gaps[number], end)] if number in gaps else []
        mine = sorted(parts.get(number, []), key=lambda part: part[:2])
        reach = mine[0][0] if mine else 0
        for first, last, until in mine:
            missing.append((reach, first))
            reach = max(reach, last)
            if until is not None:
                missing.append((until, min((at for at, _, _ in mine if at >= last), default=end)))
        lane = Lane()
        for begin, until in missing:
            if begin < until:
                lane.add(name, begin, until - begin)
        if len(lane):
            rank.lanes.append((UNRECORDED, lane, names))


def _write(
    store: Store,
    ranks: list[_Rank],
    start: int,
    files: list[TraceFile],
    reports: list[FileReport],
    notes: list[str],
    name: str | None,
) -> RunInfo:
    title = files[0].title or ", ".join(file.path.name for file in files[:4])
    said = [str(each) for each in reports if each.dropped or each.repaired]
    more = [f"and {len(said) - 6} more file{'' if len(said) == 7 else 's'}"] if said[6:] else []
    run = RunInfo(
        id=new_id(time.time_ns() // 1000),
        cluster="import",
        size=max((rank.rank for rank in ranks), default=0) + 1,
        start=start,
        ranks=[_info(rank) for rank in ranks],
        title=title + (", …" if len(files) > 4 and not files[0].title else ""),
        name=name,
        notes=[*notes, *said[:6], *more],
        owner=this_process(),
    )
    source = "\n".join(f"# {each}" for each in reports) + "\n"
    writer = store.create(run, source)
    last = 0
    try:
        for rank in ranks:
            for line, end in _events(rank):
                writer.append(line)
                last = max(last, end)
    except BaseException:
        run.state, run.end = "failed", start + last
        writer.finish(run)
        raise
    run.state, run.end = "done", start + last
    writer.finish(run)
    return run


def _info(rank: _Rank) -> RankInfo:
    info = rank.info or RankInfo(rank.rank, "", 0, "")
    return RankInfo(rank.rank, info.host, info.pid, info.device, info.local_rank, "ok")


def _events(rank: _Rank) -> Iterator[tuple[bytes, int]]:
    """Yield the rank's spans as lines of its record, with the latest end in each."""
    order = {category: place for place, category in enumerate(RANKROOM_CATEGORIES)}
    numbers: dict[tuple[int, int], int] = {}
    seq = told = 0
    for category, lane, names in sorted(rank.lanes, key=lambda each: order.get(each[0], 99)):
        lane.sort()
        for at in range(0, len(lane), EVENT_SPANS):
            raw = lane.name[at : at + EVENT_SPANS]
            starts, durs = (
                lane.start[at : at + EVENT_SPANS],
                lane.dur[at : at + EVENT_SPANS].tolist(),
            )
            define = []
            for number in dict.fromkeys(raw):
                if (id(names), number) not in numbers:
                    numbers[id(names), number] = len(numbers)
                    define.append(names.defined[number])
            fields: Json = {"cat": category}
            if define:
                fields |= {"from": told, "define": define}
                told += len(define)
            to = {number: numbers[id(names), number] for number in set(raw)}
            fields["name"] = [to[number] for number in raw]
            fields["start"] = list(map(sub, starts, [0, *starts[:-1]]))
            fields["dur"] = durs
            end = max(map(int.__add__, starts, durs))
            yield event_line("spans", rank.rank, seq, end, **fields), end
            seq += 1
