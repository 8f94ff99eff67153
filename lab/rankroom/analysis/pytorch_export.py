"""A run's timeline in the format of PyTorch's profiler: a file per rank, all on one clock.

HolisticTraceAnalysis and similar readers identify GPU work by its category and by the arguments
`device` and `stream`. `tools/holistic.py` reads these files with HolisticTraceAnalysis.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterator

import numpy as np

from rankroom.analysis.export import Threads, pieces, text, zero_of
from rankroom.analysis.importers.foreign_names import RANKROOM_CATEGORIES
from rankroom.analysis.timeline import Timeline
from rankroom.record.model import Json, RankInfo, RunInfo
from rankroom.record.store import Store

HOST_PID_BASE = 1 << 20  # plus the rank; a GPU's events have its number as their process
_THREAD = re.compile(r"GPU (\d+) stream (\d+)")  # how --profile names the thread of a kernel
_MEMORY = (("Memcpy", "gpu_memcpy"), ("Memset", "gpu_memset"))


class PytorchTraces:
    """The traces of a run's ranks. Raises RecordError if there is no such record."""

    def __init__(self, store: Store, run_id: str) -> None:
        self._run = store.load(run_id)
        self._timeline = Timeline.read(self._run, store.paths(run_id).events)

    def __iter__(self) -> Iterator[tuple[int, Iterator[bytes]]]:
        """Yield each rank and its trace, in pieces."""
        zero = zero_of(self._timeline)
        for rank in self._run.ranks:
            yield rank.rank, _trace(self._run, rank, self._timeline, zero)

    @property
    def have_kernels(self) -> bool:
        """Whether any trace has GPU kernels: others are of little use to readers."""
        return any("kernel" in lanes for lanes in self._timeline.lanes.values())


def _trace(run: RunInfo, rank: RankInfo, timeline: Timeline, zero: int) -> Iterator[bytes]:
    # One reader searches for `"rank": 0`, with this space and on one line.
    info = {"backend": "nccl" if rank.device != "cpu" else "gloo", "rank": rank.rank,
            "world_size": run.size}  # fmt: skip
    head = {
        "schemaVersion": 1,
        "distributedInfo": info,
        "baseTimeNanoseconds": 1000 * (run.start + zero),
        "traceName": f"{run.id} rank {rank.rank}",
    }
    yield f"{json.dumps(head)[:-1]},\n".encode("utf-8", "replace")
    yield b'"traceEvents":[\n'
    separator = b""
    for piece in pieces(_events(rank, timeline, zero)):
        yield separator + piece.encode("utf-8", "replace")
        separator = b",\n"
    yield b"\n]}\n"


def _events(rank: RankInfo, timeline: Timeline, zero: int) -> Iterator[str]:
    number = rank.rank
    host = HOST_PID_BASE + number
    for what, args in (
        ("process_name", {"name": f"rank {number}"}),
        ("process_labels", {"labels": " on ".join(filter(None, (rank.device, rank.host)))}),
    ):
        yield text({"ph": "M", "name": what, "pid": host, "tid": host, "args": args})
    own = _own_gpu(rank)
    count = 0
    for place, (category, lane) in enumerate(timeline.lanes[number].items(), 1):
        threads = Threads(number, place, 1)
        columns = lane.name, lane.start, lane.end
        names, starts, ends = (np.array(each, np.int64) for each in columns)
        for i in np.lexsort((-ends, starts)).tolist():
            start, end = int(starts[i]), int(ends[i])
            count += 1
            event = _event(category, timeline.named(number, int(names[i])), own, count)
            if "pid" not in event:  # overlapping spans go to different threads
                event |= {"pid": host, "tid": threads.tid(max(0, threads.take(start, end)))}
            yield text({"ph": "X", "ts": start - zero, "dur": end - start, **event})


def _event(category: str, named: Json, own_gpu: int, count: int) -> Json:
    """Return a span's fields in this format, with process and thread if it ran on a GPU."""
    name, args = named["name"], {key: value for key, value in named.items() if key != "name"}
    kernel = named.get("kernel") if category == "collective" else None
    if category != "kernel" and not isinstance(kernel, str):
        known = "cpu_op" if category == "op" else category
        return {
            "cat": "user_annotation" if known in RANKROOM_CATEGORIES else known,
            "name": name,
            "args": args,
        }
    said = str(kernel or name)
    found = _THREAD.fullmatch(str(named.get("thread", "")))
    device, stream = (int(found[1]), int(found[2])) if found else (
        _number(named.get("device"), own_gpu), _number(named.get("stream"), 0))  # fmt: skip
    cat = next((cat for word, cat in _MEMORY if said.startswith(word)), "kernel")
    # Readers require a correlation number; no launch has it, as records do not hold launches.
    args |= {"device": device, "stream": stream, "correlation": count}
    if kernel:
        args["Collective name"] = name
    return {"cat": cat, "name": said, "pid": device, "tid": stream, "args": args}


def _own_gpu(rank: RankInfo) -> int:
    place = rank.device.partition(":")[2]
    return int(place) if place.isdigit() else 0


def _number(value: object, otherwise: int) -> int:
    return value if type(value) is int and value >= 0 else otherwise
