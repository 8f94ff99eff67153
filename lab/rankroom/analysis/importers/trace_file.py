"""Reads one file as ranks with lanes: which program wrote it, whose spans they are, and when."""

from __future__ import annotations

import contextlib
import re
from collections import Counter
from collections.abc import Hashable
from concurrent.futures import BrokenExecutor
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from rankroom.analysis.importers import horovod_trace, parallel_parser
from rankroom.analysis.importers.chrome import Reader
from rankroom.analysis.importers.foreign_names import (
    RANKROOM_CATEGORIES,
    STRAGGLER_CATEGORY,
    is_annotation,
    is_for_gpu,
    is_linked,
    recognise,
)
from rankroom.analysis.importers.lanes import MOST_RANKS, Lane, Names, middle_of
from rankroom.analysis.importers.trace_repair import Events
from rankroom.record.model import RankInfo

Json = dict[str, Any]

MOST_EVENTS = 10_000_000  # of all files together; the rest is dropped
MOST_LANES = 64  # of one rank; beyond, the threads of a category share one
MOST_CATEGORIES = 256  # of one rank; beyond, they share one
OVERFLOW_CATEGORY = "events"
# Categories that mean something in Rankroom.
OWN_CATEGORIES = {*RANKROOM_CATEGORIES, "unrecorded"}
_RANK = re.compile(r"(?:^|[^a-z])ranks?[ _:#.=-]*(\d{1,6})\b", re.I)
_IN_NAME = re.compile(
    r"(?:rank|worker|process|proc|node)[ _.=-]*(\d{1,6})(?!\d)|(?:^|[._-])r?(\d{1,4})(?=\.|$)", re.I
)
_RANK_IN_NAME = re.compile(r"(?<![a-z])rank[ _.=-]*(\d{1,6})(?!\d)", re.I)
# What PyTorch's tensorboard_trace_handler calls its files: host, process, time.
_OF_A_PROCESS = re.compile(r"_\d+\.\d{10,}\.pt\.trace\.json", re.I)
_DATE = re.compile(r"(?<!\d)(?:19|20)\d\d([-_.]?)\d\d\1\d\d(?!\d)(?:[-_.T ]\d\d(?:[-_.:]?\d\d)+)?")
_SUFFIXES = re.compile(r"(\.(gz|json|txt|pt|trace|log))+$", re.I)
# Microseconds since 1970 that a trace may have: from 2001 to 2100.
_EPOCHS = range(1_000_000_000_000_000, 4_102_444_800_000_000)


@dataclass
class RankOfFile:
    """What a file records of one rank; `rank` is None if the file does not say which."""

    rank: int | None
    lanes: dict[str, Lane] = field(default_factory=dict)
    info: RankInfo | None = None
    unlinked: set[int] = field(
        default_factory=set
    )  # names of collectives' kernels that are not linked

    def read_until(self, in_order: bool) -> int | None:
        """Return up to when the file covers the rank, if it was not read to its end. Unless its
        events are in order, one lane is written after another: then it is where the first lane
        ends. None without spans."""
        ends = [lane.extent[1] for lane in self.lanes.values() if len(lane)]
        return (max if in_order else min)(ends, default=None)

    def lane(self, category: str) -> Lane:
        """Return the lane of a category; beyond a limit, categories share one."""
        if category not in self.lanes and len(self.lanes) >= MOST_CATEGORIES:
            category = OVERFLOW_CATEGORY
        return self.lanes.setdefault(category, Lane())


@dataclass
class TraceFile:
    """A file that has been read. `zero` is the epoch of its times, None if unknown."""

    path: Path
    program: str
    names: Names
    ranks: list[RankOfFile]
    zero: int | None
    dropped: Counter[str]
    repaired: Counter[str]
    timeline: horovod_trace.Timeline | None = None
    events: int = 0  # that were read of it
    is_cut: bool = False  # the rest of it was not read
    processes: frozenset[int] = frozenset()  # that it has spans of, except GPUs
    start: int | None = None  # of the run, if it is an exported record
    title: str = ""

    @property
    def spans(self) -> int:
        return sum(len(lane) for rank in self.ranks for lane in rank.lanes.values())

    @property
    def extent(self) -> tuple[int, int] | None:
        """The earliest start and the latest end; None without spans."""
        lanes = [lane.extent for rank in self.ranks for lane in rank.lanes.values() if len(lane)]
        return (min(start for start, _ in lanes), max(end for _, end in lanes)) if lanes else None


def read_file(path: Path, alone: bool = True, most: int = MOST_EVENTS) -> TraceFile:
    """Read the first `most` events of one file, or some more. With `alone`, it is the only file, so
    that its processes may be ranks.

    Raises TraceError if it is not a trace.
    """
    events, reader, zero = _read(path, most)
    start: int | None = None
    reader.close()
    lanes = list(reader.lanes.values())
    middle = middle_of(lanes)
    for lane in lanes:
        reader.dropped.update(lane.keep_sound(middle))
    if zero is not None or any(d["name"].startswith("NEGOTIATE_") for d in reader.names.defined):
        reader.dropped.pop("events that lack a field", None)  # it is the event with the file's zero
        timeline = horovod_trace.read(reader)
        one = RankOfFile(rank_in_name(path))
        if timeline.ready and not _RANK_IN_NAME.search(path.name):
            # Only the coordinator knows which ranks are ready; a bare number may be their count.
            one.rank = 0
        return TraceFile(
            path, "Horovod", Names(), [one], zero, _dropped(events, reader),
            events.repaired + reader.repaired, timeline, reader.taken, events.is_cut,
        )  # fmt: skip
    about = _object(events.about.get("otherData", {})).get("rankroom")
    ours = _object(about)
    dropped = _dropped(events, reader)
    ranks = _ranks(reader, events, ours, path, alone)
    if ours:
        dropped.pop("flows", None)  # stragglers are computed again
        start = ours["start"] if isinstance(ours.get("start"), int) else None
        since = ours["zero"] if isinstance(ours.get("zero"), int) else 0
        zero = start + since if start is not None else None
    else:
        zero = _zero(events.about, middle)
    program = "Rankroom" if ours else "PyTorch" if _is_kineto(events.about) else "Chrome"
    return TraceFile(
        path, program, reader.names, ranks, zero, dropped, events.repaired + reader.repaired,
        events=reader.taken, is_cut=events.is_cut, start=start, title=str(ours.get("title", "")),
        processes=frozenset(
            process for process, _, category in reader.lanes
            if isinstance(process, int) and category != "kernel" and not category.startswith("gpu_")
        ),
    )  # fmt: skip


def rank_in_name(path: Path) -> int | None:
    """Return the rank in a file's name, as in `trace.rank3.json` and `timeline.3.json`.

    The numbers of a host and a process in the name, and those of a date, do not count.
    """
    told = re.search(r"\.rank(\d{1,6})$", path.name)  # at the very end, as Horovod writes it
    name = _DATE.sub("", _SUFFIXES.sub("", path.name))
    found = [told] if told else list(_RANK_IN_NAME.finditer(name))
    if not found and not _OF_A_PROCESS.search(path.name):
        found = list(_IN_NAME.finditer(name))
    # The last number counts: `run2-rank0.json`.
    return next((int(number) for number in found[-1].groups() if number), None) if found else None


def _read(path: Path, most: int) -> tuple[Events, Reader, int | None]:
    """Read the events of a file; return the epoch of a Horovod timeline with them."""
    found: int | None = None
    if parallel_parser.is_worth(path):
        # A worker may be killed for its memory, or fail to start; what is wrong with the file shows
        # again below.
        with contextlib.suppress(parallel_parser.Unsound, BrokenExecutor, OSError):
            events, reader = Events(path), Reader()
            for head in parallel_parser.read(events, reader):
                found = _horovods(head) if found is None else found
                _stop_after(most, events, reader)
            return events, reader, found
    events, reader, found = Events(path), Reader(), None
    for batch in events:
        reader.take(batch)
        found = _horovods(batch) if found is None else found
        _stop_after(most, events, reader)
    return events, reader, found


def _dropped(events: Events, reader: Reader) -> Counter[str]:
    """Return what is lost of a file, by reason."""
    dropped = events.dropped + reader.dropped
    dropped.update({f"arguments of spans: {k}": n for k, n in reader.names.left_out.items()})
    return dropped


def _stop_after(most: int, events: Events, reader: Reader) -> None:
    if reader.taken >= most:
        events.stop(f"{reader.taken:,} events")


def _horovods(batch: list[Json]) -> int | None:
    """Return the epoch in the first events of a Horovod timeline; None in others."""
    for event in batch[:4]:
        args = event.get("args")
        if isinstance(args, dict) and isinstance(args.get(horovod_trace.EPOCH), int):
            return int(args[horovod_trace.EPOCH])
    return None


def _zero(about: Json, middle: int) -> int | None:
    base = about.get("baseTimeNanoseconds")
    if isinstance(base, int) and base and middle + base // 1000 in _EPOCHS:
        return base // 1000
    return 0 if middle in _EPOCHS else None


def _is_kineto(about: Json) -> bool:
    return bool({"distributedInfo", "deviceProperties", "baseTimeNanoseconds"} & set(about))


def _ranks(reader: Reader, events: Events, ours: Json, path: Path, alone: bool) -> list[RankOfFile]:
    """Return the ranks of a file with their lanes. The ranks are identified by the file's metadata,
    by the names of its processes, or by the file's name."""
    about = events.about
    processes = list(dict.fromkeys(process for process, _, _ in reader.lanes))
    named = {
        process: int(found[1])
        for process in processes
        for text in (reader.processes.get(process, ""), reader.labels.get(process, ""))
        if (found := _RANK.search(text))
    }
    whose: dict[Hashable, int | None]
    told = _object(about.get("distributedInfo")).get("rank")
    if ours:
        whose = {p: p if type(p) is int and 0 <= p < 1 << 20 else None for p in processes}
    elif isinstance(told, int) and told >= 0:
        whose = dict.fromkeys(processes, told)
    elif named:
        # Processes without a number, such as a GPU's, belong to the lowest rank.
        whose = {process: named.get(process, min(named.values())) for process in processes}
    elif alone and len(processes) > 1 and not _is_kineto(about):
        numbers = sorted(processes, key=lambda p: (not isinstance(p, int), str(p).zfill(20)))
        whose = {process: number for number, process in enumerate(numbers)}
    else:
        whose = dict.fromkeys(processes, rank_in_name(path))
    if len(set(whose.values())) > MOST_RANKS:
        reader.repaired["processes too many to be ranks: they are one"] += len(processes)
        whose = dict.fromkeys(processes, rank_in_name(path))
    ranks = {rank: RankOfFile(rank) for rank in whose.values()} or {None: RankOfFile(None)}
    if not processes and isinstance(told, int):
        ranks = {told: RankOfFile(told)}
    _sort_in(reader, whose, ranks, bool(ours), events.is_cut)
    for each in ours.get("ranks", []) if isinstance(ours.get("ranks"), list) else []:
        one = _object(each)
        info = RankInfo(
            rank=one.get("rank", -1), host=str(one.get("host", "")), pid=0,
            device=str(one.get("device", "")), local_rank=0,
        )  # fmt: skip
        if type(info.rank) is int and info.rank >= 0:
            ranks.setdefault(info.rank, RankOfFile(info.rank)).info = info
    if len(ranks) > 1 and None in ranks and not ranks[None].lanes:
        del ranks[None]
    host = about.get("host_name")
    if isinstance(host, str):
        for each_rank in ranks.values():
            each_rank.info = each_rank.info or RankInfo(each_rank.rank or 0, host, 0, "")
    return list(ranks.values())


def _sort_in(
    reader: Reader,
    whose: dict[Hashable, int | None],
    ranks: dict[int | None, RankOfFile],
    ours: bool,
    is_cut: bool,
) -> None:
    """Give each rank its lanes: in Rankroom's category where it is known, else the file's own."""
    defined = reader.names.defined
    threads: dict[tuple[int | None, str], set[Any]] = {}
    if ours:
        reader.drop_lanes(STRAGGLER_CATEGORY)
    for process, thread, category in reader.lanes:
        threads.setdefault((whose[process], category), set()).add((process, thread))
    kernels = {
        whose[process]
        for (process, _, category), lane in reader.lanes.items()
        if category == "kernel"
        and any(recognise(category, defined[n])[0] == "collective" for n in set(lane.name))
    }
    since = _first_launches(reader, whose)
    for (process, thread, category), lane in list(reader.lanes.items()):
        rank = ranks[whose[process]]
        own = category
        if (
            not ours
            and category not in RANKROOM_CATEGORIES
            and recognise(category, {"name": ""})[0] == category
        ):
            label = reader.threads.get((process, thread)) or (
                f"thread {thread}" if thread not in (None, "") else ""
            )
            if label in OWN_CATEGORIES:  # it only has the name of one
                label = f"thread {label}"
            few = len(threads[rank.rank, category]) < MOST_LANES
            if not category:
                own = (few and label) or OVERFLOW_CATEGORY
            elif few and len(threads[rank.rank, category]) > 1 and label:
                own = f"{category} · {label}"
        told: dict[int, tuple[str, int]] = {}
        unlinked: set[int] = set()
        for number in set(lane.name):
            goal, define = (own, defined[number])
            if not ours:
                goal, define = recognise(category, define)
                if goal == "collective" and is_annotation(define):
                    has_kernel = rank.rank in kernels or (is_cut and is_for_gpu(define))
                    if has_kernel:  # which says more
                        goal, define = "user", defined[number]
                goal = own if goal == category else goal
                if category == "kernel" and goal != own and not is_linked(defined[number]):
                    unlinked.add(number)
            args = {key: value for key, value in define.items() if key not in ("name", "annotated")}
            same = define is defined[number]
            told[number] = goal, number if same else reader.names.number(define["name"], args)
        if all(goal == own and to == number for number, (goal, to) in told.items()):
            rank.lane(own).extend(lane)
            continue
        rank.unlinked |= {told[number][1] for number in unlinked}
        for number, start, dur in zip(lane.name, lane.start, lane.dur, strict=True):
            goal, to = told[number]
            if number in unlinked and start < since.get(rank.rank, start):
                goal, to = own, number
            rank.lane(goal).add(to, start, dur)


def _first_launches(reader: Reader, whose: dict[Hashable, int | None]) -> dict[int | None, int]:
    """Return when each rank's first collective began whose launch its profiler saw, if any.

    Those before it do not say which group is theirs, and some ranks have more of them than others.
    Ranks on which most are like that, as with CUDA graphs, are left out: there, the launch is not
    missing because it was before the profiler began.
    """
    first: dict[int | None, int] = {}
    counts: dict[int | None, Counter[bool]] = {}
    for (process, _, category), lane in reader.lanes.items():
        if category != "kernel":
            continue
        defined = {number: reader.names.defined[number] for number in set(lane.name)}
        are = {
            n: is_linked(d) for n, d in defined.items() if recognise(category, d)[0] == "collective"
        }
        if not are:
            continue
        spans = [
            (are[n], start) for n, start in zip(lane.name, lane.start, strict=True) if n in are
        ]
        counts.setdefault(whose[process], Counter()).update(linked for linked, _ in spans)
        if starts := [start for linked, start in spans if linked]:
            first[whose[process]] = min(*starts, first.get(whose[process], starts[0]))
    return {rank: at for rank, at in first.items() if counts[rank][False] < counts[rank][True]}


def _object(value: Any) -> Json:
    return value if isinstance(value, dict) else {}
