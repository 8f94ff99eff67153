"""Timelines of other programs: read, repaired and merged."""

from __future__ import annotations

import gzip
import json
import random
import re
from pathlib import Path
from typing import Any

import pytest

from rankroom.analysis.importers import Import, import_files, lanes, parallel_parser, trace_repair
from rankroom.analysis.importers.chrome import Reader
from rankroom.analysis.importers.lanes import MOST_NAMES
from rankroom.analysis.importers.trace_file import rank_in_name
from rankroom.analysis.importers.trace_repair import TraceError
from rankroom.analysis.profile.of_run import profile_of
from rankroom.record.store import Store
from rankroom.system import control_groups

Span = tuple[int, str, str, int, int]  # rank, category, name, start, duration


def spans_of(store: Store, run_id: str) -> list[Span]:
    """The spans of a record, read without `Timeline`."""
    names: dict[tuple[int, int], dict[str, Any]] = {}
    found = []
    for event in store.events(run_id):
        if event["kind"] != "spans":
            continue
        rank, at = event["rank"], 0
        for number, define in enumerate(event.get("define", ()), event.get("from", 0)):
            names[rank, number] = define
        columns = zip(event["name"], event["start"], event["dur"], strict=True)
        for number, step, dur in columns:
            at += step
            define = json.dumps(names[rank, number], sort_keys=True)
            found.append((rank, event["cat"], define, at, dur))
    return sorted(found)


def plain(spans: list[Span]) -> list[tuple[str, int, int]]:
    return [(json.loads(name)["name"], start, dur) for _, _, name, start, dur in spans]


class Bench:
    """A store, and files to import into it."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.store = Store(folder / "home")

    def file(self, content: str | bytes | list[Any] | dict[str, Any], name: str = "t.json") -> Path:
        path = self.folder / name
        if isinstance(content, (list, dict)):
            content = json.dumps(content)
        path.write_bytes(content if isinstance(content, bytes) else content.encode())
        return path

    def read(self, *paths: Path) -> tuple[Import, list[Span]]:
        made = import_files(paths, self.store)
        assert self.store.load(made.run.id).state == "done"
        return made, spans_of(self.store, made.run.id)


@pytest.fixture
def bench(tmp_path: Path) -> Bench:
    return Bench(tmp_path)


def x(name: str, ts: Any, dur: Any, pid: Any = 0, tid: Any = 0, **more: Any) -> dict[str, Any]:
    return {"ph": "X", "name": name, "cat": "op", "ts": ts, "dur": dur, "pid": pid, "tid": tid,
            **more}  # fmt: skip


SOUND = [x(f"s{i}", 100 * i, 50, args={"i": i, "of": {"deep": [1, {"er": i}]}}) for i in range(40)]
EXPECTED = [(f"s{i}", 100 * i, 50) for i in range(40)]


def lines(events: list[dict[str, Any]]) -> str:
    return ",\n".join(map(json.dumps, events))


# -- file formats


@pytest.mark.parametrize("form", ["array", "object", "lines", "pretty", "gzip", "bom", "crlf"])
def test_every_file_format_is_read_without_loss(bench: Bench, form: str):
    text = {
        "object": json.dumps({"traceEvents": SOUND, "displayTimeUnit": "ms"}),
        "lines": "\n".join(map(json.dumps, SOUND)),
        "pretty": json.dumps({"about": {"traceEvents": 3}, "traceEvents": SOUND}, indent=2),
        "bom": "\ufeff" + json.dumps(SOUND),
        "crlf": f"[\r\n{lines(SOUND)}\r\n]\r\n".replace("\n", "\r\n").replace("\r\r", "\r"),
    }.get(form, json.dumps(SOUND))
    data = gzip.compress(text.encode()) if form == "gzip" else text.encode()
    made, spans = bench.read(bench.file(data))
    assert plain(spans) == sorted(EXPECTED)
    assert not made.files[0].dropped and not made.files[0].repaired
    assert made.run.notes == []


HEAD, REST = lines(SOUND[:9]), lines(SOUND[9:])
DAMAGED = {
    "no end": (f"[{lines(SOUND)}", "closing bracket missing"),
    "comma at the end": (f"[{lines(SOUND)},\n", "closing bracket missing"),
    "cut within an object": (json.dumps({"traceEvents": SOUND})[:-2], "closing bracket missing"),
    "missing commas": (f"[{lines(SOUND).replace(',' + chr(10), chr(10))}]", "missing commas"),
    "one missing comma": (f"[{HEAD}{REST}]", "missing commas"),
    "commas twice": (f"[{HEAD},,{REST}]", "commas too many"),
    "arrays": (f"[{HEAD}]\n[{REST}]", "arrays one after another"),
    "objects": (
        json.dumps({"traceEvents": SOUND[:9]}) + json.dumps({"traceEvents": SOUND[9:]}),
        "arrays one after another",
    ),
    "backslash": (
        f'[{HEAD},{json.dumps(SOUND[9])[:-1]}, "path": "C:\\q"}},{lines(SOUND[10:])}]',
        "backslashes that escape nothing",
    ),
}  # fmt: skip


@pytest.mark.parametrize("how", DAMAGED)
def test_damage_without_data_loss_is_repaired_and_reported(bench: Bench, how: str):
    text, told = DAMAGED[how]
    made, spans = bench.read(bench.file(text))
    assert plain(spans) == sorted(EXPECTED)
    assert made.files[0].repaired[told] > 0
    assert told in made.run.notes[0]
    assert not made.files[0].dropped


LOST = {
    "garbage behind": (f"[{lines(SOUND)}] and some \x00\x01 text", "text that is not an event"),
    "garbage between": (f"[{HEAD}, what? ,{REST}]", "text that is not an event"),
    "null": (f"[{HEAD},null,{REST}]", "text that is not an event"),
    "half an event": (f"[{HEAD},{{\"ph\": \"X\", \"na\n,{REST}]", "damaged"),
    "the last is cut": (f"[{lines(SOUND)},{json.dumps(x('no', 1, 2))[:-9]}", "cut off"),
    "not a number": (f"[{lines([*SOUND, x('n', float('nan'), 1)])}]", "times that are not numbers"),
    "endless": (f"[{lines([*SOUND, x('n', 1, float('inf'))])}]", "times that are not numbers"),
    "negative": (f"[{lines([*SOUND, x('n', 1, -1)])}]", "negative duration"),
    "huge": (f"[{lines([*SOUND, x('n', 10**18, 1)])}]",
             "a time more than ten years from the others"),
    "no time": (f"[{lines([*SOUND, {'ph': 'X', 'name': 'n'}])}]", "events that lack a field"),
    "too huge": (f"[{lines([*SOUND, x('n', 10**30, 1)])}]", "times that are not numbers"),
    "flows": (f"[{lines([*SOUND, {'ph': 's', 'id': 1, 'ts': 1}])}]", "flows"),
    "counters": (f"[{lines([*SOUND, {'ph': 'C', 'name': 'n', 'ts': 1}])}]", "counters"),
    "others": (f"[{lines([*SOUND, {'hello': 1}])}]", "not a trace event"),
}  # fmt: skip


@pytest.mark.parametrize("how", LOST)
def test_events_that_cannot_be_imported_are_dropped_and_counted(bench: Bench, how: str):
    text, told = LOST[how]
    made, spans = bench.read(bench.file(text))
    assert plain(spans) == sorted(EXPECTED)
    assert made.files[0].dropped[told] == 1
    assert f"1 × {told}" in made.run.notes[0]


@pytest.mark.parametrize("block", [64, 97, 1000])
def test_block_boundaries_do_not_change_what_is_read(
    bench: Bench, monkeypatch: pytest.MonkeyPatch, block: int
):
    monkeypatch.setattr(trace_repair, "BLOCK_CHARS", block)
    monkeypatch.setattr(trace_repair, "MAX_EVENT_CHARS", 400)
    spelled = [*SOUND, x("ü€𝄞" * 6, 4000, 1)]
    about = {"baseTimeNanoseconds": 1_790_000_000_000_000_000, "z": [{"a": 1}]}
    for text in (
        json.dumps({"traceEvents": spelled, **about}, ensure_ascii=False),
        json.dumps({**about, "traceEvents": spelled}, indent=1),
    ):
        made, spans = bench.read(bench.file(text))
        assert plain(spans) == sorted([*EXPECTED, ("ü€𝄞" * 6, 4000, 1)])
        assert not made.files[0].dropped and not made.files[0].repaired
        assert made.run.start == 1_790_000_000_000_000
    for how, (text, told) in DAMAGED.items():
        made, spans = bench.read(bench.file(text))
        assert plain(spans) == sorted(EXPECTED), how
        assert made.files[0].repaired[told] > 0, how


KINDS = [
    {"ph": "M", "name": "process_name", "pid": 1, "args": {"name": "rank 1"}},
    *[x(f"s{i % 5}", 100 * i, 50, pid=i % 2, cat=f"c{i % 3}", args={"n": i % 4})
      for i in range(60)],
    *[{"ph": ph, "name": "long", "ts": ts, "pid": 1, "tid": 2, "cat": "c0"}
      for ph, ts in (("B", 5), ("B", 7), ("E", 9), ("E", 90), ("E", 99), ("B", 100))],
    {"ph": "C", "name": "c", "ts": 1, "args": {"v": 1}}, {"ph": "b", "ts": 1}, x("late", "8", 1),
    x("bad", "nine", 1), x("negative", 5, -5), {"hello": 1}, {"ph": "i", "ts": 5000, "pid": 0},
]  # fmt: skip


@pytest.mark.parametrize("block", [150, 1000])
def test_parallel_parsing_gives_the_same_result(
    bench: Bench, monkeypatch: pytest.MonkeyPatch, block: int
):
    monkeypatch.setattr(trace_repair, "BLOCK_CHARS", block)
    monkeypatch.setattr(trace_repair, "MAX_EVENT_CHARS", 400)
    files = {"kinds": json.dumps(KINDS), "named": json.dumps({"traceEvents": [*KINDS, *SOUND]})}
    files |= {how: text for how, (text, _) in (DAMAGED | LOST).items() if isinstance(text, str)}
    for how, text in files.items():
        found = []
        for is_worth in (False, True):
            monkeypatch.setattr(parallel_parser, "is_worth", lambda path, worth=is_worth: worth)
            made, spans = bench.read(bench.file(text))
            found.append((spans, made.files[0].dropped, made.files[0].repaired))
        assert found[0] == found[1], how


def test_a_large_file_is_parsed_in_parallel(bench: Bench, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(parallel_parser, "MIN_FILE_BYTES", 1000)
    monkeypatch.setattr(trace_repair, "BLOCK_CHARS", 1000)
    monkeypatch.setattr("threading.active_count", lambda: 1)
    monkeypatch.setattr("os.cpu_count", lambda: 1)
    # The cores of the container count, not those of its machine.
    monkeypatch.setattr(control_groups, "cores", lambda: 2)
    joined: list[int] = []
    join = Reader.join
    monkeypatch.setattr(
        Reader, "join", lambda self, names, lanes: (joined.append(1), join(self, names, lanes))
    )
    _, spans = bench.read(bench.file(SOUND))
    assert plain(spans) == sorted(EXPECTED)
    assert len(joined) > 2
    monkeypatch.setattr("os.cpu_count", lambda: 64)
    monkeypatch.setattr(control_groups, "cores", lambda: 1)
    assert not parallel_parser.is_worth(bench.file(SOUND))


def test_a_file_cut_at_any_byte_gives_what_came_before(bench: Bench):
    whole = json.dumps({"traceEvents": SOUND, "other": {"a": [1]}}).encode()
    ends = [match.end() for match in re.finditer(rb'"tid": 0, "args": .*?\}\]\}\}\}', whole)]
    assert len(ends) == len(SOUND)
    for cut in range(20, len(whole), 97):
        made, spans = bench.read(bench.file(whole[:cut]))
        before = sum(end <= cut for end in ends)
        assert plain(spans) == sorted(EXPECTED[:before]), cut
        assert made.files[0].repaired["closing bracket missing"] == (cut < len(whole) - 20)


def test_importing_damaged_bytes_never_raises(bench: Bench):
    whole = json.dumps(SOUND).encode()
    dice = random.Random(7)
    for _ in range(150):
        data = bytearray(whole)
        for _ in range(dice.choice((1, 3, 30))):
            data[dice.randrange(1, len(data))] = dice.randrange(256)
        bench.read(bench.file(bytes(data)))


def test_a_truncated_gzip_file_is_read_as_far_as_it_goes(bench: Bench):
    dice = random.Random(1)
    events = [x(f"s{i}", dice.randrange(10**9), dice.randrange(99)) for i in range(5000)]
    data = gzip.compress(json.dumps(events).encode())
    made, spans = bench.read(bench.file(data[: len(data) // 2]))
    assert 1000 < len(spans) < 4000
    assert made.files[0].repaired["compressed file cut off"] == 1


def test_a_bracket_alone_is_an_empty_timeline(bench: Bench):
    made, spans = bench.read(bench.file("[\n"))
    assert spans == [] and made.files[0].repaired["closing bracket missing"] == 1


def test_unmatched_begin_and_end_events_are_dropped_or_repaired(bench: Bench):
    def be(ph: str, ts: int, name: str = "", tid: int = 0) -> dict[str, Any]:
        return {"ph": ph, "ts": ts, "pid": 1, "tid": tid, "name": name, "cat": "c"}

    events = [be("E", 5), be("B", 10, "a"), be("B", 20, "b"), be("E", 30), be("B", 40, "c"),
              be("i", 70, "moment")]  # fmt: skip
    made, spans = bench.read(bench.file(events))
    assert plain(spans) == [("a", 0, 30), ("b", 10, 10), ("c", 30, 0), ("moment", 60, 0)]
    assert made.files[0].dropped == {"ends without a beginning": 1}
    assert made.files[0].repaired == {"spans without an end": 2}


def test_times_that_are_written_as_text(bench: Bench):
    events = [x("a", 0, 1), x("b", "1000", "50"), x("c", "2000.5", 7), x("d", 3000, "8")]
    _, spans = bench.read(bench.file(events))
    assert plain(spans) == [("a", 0, 1), ("b", 1000, 50), ("c", 2000, 7), ("d", 3000, 8)]


def test_a_hundred_spans_within_one_another(bench: Bench):
    events = [{"ph": "B", "ts": i, "pid": 0, "tid": 0, "name": f"n{i}"} for i in range(100)]
    events += [{"ph": "E", "ts": 200 + i, "pid": 0, "tid": 0} for i in range(100)]
    _, spans = bench.read(bench.file(events))
    assert sorted(plain(spans)) == sorted((f"n{i}", i, 299 - 2 * i) for i in range(100))


def test_names_beyond_the_limit_share_one_name(bench: Bench):
    events = [x(f"name {i}", i, 1) for i in range(MOST_NAMES + 500)]
    made, spans = bench.read(bench.file(events))
    assert len(spans) == MOST_NAMES + 500
    assert made.files[0].dropped["arguments of spans: names"] == 500
    assert "(one of too many names)" in spans[-1][2] + spans[0][2]


def test_deeply_nested_brackets_do_not_break_the_import(bench: Bench):
    deep = f'[{lines(SOUND)}, {{"ph": "X", "args": {"[" * 100_000}'
    _, spans = bench.read(bench.file(deep))
    assert plain(spans) == sorted(EXPECTED)


@pytest.mark.parametrize(
    ("content", "told"),
    [
        ("", "is empty"),
        ("hello", "begins with 'hello'"),
        (b"\x0a\x9f\x01\x00binary", "is not a trace"),
        ('{"a": 1}', "neither `traceEvents` nor a list of events"),
    ],
)
def test_a_file_that_is_no_trace_is_refused_in_one_line(bench: Bench, content: Any, told: str):
    with pytest.raises(TraceError) as error:
        bench.read(bench.file(content))
    assert told in str(error.value) and "\n" not in str(error.value)


def test_importing_a_missing_file_raises_trace_error(bench: Bench):
    with pytest.raises(TraceError, match=r"cannot read .*No such file"):
        bench.read(bench.folder / "no.json")


# -- programs


def horovod(rank: int, late: int, epoch: int = 1_790_000_000_000_000) -> str:
    """A timeline as Horovod 0.28 writes it on rank 0, or a patched one on another rank."""
    start = {"name": "process_name", "ph": "M", "pid": 0,
             "args": {"start_time_since_epoch_in_micros": epoch}}  # fmt: skip
    out = ["[\n" + json.dumps(start) + ",\n"]
    name = {"name": "process_name", "ph": "M", "pid": 1, "args": {"name": "allreduce.grad.0"}}
    out.append(json.dumps(name) + ",\n")
    for n in range(3):
        at = 10_000 * n
        events = []
        if rank == 0:
            events = [
                {"ph": "B", "name": "NEGOTIATE_ALLREDUCE", "ts": at, "pid": 1},
                {"ph": "X", "name": "0", "ts": at, "pid": 1, "dur": 0},
                {"ph": "X", "name": "1", "ts": at + late, "pid": 1, "dur": 0},
                {"ph": "E", "ts": at + late, "pid": 1},
            ]
        begin = at + late + 10
        events += [
            {"ph": "B", "name": "ALLREDUCE", "ts": begin, "pid": 1},
            {"ph": "B", "name": "GLOO_ALLREDUCE", "ts": begin + 5, "pid": 1},
            {"ph": "E", "ts": begin + 50, "pid": 1},
            {"ph": "E", "ts": begin + 60, "pid": 1,
             "args": {"dtype": "float32", "shape": "[10, 2]"}},
        ]  # fmt: skip
        out.append(",".join(map(json.dumps, events)) + ("," if n < 2 else ""))
    return "".join(out)  # without the closing bracket: the program was killed


@pytest.mark.parametrize("name", ["timeline-64.json", "hvd_2024.json", "timeline-1.json"])
def test_a_number_in_the_name_of_horovods_timeline_is_no_rank(bench: Bench, name: str):
    """Only rank 0 writes one; the number may be the number of ranks, or a year."""
    made, spans = bench.read(bench.file(horovod(0, 2000), name))
    assert sorted({span[0] for span in spans}) == [0, 1]
    assert made.run.size == 2


def test_horovod_timelines_of_all_ranks_are_merged(bench: Bench):
    files = [
        bench.file(horovod(0, 2000), "hvd.json"),
        bench.file(horovod(1, 2000), "hvd.json.rank1"),
    ]
    made, spans = bench.read(*files)
    assert [f.program for f in made.files] == ["Horovod", "Horovod"]
    together = [span for span in spans if span[1] == "collective"]
    assert [(r, s, d) for r, _, _, s, d in together] == [
        (0, 0, 2070), (0, 10_000, 2070), (0, 20_000, 2070),
        (1, 2000, 70), (1, 12_000, 70), (1, 22_000, 70),
    ]  # fmt: skip
    assert json.loads(together[0][2]) == {
        "name": "allreduce grad.0", "op": "allreduce", "tensor": "grad.0", "library": "hvd",
        "dtype": "float32", "shape": "[10, 2]", "bytes": 80,
    }  # fmt: skip
    phases = {json.loads(name)["name"] for _, cat, name, _, _ in spans if cat == "phase"}
    assert phases == {"NEGOTIATE", "GLOO_ALLREDUCE"}
    assert made.run.start == 1_790_000_000_000_000


def test_an_unpatched_horovod_timeline_gives_other_ranks_ready_times(bench: Bench):
    made, spans = bench.read(bench.file(horovod(0, 3000)))
    assert [rank.rank for rank in made.run.ranks] == [0, 1]
    assert [(s, d) for r, _, _, s, d in spans if r == 1] == [
        (3000, 70), (13_000, 70), (23_000, 70),
    ]  # fmt: skip
    assert any("rank 1: only the times when it became ready" in note for note in made.run.notes)


def test_cached_horovod_operations_are_still_matched_between_ranks(bench: Bench):
    """The timeline does not record when ranks were ready for a cached operation."""
    events = [
        {"name": "process_name", "ph": "M", "pid": 1, "args": {"name": "allreduce.grad.0"}},
        # In a process set without rank 1.
        {"name": "process_name", "ph": "M", "pid": 2, "args": {"name": "allreduce.own"}},
    ]
    for n in range(100):
        at, late = 10_000 * n, 61_000_000 if n == 99 else 0
        for pid, ranks in ((1, (0, 1)), (2, (0,))):
            events.append({"ph": "B", "name": "NEGOTIATE_ALLREDUCE", "ts": at, "pid": pid})
            events += [
                {"ph": "X", "name": str(rank), "ts": at + rank * late, "pid": pid, "dur": 0}
                for rank in ranks
                if n in (0, 99)
            ]
            events.append({"ph": "E", "ts": at + late + 4, "pid": pid})
            events.append({"ph": "X", "name": "ALLREDUCE", "ts": at + late + 5, "pid": pid,
                           "dur": 60})  # fmt: skip
    made, spans = bench.read(bench.file(events))
    shared = [
        (rank, start, dur) for rank, cat, name, start, dur in spans
        if cat == "collective" and json.loads(name)["tensor"] == "grad.0"
    ]  # fmt: skip
    cached = [(10_000 * n, 65) for n in range(99)]
    assert [(start, dur) for rank, start, dur in shared if rank == 0] == [
        *cached, (990_000, 61_000_065),
    ]  # fmt: skip
    assert [(start, dur) for rank, start, dur in shared if rank == 1] == [
        *cached, (61_990_000, 65),
    ]  # fmt: skip
    assert len([1 for rank, *_ in spans if rank == 1]) == 100
    assert made.run.notes[1:] == [
        "when ranks became ready is unknown for 196 of 200 operations: "
        "Horovod had them in its cache"
    ]
    said = profile_of(bench.store, made.run).diagnosis
    assert "rank 1 arrives last in 1 % of 99 allreduces and costs 98 % of a step" in said


@pytest.mark.parametrize("order", [1, -1])
def test_a_horovod_timeline_is_merged_with_pytorch_traces_of_its_ranks(bench: Bench, order: int):
    kernel = [x("gemm", 15, 4, 0, 7, cat="kernel")]
    traces = [kineto(rank, traceEvents=kernel, distributedInfo={}) for rank in (0, 1)]
    files = [bench.file(each, f"rank{rank}.json") for rank, each in enumerate(traces)]
    files.insert(0, bench.file(horovod(0, 2000), "hvd.json"))
    made, spans = bench.read(*files[::order])
    assert [rank.rank for rank in made.run.ranks] == [0, 1]
    assert [(r, s) for r, cat, _, s, _ in spans if cat == "kernel"] == [(0, 15), (1, 1015)]
    assert [(r, s, d) for r, cat, _, s, d in spans if cat == "collective"] == [
        (0, 0, 2070), (0, 10_000, 2070), (0, 20_000, 2070),
        (1, 2000, 70), (1, 12_000, 70), (1, 22_000, 70),
    ]  # fmt: skip


def test_nccl_kernels_of_horovod_operations_are_not_counted_twice(bench: Bench):
    kernels = [x(NCCL, at, 50, 0, 7, cat="kernel") for at in (2010, 12_010, 22_010)]
    trace = kineto(0, traceEvents=[*kernels, x("gemm", 1, 4, 0, 7, cat="kernel")])
    files = bench.file(horovod(0, 2000), "hvd.json"), bench.file(trace, "rank0.json")
    made, spans = bench.read(*files)
    own = [json.loads(name) for rank, cat, name, *_ in spans if (rank, cat) == (0, "collective")]
    assert {each["library"] for each in own} == {"hvd"} and len(own) == 3
    assert made.files[1].dropped["kernels of Horovod's operations"] == 3
    alone, _ = bench.read(files[1])
    assert not alone.files[0].dropped


def of_one_rank(tick: str, lasting: int) -> list[dict[str, Any]]:
    """Horovod's timeline of a single rank; each negotiation takes `lasting` microseconds."""
    tensor = {"name": "process_name", "ph": "M", "pid": 1, "args": {"name": "allreduce.grad.0"}}
    events = [tensor]
    for at in (0, 1000, 2000):
        events += [
            {"ph": "B", "name": "NEGOTIATE_ALLREDUCE", "ts": at, "pid": 1},
            {"ph": "X", "name": tick, "ts": at, "pid": 1, "dur": 0},
            {"ph": "E", "ts": at + lasting, "pid": 1},
            {"ph": "X", "name": "ALLREDUCE", "ts": at + 10, "pid": 1, "dur": 60},
        ]
    return events


def test_horovods_timeline_of_a_single_rank(bench: Bench):
    made, spans = bench.read(bench.file(of_one_rank("0", 0), "timeline-3.json"))
    assert [rank.rank for rank in made.run.ranks] == [0]
    found = [(start, dur) for _, cat, _, start, dur in spans if cat == "collective"]
    assert found == [(0, 70), (1000, 70), (2000, 70)]


@pytest.mark.parametrize("tick", ["²", "4096", "99999999999", "9" * 5000])
def test_invalid_rank_numbers_in_a_horovod_timeline_are_ignored(bench: Bench, tick: str):
    made, _ = bench.read(bench.file(of_one_rank(tick, 5)))
    assert made.run.size == 1
    assert made.files[0].dropped["ranks with too high a number"] == (0 if tick == "²" else 3)


def test_tensors_of_many_shapes_keep_their_names(bench: Bench, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(lanes, "MOST_VARIANTS", 1)
    shapes = iter(range(9))
    text = re.sub(r"\[10, 2\]", lambda found: f"[{next(shapes)}, 2]", horovod(0, 2000))
    _, spans = bench.read(bench.file(text))
    together = [json.loads(name) for _, cat, name, _, _ in spans if cat == "collective"]
    assert {(each.get("library"), each.get("tensor")) for each in together} == {("hvd", "grad.0")}


def test_horovods_adasum_is_a_collective(bench: Bench):
    _, spans = bench.read(bench.file(horovod(0, 2000).replace("ALLREDUCE", "ADASUM")))
    together = [(rank, start) for rank, cat, _, start, _ in spans if cat == "collective"]
    assert together == [(rank, 10_000 * n + 2000 * rank) for rank in (0, 1) for n in range(3)]
    assert "adasum grad.0" in {json.loads(name)["name"] for _, _, name, _, _ in spans}


def kineto(rank: int, **more: Any) -> dict[str, Any]:
    nccl = {
        "Collective name": "allreduce", "In msg nelems": 1000, "dtype": "BFloat16",
        "Process Group Name": "tp", "Process Group Ranks": "[0, 1]", "External id": 7,
    }  # fmt: skip
    return {
        "schemaVersion": 1,
        "distributedInfo": {"backend": "nccl", "rank": rank, "world_size": 4},
        "traceEvents": [
            x("aten::mm", 10.4, 5.3, 77, 77, cat="cpu_op", args={"External id": rank}),
            x("nccl:all_reduce", 12, 2, 77, 77, cat="user_annotation"),
            x("ncclDevKernel_AllReduce_Sum_bf16_RING_LL(x)", 20, 30, 0, 7, cat="kernel", args=nccl),
            x("gemm", 15, 4, 0, 7, cat="kernel"),
            x("ProfilerStep#12", 5, 90, 77, 77, cat="user_annotation"),
            x("enumerate(DataLoader)#_Single.__next__", 6, 1, 77, 77, cat="user_annotation"),
            x("cudaLaunchKernel", 14, 1, 77, 78, cat="cuda_runtime"),
        ],
        "baseTimeNanoseconds": 1_790_000_000_000_000_000 + 1_000_000 * rank,
        "traceName": "t",
        **more,
    }


def test_pytorch_traces_have_their_rank_clock_and_categories(bench: Bench):
    made, spans = bench.read(bench.file(kineto(3), "b.json"), bench.file(kineto(1), "a.json"))
    assert [rank.rank for rank in made.run.ranks] == [1, 3]
    of = {rank: {cat: (json.loads(name), start, dur) for r, cat, name, start, dur in spans
                 if r == rank} for rank in (1, 3)}  # fmt: skip
    # The base is 1 ms later on each rank: 2,000 µs from rank 1 to rank 3.
    assert of[3]["op"][1] - of[1]["op"][1] == 2000
    assert of[1]["op"] == ({"name": "aten::mm"}, 5, 5)
    assert of[1]["collective"] == (
        {"name": "allreduce", "op": "allreduce", "library": "dist", "bytes": 2000,
         "dtype": "BFloat16", "ranks": [0, 1], "group": "tp (0–1)",
         "kernel": "ncclDevKernel_AllReduce_Sum_bf16_RING_LL(x)"}, 15, 30,
    )  # fmt: skip
    assert of[1]["kernel"][0]["name"] == "gemm"
    assert of[1]["step"][0]["name"] == "ProfilerStep"
    assert of[1]["data"][1:] == (1, 1)
    assert of[1]["user"][0]["name"] == "nccl:all_reduce"
    assert of[1]["cuda_runtime"][0]["name"] == "cudaLaunchKernel"


NCCL = "ncclDevKernel_AllReduce_Sum_f32_RING_LL(x)"


def nccl(count: int, **args: Any) -> list[dict[str, Any]]:
    """GPU kernels of `count` allreduces, numbered by `Seq`."""
    told = {"Collective name": "allreduce", **args}
    return [x(NCCL, 100 * n + 50, 20, 0, 7, cat="kernel", args={**told, "Seq": n})
            for n in range(count)]  # fmt: skip


def test_process_groups_stay_distinct_among_many_collectives(
    bench: Bench, monkeypatch: pytest.MonkeyPatch
):
    monkeypatch.setattr(lanes, "MOST_VARIANTS", 10)
    events = [each for group in "ab" for each in nccl(50, **{"Process Group Name": group})]
    made, _ = bench.read(bench.file(kineto(0, traceEvents=events)))
    assert not made.files[0].dropped, "their numbers make no other names"
    for n, each in enumerate(events):
        each["args"]["something"] = n
    made, spans = bench.read(bench.file(kineto(0, traceEvents=events)))
    groups = [json.loads(name).get("group") for _, _, name, _, _ in spans]
    assert sorted(groups) == ["a"] * 50 + ["b"] * 50
    assert made.files[0].dropped


def test_kernels_launched_before_the_profiler_started_are_not_matched(bench: Bench):
    before = [x(NCCL, at, 5, 0, 7, cat="kernel") for at in (10, 20)]
    files = [
        bench.file(kineto(0, traceEvents=[*before, *nccl(3)]), "0.json"),
        bench.file(kineto(1, traceEvents=nccl(3)), "1.json"),
    ]
    made, spans = bench.read(*files)
    found = [(rank, cat) for rank, cat, *_ in spans]
    assert found == [*[(0, "collective")] * 3, *[(0, "kernel")] * 2, *[(1, "collective")] * 3]
    assert made.run.notes == []
    made, _ = bench.read(files[0], bench.file(kineto(1, traceEvents=nccl(2)), "1.json"))
    assert "ranks have different numbers of allreduce" in made.run.notes[0]


def test_nccl_kernels_replayed_by_cuda_graphs_are_collectives(bench: Bench):
    """Kernels that a CUDA graph replays have no launch of their own."""
    replayed = [x(NCCL, 10 * n, 5, 0, 7, cat="kernel") for n in range(5)]
    _, spans = bench.read(bench.file(kineto(0, traceEvents=[*replayed, *nccl(1)])))
    assert [cat for _, cat, *_ in spans] == ["collective"] * 6


def test_gloos_calls_are_collectives(bench: Bench):
    args = {"Input type": ["float"], "Input Dims": [[10, 5]]}
    trace = kineto(
        0, traceEvents=[x("gloo:all_reduce", 1, 2, 9, 9, cat="user_annotation", args=args)]
    )
    _, spans = bench.read(bench.file(trace))
    assert [(cat, json.loads(name)["bytes"]) for _, cat, name, _, _ in spans] == [
        ("collective", 200)
    ]


@pytest.mark.parametrize("spelt", ["gpu_user_annotation", "gpu_user_Annotation"])
def test_gpu_annotations_are_not_counted_again_as_steps_or_data(bench: Bench, spelt: str):
    names = ("ProfilerStep#3", "Optimizer.step#SGD.step", "enumerate(DataLoader)#_Single.__next__")
    events = []
    for n, name in enumerate(names):
        events.append(x(name, 1000 * n, 900, 77, 77, cat="user_annotation"))
        events.append(x(name, 1000 * n, 600, 0, 7, cat=spelt))
    _, spans = bench.read(bench.file(kineto(0, traceEvents=events)))
    found = [(cat, json.loads(name)["name"], dur) for _, cat, name, _, dur in spans]
    assert [each for each in found if each[0] in ("step", "data")] == [
        ("data", names[2], 900), ("step", names[1], 900), ("step", "ProfilerStep", 900),
    ]  # fmt: skip
    assert [dur for cat, _, dur in found if cat == spelt] == [600] * 3


def test_an_unknown_collective_name_falls_back_to_the_kernels_name(
    bench: Bench,
):
    args = {"Collective name": "allreduce_of_some_other_kind"}
    name = "ncclDevKernel_AllReduce_Sum_f32_RING_LL(x)"
    trace = kineto(0, traceEvents=[x(name, 1, 2, 0, 7, cat="kernel", args=args)])
    _, [(_, cat, define, _, _)] = bench.read(bench.file(trace))
    assert (cat, json.loads(define)["op"]) == ("collective", "allreduce")


def test_communication_overlapped_by_gpu_computation_is_not_exposed(bench: Bench):
    files = []
    for rank in range(2):
        events = []
        for at in range(0, 400_000, 20_000):
            events.append(x("gemm", at, 17_000, 0, 7, cat="kernel"))
            name = "ncclDevKernel_AllReduce_Sum_f32_RING_LL(x)"
            events.append(x(name, at + 5000, 10_000, 0, 20, cat="kernel"))
        files.append(bench.file(kineto(rank, traceEvents=events), f"{rank}.json"))
    made, _ = bench.read(*files)
    profile = profile_of(bench.store, made.run)
    assert [(row.exposed, row.waiting) for row in profile.ranks] == [(0, 0)] * 2
    assert profile.diagnosis == "steps 2–20: no rank stands out"


# -- ranks and clocks


@pytest.mark.parametrize(
    ("name", "rank"),
    [
        ("trace.rank3.json.gz", 3), ("rank_12_trace.json", 12), ("hvd.json.rank1", 1),
        ("timeline.2.json", 2), ("run2-rank0.pt.trace.json", 0), ("worker7.json", 7),
        ("vm_12345.1790000000.pt.trace.json", None), ("trace.json", None), ("r4.json", 4),
        ("trace_1.json", 1),
        ("node01_4711.1790000000000000000.pt.trace.json", None),
        ("gpu3_77.1790000000000.pt.trace.json.gz", None),
        ("rank2_4711.1790000000000000000.pt.trace.json", 2),
        ("rank2.1790000000000000000.pt.trace.json.gz", 2),
        ("trace_2024-05-03.json", None), ("trace_20240503_1230.json", None),
        ("2024-05-03T12:30:05.json", None), ("trace_2024-05-03.2.json", 2),
        ("rank1_2024-05-03_12-30-05.json", 1), ("rank3_iter_100.json", 3),
        ("rank3_step_100.pt.trace.json.gz", 3),
    ],
)  # fmt: skip
def test_the_rank_in_a_files_name(name: str, rank: int | None):
    assert rank_in_name(Path(name)) == rank


def test_files_without_ranks_and_clocks_become_ranks_that_start_at_zero(bench: Bench):
    files = [bench.file([x("a", 5000, 1)], "one.json"), bench.file([x("b", 90_000, 1)], "two.json")]
    made, spans = bench.read(*files)
    assert [(rank, start) for rank, _, _, start, _ in spans] == [(0, 0), (1, 0)]
    assert (
        "no common clock: in one.json, two.json, time starts at the first event" in made.run.notes
    )


def test_a_second_file_with_the_same_rank_becomes_another_rank(bench: Bench):
    made, _ = bench.read(
        bench.file([x("a", 1, 1)], "a.rank1.json"), bench.file([x("b", 1, 1)], "b.rank1.json")
    )
    assert [rank.rank for rank in made.run.ranks] == [0, 1]
    assert any("b.rank1.json: another file has the same rank" in note for note in made.run.notes)


def test_files_of_a_profiler_that_ran_twice_are_of_one_rank(bench: Bench):
    first = kineto(1)
    again = first | {"baseTimeNanoseconds": first["baseTimeNanoseconds"] + 5_000_000_000}
    made, spans = bench.read(bench.file(first, "a.json"), bench.file(again, "b.json"))
    assert [rank.rank for rank in made.run.ranks] == [1]
    assert [start for _, cat, _, start, _ in spans if cat == "op"] == [5, 5_000_005]
    between = [(start, dur) for _, cat, _, start, dur in spans if cat == "unrecorded"]
    assert between == [(90, 5_000_000 - 90)]
    assert "rank 1: several files, one after the other" in made.run.notes[0]
    again["baseTimeNanoseconds"] = first["baseTimeNanoseconds"] + 50_000
    made, _ = bench.read(bench.file(first, "a.json"), bench.file(again, "b.json"))
    assert [rank.rank for rank in made.run.ranks] == [0, 1], "they overlap"
    again["baseTimeNanoseconds"] = first["baseTimeNanoseconds"] + 86_400 * 10**9
    made, _ = bench.read(bench.file(first, "a.json"), bench.file(again, "b.json"))
    assert [rank.rank for rank in made.run.ranks] == [0, 1], "of another day"
    again["baseTimeNanoseconds"] = first["baseTimeNanoseconds"] + 5_000_000_000
    again["traceEvents"] = [x("aten::mm", 10, 5, 78, 78, cat="cpu_op")]
    made, _ = bench.read(bench.file(first, "a.json"), bench.file(again, "b.json"))
    assert [rank.rank for rank in made.run.ranks] == [0, 1], "of another process"


def test_a_note_says_that_the_clocks_of_hosts_were_not_compared(bench: Bench):
    files = [bench.file(kineto(rank, host_name=f"n{rank}"), f"{rank}.json") for rank in (0, 1)]
    made, _ = bench.read(*files)
    assert made.run.notes == ["the clocks of 2 hosts were not compared and may differ"]


def test_processes_of_one_file_are_ranks(bench: Bench):
    events = [x("a", 1, 1, pid=400), x("b", 1, 1, pid=30)]
    made, spans = bench.read(bench.file(events))
    assert [(rank, json.loads(name)["name"]) for rank, _, name, _, _ in spans] == [
        (0, "b"),
        (1, "a"),
    ]
    named = [{"ph": "M", "name": "process_name", "pid": p, "args": {"name": f"Rank {r}"}}
             for p, r in ((400, 2), (30, 5))]  # fmt: skip
    made, spans = bench.read(bench.file([*events, *named]))
    assert [rank.rank for rank in made.run.ranks] == [2, 5] and made.run.size == 6


@pytest.mark.parametrize("own", ["data", "wait", "unrecorded"])
def test_a_thread_named_like_a_category_gets_a_category_of_its_own(bench: Bench, own: str):
    name = {"ph": "M", "name": "thread_name", "pid": 0, "tid": 1, "args": {"name": own}}
    _, spans = bench.read(bench.file([name, x("work", 1, 9, tid=1, cat="")]))
    assert {cat for _, cat, _, _, _ in spans} == {f"thread {own}"}


def test_threads_with_a_custom_category_are_separate_lanes(bench: Bench):
    name = {"ph": "M", "name": "thread_name", "pid": 0, "tid": 1, "args": {"name": "IO"}}
    events = [name, x("a", 1, 9, tid=1, cat="net"), x("b", 1, 9, tid=2, cat="net")]
    _, spans = bench.read(bench.file(events))
    assert {cat for _, cat, _, _, _ in spans} == {"net · IO", "net · thread 2"}
