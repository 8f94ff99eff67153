"""A record exported for other programs: its contents, and that Perfetto accepts all of it."""

from __future__ import annotations

import gzip
import json
import random
import shutil
from collections import Counter
from pathlib import Path
from typing import Any

import pytest

from checkout import TRACES
from perfetto_rules import breaches
from rankroom.analysis import export
from rankroom.analysis.export import chrome_json, compressed
from rankroom.analysis.importers import import_files
from rankroom.analysis.timeline import Timeline
from rankroom.record.model import Clock, RankInfo, RunInfo, event_line
from rankroom.record.store import Store
from record_makers import finished_record

GOLDEN = sorted(each.name for each in TRACES.iterdir() if (each / "run.json").exists())


def exported(store: Store, run_id: str) -> tuple[bytes, list[dict[str, Any]]]:
    data = b"".join(chrome_json(store, run_id))
    return data, json.loads(data)["traceEvents"]


def spans_of(store: Store, run_id: str) -> list[tuple[Any, ...]]:
    timeline = Timeline.read(store.load(run_id), store.paths(run_id).events)
    return sorted(
        (rank, cat, json.dumps(timeline.named(rank, number), sort_keys=True), start, end)
        for rank, lanes in timeline.lanes.items()
        for cat, lane in lanes.items()
        for number, start, end in zip(lane.name, lane.start, lane.end, strict=True)
    )


def record(folder: Path, count: int = 3000) -> tuple[Store, str]:
    """A record of two ranks with overlapping spans, some of which begin before the run."""
    dice = random.Random(3)
    out = []
    for rank in range(2):
        seq = 0
        for at, cat in enumerate(("cell", "collective", "phase", "custom")):
            define = [{"name": f'{cat} "{i}" ü', "tensor": f"t{i}", "ranks": [0, 1], "line": i}
                      for i in range(20)]  # fmt: skip
            name = [20 * at + dice.randrange(20) for _ in range(count)]
            start = [dice.randrange(-5, 40) for _ in range(count)]
            start[0] = -3000 if cat == "phase" else start[0]
            dur = [dice.randrange(0, 60) for _ in range(count)]
            fields = {"from": 20 * at, "define": define, "name": name, "start": start, "dur": dur}
            out.append(event_line("spans", rank, seq, 10**6, cat=cat, **fields))
            seq += 1
        out.append(event_line("sample", rank, seq, 500, cpu=51.5, memory=10**9, gpu=3))
    infos = [RankInfo(0, "n1", 1, "cuda:0"), RankInfo(1, "n2", 2, "cuda:1", clock=Clock(7, 2))]
    store, run = finished_record(folder, *out, ranks=infos)
    return store, run.id


def test_an_exported_record_is_imported_unchanged(tmp_path: Path):
    store, run_id = record(tmp_path / "from")
    file = tmp_path / "t.json.gz"
    file.write_bytes(b"".join(compressed(chrome_json(store, run_id))))
    made = import_files([file], Store(tmp_path / "to"))
    assert spans_of(Store(tmp_path / "to"), made.run.id) == spans_of(store, run_id)
    before = store.load(run_id)
    assert (made.run.start, made.run.title) == (before.start, before.title)
    assert [(r.host, r.device) for r in made.run.ranks] == [("n1", "cuda:0"), ("n2", "cuda:1")]
    assert made.files[0].dropped == {"counters": 6} and not made.files[0].repaired


def test_an_export_has_a_process_per_rank_and_obeys_perfetto(tmp_path: Path):
    store, run_id = record(tmp_path, count=400)
    data, events = exported(store, run_id)
    assert breaches(data) == []
    names = {e["pid"]: e["args"]["name"] for e in events if e["name"] == "process_name"}
    assert names == {0: "rank 0", 1: "rank 1"}
    threads = {e["tid"]: e["args"]["name"] for e in events if e["name"] == "thread_name"}
    assert threads[0] == threads[1] == "cell"
    of = {"phase": "collective"}  # phases are on the threads of their collectives
    spans = [e for e in events if e["ph"] == "X"]
    assert all(threads[e["tid"]].startswith(of.get(e["cat"], e["cat"])) for e in spans)
    assert sum(e["ph"] == "X" for e in events) == 2 * 4 * 400
    last = max(len(line) for line in data.splitlines())
    assert last < 1 << 12, "a line for each event"


@pytest.mark.parametrize("name", GOLDEN)
def test_golden_traces_are_exported_whole_and_obey_perfetto(tmp_path: Path, name: str):
    shutil.copytree(TRACES / name, tmp_path / "runs" / name)
    store = Store(tmp_path)
    run_id = store.load(name).id
    if run_id != name:
        shutil.move(tmp_path / "runs" / name, tmp_path / "runs" / run_id)
    data, events = exported(store, run_id)
    assert breaches(data) == []
    phases = Counter(event["ph"] for event in events)
    assert phases["X"] + phases["b"] == len(spans_of(store, run_id))


def test_samples_are_counters(tmp_path: Path):
    lines = [
        event_line("sample", 0, 0, 500, cpu=51.5, memory=10**9),
        event_line("sample", 1, 0, 700, cpu=float("nan"), gpu=7, gpu_memory=True),
        event_line("sample", 9, 0, 700, cpu=1.0),
    ]
    infos = [RankInfo(0, "a", 1, "cpu"), RankInfo(1, "b", 2, "cpu", clock=Clock(-100, 1))]
    store, run = finished_record(tmp_path, *lines, ranks=infos)
    data, events = exported(store, run.id)
    assert breaches(data) == []
    found = [(e["pid"], e["ts"], e["name"], e["args"]) for e in events if e["ph"] == "C"]
    assert found == [
        (0, 500, "CPU", {"%": 51.5}), (0, 500, "memory", {"bytes": 10**9}),
        (1, 800, "GPU", {"%": 7}),
    ]  # fmt: skip


def record_of_late_ranks(root: Path) -> tuple[Store, RunInfo]:
    """Three allreduces of three ranks; rank 1 is late in the first, rank 2 in the last."""
    named = {"name": "allreduce g", "op": "allreduce", "tensor": "g", "library": "hvd.torch"}

    def rank(number: int, *starts: int) -> bytes:
        apart = [b - a for a, b in zip((0, *starts), starts, strict=False)]
        fields = {"define": [named], "name": [0] * len(starts), "start": apart, "dur": [9000] * 3}
        return event_line("spans", number, 0, 10**5, cat="collective", **fields)

    lines = [rank(0, 1000, 20_000, 40_000), rank(1, 6000, 20_400, 40_000)]
    lines += [rank(2, 1200, 20_000, 47_000)]
    infos = [RankInfo(number, "a", number, "cpu") for number in range(3)]
    return finished_record(root, *lines, ranks=infos, size=3)


def test_stragglers_are_marked_and_linked_to_the_ranks_that_waited(tmp_path: Path):
    store, run = record_of_late_ranks(tmp_path)
    data, events = exported(store, run.id)
    assert breaches(data) == []
    marks = [e for e in events if e["ph"] == "i"]
    assert [(e["pid"], e["ts"], e["name"]) for e in marks] == [
        (1, 6000, "rank 1 last in allreduce g"), (2, 47_000, "rank 2 last in allreduce g"),
    ]  # fmt: skip
    args = marks[0]["args"]
    assert args == {"late_us": 4900, "others_waited_us": 5000 + 4800, "ranks": [0, 1, 2]}
    # One arrow per waiting rank; the costliest collective comes first.
    flows = [(e["ph"], e["id"], e["pid"], e["ts"]) for e in events if e["ph"] in "sf"]
    assert flows == [
        ("s", 1, 2, 47_000), ("f", 1, 0, 47_000), ("s", 2, 2, 47_000), ("f", 2, 1, 47_000),
        ("s", 3, 1, 6000), ("f", 3, 0, 6000), ("s", 4, 1, 6000), ("f", 4, 2, 6000),
    ]  # fmt: skip
    ends = {(e["pid"], e["tid"]) for e in events if e["ph"] in "sf"}
    assert ends <= {(e["pid"], e["tid"]) for e in events if e.get("cat") == "collective"}


def test_flows_of_an_export_are_not_counted_as_dropped_on_import(tmp_path: Path):
    store, run = record_of_late_ranks(tmp_path / "from")
    file = tmp_path / "t.json"
    file.write_bytes(b"".join(chrome_json(store, run.id)))
    assert b'"ph":"s"' in file.read_bytes()
    made = import_files([file], Store(tmp_path / "to"))
    assert not made.files[0].dropped["flows"]


def test_phases_are_exported_on_the_thread_of_their_collective(tmp_path: Path):
    names = [{"name": "allreduce g", "op": "allreduce", "tensor": "g", "library": "horovod"}]
    spans = {"define": names, "from": 0, "name": [0], "start": [1000], "dur": [5000]}
    parts = {"define": [{"name": "negotiate"}, {"name": "transfer"}], "from": 1, "name": [1, 2]}
    parts |= {"start": [1000, 3000], "dur": [3000, 2000]}
    lines = [
        event_line("spans", 0, 0, 10**5, cat="collective", **spans),
        event_line("spans", 0, 1, 10**5, cat="phase", **parts),
    ]
    store, run = finished_record(tmp_path, *lines, ranks=[RankInfo(0, "a", 1, "cpu")], size=1)
    data, events = exported(store, run.id)
    assert breaches(data) == []
    assert len({e["tid"] for e in events if e["ph"] == "X"}) == 1
    (tmp_path / "t.json").write_bytes(data)
    made = import_files([tmp_path / "t.json"], Store(tmp_path / "to"))
    assert spans_of(Store(tmp_path / "to"), made.run.id) == spans_of(store, run.id)


def test_text_and_numbers_that_json_lacks_are_exported_as_valid_json(tmp_path: Path):
    nasty = {"name": "\x01\udc80\x7f\u2028 😀", "a": [float("nan"), {"b": float("inf")}],
             "big": 10**30, "yes": True, "none": None}  # fmt: skip
    line = event_line("spans", 0, 0, 5, cat="\ud800", define=[nasty], name=[0], start=[1], dur=[1])
    store, run = finished_record(tmp_path, line, title="a\x7f\x00\udc80b")
    data, events = exported(store, run.id)
    assert breaches(data) == []
    (span,) = [e for e in events if e["ph"] == "X"]
    assert span["name"].endswith("\u2028 😀")
    assert span["args"]["yes"] is True and span["args"]["a"] == ["nan", {"b": "inf"}]


def test_spans_beyond_the_thread_limit_are_exported_as_async_events(tmp_path: Path):
    count = export.MAX_ROWS + 5
    crossing = event_line("spans", 0, 0, 5, cat="op", define=[{"name": "n"}], name=[0] * count,
                          start=[1] * count, dur=[500] * count)  # fmt: skip
    deep = event_line("spans", 0, 1, 5, cat="user", name=[0] * 1200,
                      start=[1] * 1200, dur=[4000 - 2 * i for i in range(1200)])  # fmt: skip
    store, run = finished_record(tmp_path, crossing, deep)
    data, events = exported(store, run.id)
    assert breaches(data) == []
    phases = Counter(e["ph"] for e in events if e.get("cat") == "op")
    assert phases == {"X": export.MAX_ROWS, "b": 5, "e": 5}
    rows = Counter(e["tid"] for e in events if e.get("cat") == "user")
    assert sorted(rows.values()) == [200, 500, 500]


def test_an_export_leaves_out_what_is_not_sound(tmp_path: Path):
    bad = [
        event_line("spans", 0, 0, 1, cat="c", name=[0, 0], start=[1], dur=[1, 2]),
        event_line("spans", 0, 1, 1, cat="c", name=[0, 0, 9], start=[1, 1, 1], dur=[-1, 2, 3],
                   define=[{"name": "n"}]),
        event_line("spans", 0, 2, 1, cat="c", name=[0, "x"], start=[None, 1], dur=[1, 1]),
        event_line("spans", 0, 3, 1, cat="c", name=[0], start=[float("nan")], dur=[1]),
    ]  # fmt: skip
    store, run = finished_record(tmp_path, *bad)
    data, events = exported(store, run.id)
    assert breaches(data) == []
    spans = [(e["name"], e["ts"], e["dur"]) for e in events if e["ph"] == "X"]
    assert spans == [("n", 2, 2), ("?", 3, 3)]


def test_a_category_without_sound_spans_is_left_out(tmp_path: Path):
    bad = event_line("spans", 0, 0, 1, cat="c", name=[0], start=[1], dur=[-1])
    store, run = finished_record(tmp_path, bad)
    data, events = exported(store, run.id)
    assert breaches(data) == []
    assert not [e for e in events if e["ph"] == "X"]


def test_the_export_command_writes_the_same_trace(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    from click.testing import CliRunner

    from rankroom.cli import main

    store, run_id = record(tmp_path, count=50)
    monkeypatch.setenv("RANKROOM_HOME", str(tmp_path))
    out = tmp_path / "out.json.gz"
    result = CliRunner().invoke(main, ["runs", "export", run_id, "-o", str(out)])
    assert result.exit_code == 0, result.output
    assert gzip.decompress(out.read_bytes()) == b"".join(chrome_json(store, run_id))


X = {"ph": "X", "name": "n", "pid": 0, "tid": 1, "ts": 5, "dur": 10}
BROKEN = {
    "no strict JSON": '[{"ph":"X","ts":NaN}]',
    "surrogate": json.dumps([{**X, "name": "😀"}]),
    "beside the events": '{"otherData":{"a":"\x7f"},"traceEvents":[]}',
    "cross": json.dumps([X, {**X, "ts": 10}]),
    "two processes": json.dumps([X, {**X, "pid": 1}]),
    "before 0": json.dumps([{**X, "ts": -1}]),
    "no duration": json.dumps([{k: v for k, v in X.items() if k != "dur"}]),
    "scope": json.dumps([{**X, "ph": "i", "s": "x"}]),
    "without numbers": json.dumps([{**X, "ph": "C", "args": {"a": None}}]),
    "without an id": json.dumps([{**X, "ph": "b"}]),
    "begun and ended": json.dumps([{**X, "ph": "b", "id": 1}]),
    "too deep": json.dumps([{**X, "dur": 9000 - i} for i in range(600)]),
    "empty name": json.dumps([{"ph": "M", "name": "process_name", "args": {"name": ""}}]),
}


@pytest.mark.parametrize("told", BROKEN)
def test_the_perfetto_rules_detect_each_violation(told: str):
    assert told in " ".join(breaches(BROKEN[told].encode()))
