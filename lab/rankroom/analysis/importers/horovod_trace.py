"""Horovod's own timelines, in which every tensor is a process.

Rank 0 coordinates: its file records when each rank became ready for a tensor, as instants named
after the rank within NEGOTIATE, but not for operations in Horovod's cache, which most are after the
first step. Other ranks write a file only where Horovod was built for it, and that records what they
did, not when they arrived.
"""

from __future__ import annotations

import math
import re
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Any

from rankroom.analysis.importers.chrome import Reader
from rankroom.analysis.importers.foreign_names import size_of
from rankroom.analysis.importers.lanes import MOST_RANKS, Lane, Names

Json = dict[str, Any]
Key = tuple[str, str, int]  # operation, tensor, and n: the n-th call of both

EPOCH = "start_time_since_epoch_in_micros"
_NEGOTIATE = "NEGOTIATE_"
_OPERATIONS = (
    "ALLREDUCE", "ADASUM", "ALLGATHER", "BROADCAST", "ALLTOALL", "REDUCESCATTER", "BARRIER",
)  # fmt: skip
_OPERATION = re.compile(rf"^(?:{'|'.join(_OPERATIONS)})$")
_RANK = re.compile(r"[0-9]+")
_PREFIX = re.compile(r"^(?:allreduce|allgather|broadcast|alltoall|reducescatter)\.(?=.)")


@dataclass(slots=True)
class Done:
    """One operation on one tensor: its times in the file, and when each rank was ready."""

    tensor: str
    op: str
    begin: int
    end: int
    args: Json
    ready: dict[int, int] = field(default_factory=dict)


@dataclass
class Timeline:
    """What one file records; times are in microseconds since the file's own zero."""

    done: list[Done] = field(default_factory=list)
    phases: Lane = field(default_factory=Lane)
    names: Names = field(default_factory=Names)

    @property
    def ready(self) -> set[int]:
        """The ranks whose arrivals this file records."""
        return {rank for done in self.done for rank in done.ready}

    @property
    def members(self) -> dict[tuple[str, str], set[int]]:
        """The ranks that take part in an operation on a tensor, as far as this file records it."""
        found: dict[tuple[str, str], set[int]] = {}
        for done in self.done:
            found.setdefault((done.op, done.tensor), set()).update(done.ready)
        return found


def read(reader: Reader) -> Timeline:
    """Return the operations in a file that `reader` has read; drops are counted in `reader`."""
    timeline = Timeline()
    sizes: dict[int, Json] = {}  # by the name's number: millions of operations share a few
    for (process, _, _), lane in reader.lanes.items():
        lane.sort()
        tensor = _tensor(reader.processes.get(process, ""))
        waiting: Done | None = None
        early: dict[int, int] = {}  # when ranks were ready, before NEGOTIATE was seen
        for number, start, dur in zip(lane.name, lane.start, lane.dur, strict=True):
            define = reader.names.defined[number]
            name, end = define["name"], start + dur
            if name.startswith(_NEGOTIATE):
                waiting = Done(tensor, name.removeprefix(_NEGOTIATE).lower(), start, end, {})
                # With a single rank, all of it is in one microsecond, in any order.
                waiting.ready = {rank: at for rank, at in early.items() if at == start}
                early.clear()
                _phase(timeline, "NEGOTIATE", tensor, start, dur)
            elif dur == 0 and _RANK.fullmatch(name):
                if len(name) > 7 or (rank := int(name)) >= MOST_RANKS:
                    reader.dropped["ranks with too high a number"] += 1
                elif waiting is not None:
                    waiting.ready.setdefault(rank, start)
                else:
                    early[rank] = start
            elif _OPERATION.match(name):
                done = waiting or Done(tensor, name.lower(), start, end, {})
                if number not in sizes:
                    sizes[number] = _size(define)
                done.op, done.end, done.args = name.lower(), end, sizes[number]
                timeline.done.append(done)
                waiting = None
            else:
                _phase(timeline, name, tensor, start, dur)
    timeline.done.sort(key=lambda done: (done.begin, done.end))
    return timeline


def collectives(
    timeline: Timeline, rank: int, names: Names, ready: dict[Key, dict[int, int]]
) -> Lane:
    """Return a rank's operations, from when it was ready to their end on that rank.

    `ready` says when ranks were ready for operations for which the timeline does not record it.
    """
    lane = Lane()
    for key, done in _numbered(timeline):
        told = done.ready or ready.get(key, {})
        begin = min(told.get(rank, done.begin), done.end)
        lane.add(names.number(*words(done)), begin, done.end - begin)
    return lane


def arrivals(timeline: Timeline) -> dict[Key, dict[int, int]]:
    """Return when each rank was ready for the n-th operation on a tensor."""
    return {key: dict(done.ready) for key, done in _numbered(timeline)}


def _numbered(timeline: Timeline) -> Iterator[tuple[Key, Done]]:
    counted: Counter[tuple[str, str]] = Counter()
    for done in timeline.done:
        which = done.op, done.tensor
        yield (*which, counted[which]), done
        counted[which] += 1


def words(done: Done) -> tuple[str, Json]:
    """Return the name and the arguments of an operation's span."""
    args = {"op": done.op, "tensor": done.tensor, "library": "hvd", **done.args}
    return f"{done.op} {done.tensor}".strip(), args


def _phase(timeline: Timeline, name: str, tensor: str, start: int, dur: int) -> None:
    args = {"tensor": tensor} if tensor else {}
    timeline.phases.add(timeline.names.number(name, args), start, dur)


def _tensor(process: str) -> str:
    """Return the tensor as the user named it; names that Horovod numbered become `#n`."""
    tensor = _PREFIX.sub("", process)
    head, _, last = tensor.rpartition(".")
    return f"#{last}" if head.partition(".")[0] == "noname" else tensor


def _size(define: Json) -> Json:
    """Return dtype, shape and bytes, which Horovod writes at the end of an operation."""
    found: Json = {key: define[key] for key in ("dtype", "shape") if key in define}
    width = size_of(str(define.get("dtype", "")))
    numbers = re.findall(r"\d+", str(define.get("shape", "")))
    if width is not None and "shape" in define:
        found["bytes"] = width * math.prod(map(int, numbers))
    return found
