"""A record exported as traces of PyTorch's profiler, one file per rank."""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Any

import pytest

from rankroom.analysis.importers import import_files
from rankroom.analysis.pytorch_export import PytorchTraces
from rankroom.analysis.timeline import Timeline
from rankroom.record.model import Clock, RankInfo, event_line
from rankroom.record.store import Store
from record_makers import finished_record

NCCL = {"name": "allreduce", "op": "allreduce", "library": "dist", "bytes": 2000,
        "kernel": "ncclDevKernel_AllReduce_Sum_f32(x)", "device": 1, "stream": 20}  # fmt: skip
CALLED = {"name": "allreduce x", "op": "allreduce"}


def spans(rank: int, seq: int, cat: str, *named: Any) -> bytes:
    """A spans event of one category; `named` has a name or definition, start and duration each."""
    define = [name if isinstance(name, dict) else {"name": name} for name, _, _ in named]
    starts = [start for _, start, _ in named]
    steps = [start - before for start, before in zip(starts, [0, *starts], strict=False)]
    fields = {"from": 100 * seq, "define": define, "start": steps, "dur": [d for *_, d in named],
              "name": [100 * seq + i for i in range(len(named))]}  # fmt: skip
    return event_line("spans", rank, seq, 10**6, cat=cat, **fields)


def record(folder: Path, *lines: bytes, devices: tuple[str, ...] = ("cuda:0", "cuda:1")) -> Any:
    clocks = [None, Clock(1000, 2)]
    infos = [
        RankInfo(rank, f"n{rank}", 1, device, clock=clocks[rank])
        for rank, device in enumerate(devices)
    ]
    store, run = finished_record(folder, *lines, ranks=infos)
    return PytorchTraces(store, run.id)


def read(traces: PytorchTraces) -> dict[int, dict[str, Any]]:
    return {rank: json.loads(b"".join(pieces)) for rank, pieces in traces}


def of(trace: dict[str, Any], cat: str) -> list[dict[str, Any]]:
    return [each for each in trace["traceEvents"] if each.get("cat") == cat]


def test_kernels_are_exported_in_kinetos_format(tmp_path: Path):
    profiled = {"name": "sgemm", "thread": "GPU 3 stream 7"}  # as --profile reports it
    lines = [
        spans(0, 0, "kernel", ({"name": "gemm", "stream": 7}, 10, 5), (profiled, 20, 5),
              ("Memcpy HtoD (Pageable -> Device)", 30, 2), ("Memset (Device)", 40, 1)),
        spans(1, 0, "kernel", ("gemm", 1010, 5)),
        spans(1, 1, "collective", (NCCL, 1030, 9), (CALLED, 1050, 9)),
    ]  # fmt: skip
    traces = record(tmp_path, *lines)
    assert traces.have_kernels
    made = read(traces)
    kernels = of(made[0], "kernel")
    assert [(each["name"], each["pid"], each["tid"]) for each in kernels] == [
        ("gemm", 0, 7), ("sgemm", 3, 7)
    ]  # fmt: skip
    assert [each["args"]["stream"] for each in kernels] == [7, 7]
    assert [each["name"] for each in of(made[0], "gpu_memcpy")] == [
        "Memcpy HtoD (Pageable -> Device)"
    ]
    assert len(of(made[0], "gpu_memset")) == 1
    numbers = [each["args"]["correlation"] for each in made[0]["traceEvents"] if each["ph"] == "X"]
    assert len(set(numbers)) == len(numbers) == 4
    # Rank 1's clock is 1 ms ahead, its GPU is cuda:1, and its allreduce is exported as a kernel.
    gemm, nccl = of(made[1], "kernel")
    assert (gemm["ts"], gemm["pid"]) == (10, 1)
    assert (nccl["name"], nccl["ts"], nccl["dur"], nccl["tid"]) == (NCCL["kernel"], 30, 9, 20)
    assert nccl["args"]["Collective name"] == "allreduce"
    [called] = of(made[1], "user_annotation")
    assert called["name"] == "allreduce x"


def test_each_trace_names_its_rank_in_its_first_line(tmp_path: Path):
    traces = record(tmp_path, spans(0, 0, "op", ("aten::mm", -500, 5)), devices=("cuda:0", "cpu"))
    assert not traces.have_kernels
    for rank, pieces in traces:
        first = b"".join(pieces).split(b"\n")[0].decode()
        assert re.search(r'"rank":\s+(\d+)', first)[1] == str(rank)
    made = read(traces)
    assert made[1]["distributedInfo"] == {"backend": "gloo", "rank": 1, "world_size": 2}
    [event] = of(made[0], "cpu_op")
    assert event["ts"] == 0  # the earliest span is the trace's zero


def test_overlapping_spans_are_exported_on_separate_threads(tmp_path: Path):
    crossing = [(f"s{i}", 10 * i, 25) for i in range(50)]
    made = read(record(tmp_path, spans(0, 0, "user", *crossing), spans(0, 1, "op", *crossing)))[0]
    ends: dict[int, int] = {}
    for event in [each for each in made["traceEvents"] if each["ph"] == "X"]:
        assert ends.get(event["tid"], 0) <= event["ts"]
        ends[event["tid"]] = event["ts"] + event["dur"]
    assert len(ends) == 6


@pytest.mark.parametrize("hostile", ["\ud800", '"\n\\', "ü" * 500, "</script>"])
def test_hostile_names_are_exported_as_valid_json(tmp_path: Path, hostile: str):
    made = read(record(tmp_path, spans(0, 0, "kernel", (hostile, 0, 1))))
    assert len(of(made[0], "kernel")) == 1


def test_exported_traces_are_imported_with_the_same_spans(tmp_path: Path):
    lines = [spans(rank, 0, "kernel", ("gemm", 10 + 1000 * rank, 5)) for rank in (0, 1)]
    lines += [spans(rank, 1, "collective", (NCCL, 30 + 1000 * rank, 9)) for rank in (0, 1)]
    files = []
    for rank, pieces in record(tmp_path / "from", *lines):
        files.append(tmp_path / f"rank{rank}.json")
        files[-1].write_bytes(b"".join(pieces))
    store = Store(tmp_path / "to")
    run = import_files(files, store).run
    timeline = Timeline.read(run, store.paths(run.id).events)
    for rank in (0, 1):
        lane = timeline.lane(rank, "collective")
        assert lane.start[0] - timeline.lane(rank, "kernel").start[0] == 20
        assert lane.end[0] - lane.start[0] == 9
        assert timeline.named(rank, lane.name[0])["kernel"] == NCCL["kernel"]
