"""Horovod's collectives as spans: read from its native code, or from a timeline file."""

from __future__ import annotations

import ast
import ctypes
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from statistics import median
from types import SimpleNamespace
from typing import Any

import pytest

from cells import failure, finish
from rankroom.cluster.local import Cluster
from rankroom.rank.frameworks.horovod import (
    horovod_calls,
    horovod_spans,
    horovod_timeline,
    process_sets,
)
from rankroom.rank.frameworks.horovod.horovod_spans import NativeSource, describe, netstrings
from rankroom.rank.frameworks.horovod.horovod_timeline import Reader, TimelineSource
from rankroom.rank.world import World
from rankroom.reporting.spans import recorder
from rankroom.run.run import Run

HOSTILE = ["a b", 'a"b', "a\nb", "a\\b", "größe", "", " ", "a:b", "]", '},{"ph": "B"']


@pytest.fixture
def run() -> Iterator[None]:
    """The recorder of spans, in a run that began at 1 s."""
    recorder.begin()
    recorder.began = 1_000_000
    yield
    recorder.on = False
    recorder.began = 0


def taken() -> list[tuple[str, dict[str, Any], int, int]]:
    """Return category, name, start (since the epoch) and duration of each new span."""
    found = []
    for event in recorder.take(0):
        TABLE.extend(event.get("define", []))
        now = 0
        for number, start, dur in zip(event["name"], event["start"], event["dur"], strict=True):
            now += start
            found.append((event["cat"], TABLE[number], now, dur))
    return found


TABLE: list[dict[str, Any]] = []


@pytest.fixture(autouse=True)
def table() -> None:
    TABLE.clear()


class Compiled:
    """Replaces the compiled library: returns spans as the native recorder does."""

    def __init__(self, piece: int = 1000) -> None:
        self.spans: tuple[list[tuple[int, int, int]], ...] = ([], [])
        self.names = b""
        self.on = 0
        self.piece = piece
        self.horovod_take_spans = SimpleCall(self.take)
        self.horovod_take_span_names = SimpleCall(self.take_names)
        self.horovod_take_spans_dropped = SimpleCall(lambda: 0)

    def horovod_record_spans(self, on: int) -> None:
        self.on = on

    def name(self, number: int, text: bytes) -> None:
        line = b"%d %s" % (number, text)
        self.names += b"%d:%s" % (len(line), line)

    def take(self, kind: int, buffer: Any, most: int) -> int:
        some = self.spans[kind][:most]
        del self.spans[kind][:most]
        buffer[: 3 * len(some)] = [each for span in some for each in span]
        return len(some)

    def take_names(self, buffer: Any, most: int) -> int:
        some = self.names[: min(most, self.piece)]
        self.names = self.names[len(some) :]
        ctypes.memmove(buffer, some, len(some))
        return len(some)


class SimpleCall:
    """A function that can have attributes, as those of ctypes can."""

    def __init__(self, call: Any) -> None:
        self.call = call

    def __call__(self, *args: Any) -> Any:
        return self.call(*args)


def native(compiled: Compiled, library: str = "torch") -> NativeSource:
    basics = SimpleNamespace(MPI_LIB_CTYPES=compiled)
    return NativeSource(library, basics, World(size=3))


def test_netstrings_hold_any_byte() -> None:
    texts = [each.encode() for each in HOSTILE] + [b"\xff\x00"]
    whole = b"".join(b"%d:%s" % (len(each), each) for each in texts)
    assert list(netstrings(whole)) == [*HOSTILE, "\\xff\x00"]


@pytest.mark.parametrize("tensor", HOSTILE)
def test_a_tensor_may_have_any_name(tensor: str) -> None:
    text = f"collective ALLREDUCE 0 48 float32 [4,3] {tensor}"
    fields, stream = describe(text, "hvd.torch", dict)
    assert fields.get("tensor", "") == tensor
    assert (fields["bytes"], fields["shape"], fields["dtype"]) == (48, [4, 3], "float32")
    assert stream == "hvd.torch 0" and "group" not in fields
    fields, _ = describe(f"phase GLOO_ALLREDUCE 5 0 {tensor}", "hvd.torch", dict)
    assert fields.get("tensor", "") == tensor
    assert fields["name"] == "GLOO_ALLREDUCE" and fields["fused"] == 5


def test_a_barrier_is_described_without_a_tensor() -> None:
    fields, _ = describe("collective BARRIER 0 - - - ", "hvd.torch", dict)
    assert fields == {"name": "barrier", "op": "barrier", "library": "hvd.torch"}


def test_tensorflows_prefix_is_removed_from_operation_names() -> None:
    text = "collective ALLREDUCE 0 4 float32 [] HorovodAllreduce"
    assert describe(f"{text}_grads_0", "hvd.tensorflow", dict)[0]["name"] == "allreduce grads_0"
    assert describe(text, "hvd.tensorflow", dict)[0]["name"] == "allreduce"


def test_spans_are_taken_with_their_names(run: None, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(process_sets._order, "torch", [(0, 2)])
    compiled = Compiled(piece=7)
    source = native(compiled)
    assert compiled.on == 1
    compiled.name(0, b"collective ALLREDUCE 0 48 float32 [4,3] grad.3")
    compiled.name(1, b"phase NEGOTIATE 2 0 grad.3")
    compiled.name(2, b"collective ALLREDUCE 1 48 float32 [4,3] grad.3")
    compiled.spans[0].extend([(0, 1_000_010, 500), (2, 1_000_300, 9)])
    compiled.spans[1].append((1, 1_000_010, 90))
    source.take()
    common = {"library": "hvd.torch", "tensor": "grad.3"}
    whole = common | {"op": "allreduce", "bytes": 48, "dtype": "float32", "shape": [4, 3]}
    whole["name"] = "allreduce grad.3"
    found = {(cat, start, dur): name for cat, name, start, dur in taken()}
    assert found == {
        ("collective", 1_000_010, 500): whole,
        ("collective", 1_000_300, 9): whole | {"group": "process set 1", "ranks": [0, 2]},
        ("phase", 1_000_010, 90): common | {"name": "NEGOTIATE", "fused": 2},
    }
    source.take()
    assert taken() == []
    source.finish()
    assert compiled.on == 0
    source.begin()
    assert compiled.on == 1


def test_a_span_may_use_a_name_defined_in_an_earlier_run(run: None) -> None:
    compiled = Compiled()
    source = native(compiled)
    compiled.name(0, b"collective ALLREDUCE 0 4 float32 [] x")
    compiled.spans[0].append((0, 1_000_000, 1))
    source.take()
    assert len(taken()) == 1
    recorder.begin()
    recorder.began = 2_000_000
    TABLE.clear()
    # One span ended between the runs, the other began before this run and ends in it.
    compiled.spans[0].extend([(0, 1_500_000, 9), (0, 1_999_990, 20)])
    source.take()
    ((cat, name, start, dur),) = taken()
    assert (cat, name["tensor"], start, dur) == ("collective", "x", 1_999_990, 20)


def test_many_spans_are_taken_in_several_calls(run: None, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(horovod_spans, "SPANS_PER_CALL", 10)
    monkeypatch.setattr(horovod_spans, "MAX_KEPT_NAMES", 50)
    compiled = Compiled()
    source = native(compiled)
    for number in range(105):
        compiled.name(number, b"collective ALLREDUCE 0 4 float32 [] t%d" % number)
        compiled.spans[0].append((number, 1_000_000 + number, 1))
        source.take()
    compiled.spans[0].extend((104, 2_000_000 + at, 1) for at in range(25))
    source.take()
    found = taken()
    assert [name["tensor"] for _, name, _, _ in found[:105]] == [f"t{at}" for at in range(105)]
    assert len(found) == 130
    for kept in (source._described, source._numbers, source._streams):
        assert len(kept) <= 100


def test_the_number_of_dropped_spans_is_noted(run: None) -> None:
    compiled = Compiled()
    compiled.horovod_take_spans_dropped = SimpleCall(iter([17, 0]).__next__)
    source = native(compiled)
    source.take()
    assert ["17 spans" in note for note in recorder.new_notes()] == [True]


META = (
    '[\n{"name": "process_name", "ph": "M", "pid": 0, "args": '
    '{"start_time_since_epoch_in_micros":5000000}},\n'
    '{"name": "process_sort_index", "ph": "M", "pid": 0, "args": {"sort_index": 0}},\n'
)


def timeline(tensor: str, pid: int = 1, at: int = 0, ticks: str = "01") -> str:
    """Return what Horovod writes for one allreduce; it escapes nothing in a name."""
    ready = [
        f'{{"ph": "X", "name": "{rank}", "ts": {at + 10 * (1 + i)}, "pid": {pid}, "dur": 0}},'
        for i, rank in enumerate(ticks)
    ]
    return "".join(
        [
            f'{{"name": "process_name", "ph": "M", "pid": {pid}, '
            f'"args": {{"name": "{tensor}"}}}},\n',
            f'{{"name": "process_sort_index", "ph": "M", "pid": {pid}, '
            f'"args": {{"sort_index": {pid}}}}},\n',
            f'{{"ph": "B", "name": "NEGOTIATE_ALLREDUCE", "ts": {at + 5}, "pid": {pid}}},',
            *ready,
            f'{{"ph": "E", "ts": {at + 40}, "pid": {pid}}},',
            f'{{"ph": "B", "name": "ALLREDUCE", "ts": {at + 41}, "pid": {pid}}},',
            f'{{"ph": "B", "name": "GLOO_ALLREDUCE", "ts": {at + 42}, "pid": {pid}}},',
            f'{{"ph": "E", "ts": {at + 90}, "pid": {pid}}},',
            f'{{"ph": "i", "name": "CYCLE_START", "ts": {at + 91}, "s": "g"}},',
            f'{{"ph": "E", "ts": {at + 99}, "pid": {pid}, '
            '"args": {"dtype": "float32", "shape": "[4]"}}',
        ]
    )


EXPECTED = [
    ("phase", {"name": "rank 1 ready", "tensor": "x"}, 5_000_020, 0),
    ("phase", {"name": "NEGOTIATE", "tensor": "x"}, 5_000_005, 35),
    ("phase", {"name": "GLOO_ALLREDUCE", "tensor": "x"}, 5_000_042, 48),
    (
        "collective",
        {"name": "allreduce x", "tensor": "x", "op": "allreduce", "dtype": "float32"},
        5_000_010,
        89,
    ),
]


@pytest.mark.parametrize("piece", [1, 2, 3, 17, 100, 5000])
def test_a_timeline_file_can_be_read_in_pieces_of_any_size(piece: int) -> None:
    whole = (META + timeline("allreduce.x")).encode()
    reader = Reader(0)
    found = []
    for at in range(0, len(whole), piece):
        found += reader.feed(whole[at : at + piece])
    assert found == EXPECTED


def test_a_timeline_without_ticks_begins_with_its_negotiation() -> None:
    *_, (cat, _, start, dur) = Reader(0).feed((META + timeline("x", ticks="")).encode())
    assert (cat, start, dur) == ("collective", 5_000_005, 94)


@pytest.mark.parametrize("tensor", HOSTILE)
def test_a_name_that_breaks_the_timelines_json_loses_no_other_tensor(tensor: str) -> None:
    text = META + timeline(tensor) + "," + timeline("allreduce.x", pid=2)
    assert list(Reader(0).feed(text.encode()))[-4:] == EXPECTED


def test_a_utf8_character_may_be_split_between_two_reads() -> None:
    whole = (META + timeline("größe")).encode()
    reader = Reader(0)
    found = [each for at in range(len(whole)) for each in reader.feed(whole[at : at + 1])]
    assert found[-1][1]["tensor"] == "größe"


@pytest.mark.parametrize(
    "text", ["", "[", "null", "{}", '[{"ph": 3}]', '{"ph": "E", "ts": 3}', "{{"]
)
def test_a_file_that_is_no_timeline_yields_no_spans(text: str) -> None:
    assert list(Reader(0).feed(text.encode())) == []


class Foreign:
    """Replaces a Horovod that others built: writes its timeline when it is stopped."""

    def __init__(self) -> None:
        self.file: Path | None = None
        self.text = ""
        self.MPI_LIB_CTYPES = self

    def horovod_start_timeline(self, path: Any, cycles: Any) -> int:
        self.file = Path(path.value.decode())
        self.text = META
        return 1

    def horovod_stop_timeline(self) -> int:
        assert self.file is not None
        self.file.write_text(self.text + "]")
        return 1

    def is_initialized(self) -> bool:
        return True


@pytest.fixture
def foreign(
    run: None, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> tuple[Foreign, TimelineSource]:
    monkeypatch.setenv("RANKROOM_SPOOL", str(tmp_path))
    made = Foreign()
    return made, TimelineSource("torch", made, World(size=2))


def test_the_timeline_of_an_unpatched_horovod_is_read_when_the_cell_ends(
    foreign: tuple[Foreign, TimelineSource], monkeypatch: pytest.MonkeyPatch
) -> None:
    horovod, source = foreign
    source.started()
    source.take()
    source.finish()
    assert taken() == [] and recorder.new_notes() == []  # no collective was called
    monkeypatch.setitem(horovod_calls._calls, "torch", 1)
    assert horovod.file is not None
    horovod.file.write_text(META)  # Horovod writes this as it starts
    horovod.text += timeline("allreduce.x")
    source.finish()
    library = {"library": "hvd.torch"}
    assert taken() == [(cat, name | library, *times) for cat, name, *times in EXPECTED]
    assert recorder.new_notes() == [horovod_timeline.RANK_0_ONLY]


def test_other_ranks_of_an_unpatched_horovod_note_why_they_have_no_spans(
    run: None, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setenv("RANKROOM_SPOOL", str(tmp_path))
    horovod = Foreign()
    source = TimelineSource("torch", horovod, World(rank=1, size=2))
    source.started()
    monkeypatch.setitem(horovod_calls._calls, "torch", 1)
    source.finish()
    assert horovod.file is None
    assert recorder.new_notes() == [horovod_timeline.RANK_0_ONLY]


def test_a_timeline_started_by_the_user_takes_precedence(
    foreign: tuple[Foreign, TimelineSource], monkeypatch: pytest.MonkeyPatch
) -> None:
    horovod, source = foreign
    source.started()
    ours = horovod.file
    source.users(True)
    assert "hvd.torch are not in this record" in recorder.new_notes()[0]
    horovod.file = Path("/nowhere/of/the/users")
    monkeypatch.setitem(horovod_calls._calls, "torch", 1)
    source.finish()  # must not stop the user's timeline
    assert taken() == []
    source.users(False)
    assert horovod.file == ours


@pytest.mark.parametrize("rank", [0, 1])
def test_a_file_set_in_horovod_timeline_takes_precedence(
    foreign: tuple[Foreign, TimelineSource], monkeypatch: pytest.MonkeyPatch, rank: int
) -> None:
    horovod, _ = foreign
    source = TimelineSource("torch", horovod, World(rank=rank, size=2))
    monkeypatch.setenv("HOROVOD_TIMELINE", "mine.json")
    source.started()
    source.finish()
    assert horovod.file is None and recorder.new_notes() == []
    monkeypatch.setitem(horovod_calls._calls, "torch", 1)
    source.finish()
    [note] = recorder.new_notes()
    assert note.startswith("HOROVOD_TIMELINE makes Horovod write mine.json: the collectives of hvd")
    monkeypatch.setenv("HOROVOD_TIMELINE", "DYNAMIC")
    source.started()
    assert (horovod.file is not None) == (rank == 0)


def test_a_timeline_file_that_grows_too_large_is_restarted(
    foreign: tuple[Foreign, TimelineSource], monkeypatch: pytest.MonkeyPatch
) -> None:
    horovod, source = foreign
    monkeypatch.setattr(horovod_timeline, "MAX_FILE_BYTES", 1000)
    source.started()
    assert horovod.file is not None
    for at in range(5):
        horovod.text += timeline("allreduce.x", at=1000 * at) + ","
        horovod.file.write_text(horovod.text)
        source.take()
    assert len(horovod.text) < 3000
    assert Counter(cat for cat, *_ in taken())["collective"] == 5


Recorded = list[dict[str, Any]]


def recorded(run: Run, rank: int, cat: str) -> Recorded:
    """Return a rank's recorded spans of a category: the fields of their names, and times."""
    table: list[dict[str, Any]] = []
    found = []
    for event in run._store.events(run.id):
        if (event["kind"], event["rank"]) != ("spans", rank):
            continue
        table.extend(event.get("define", []))
        now = 0
        for number, start, dur in zip(event["name"], event["start"], event["dur"], strict=True):
            now += start
            if event["cat"] == cat:
                found.append(table[number] | {"start": now, "dur": dur, "end": now + dur})
    return sorted(found, key=lambda each: each["start"])


def collectives(run: Run, rank: int) -> Recorded:
    return recorded(run, rank, "collective")


def done(cluster: Cluster, source: str, seconds: float = 120) -> Run:
    made = finish(cluster, source, seconds)
    assert made.state == "done", failure(made)
    return made


@pytest.mark.cluster
def test_torch_collectives_are_recorded_as_spans_on_both_ranks(frameworks: Cluster) -> None:
    made = done(
        frameworks,
        """
        import time
        import torch
        import horovod.torch as hvd
        hvd.init()
        x = torch.ones(4, 3)
        hvd.allreduce(x, name="warm")
        time.sleep(0.2 * rank)
        begin = time.time_ns() // 1000
        hvd.allreduce(x, name="late")
        end = time.time_ns() // 1000
        hvd.allreduce(x)
        hvd.grouped_allreduce([x, x[0]], name="both")
        hvd.broadcast(x.double(), 0, name="weights")
        hvd.allgather(x[0].int())
        hvd.barrier()
        for name in ('a "b"', "a\\nb", "größe"):
            hvd.allreduce(x, name=name)
        [begin, end]
        """,
    )
    by_rank = [collectives(made, rank) for rank in (0, 1)]
    for mine in by_rank:
        # The tensors of a group may complete in any order.
        names = [each["name"] for each in mine]
        assert names[:2] == ["allreduce warm", "allreduce late"]
        assert sorted(names[2:5]) == [
            "allreduce #1",
            "allreduce both_1of2",
            "allreduce both_2of2",
        ]
        assert names[5:] == [
            "broadcast weights",
            "allgather #2",
            "barrier",
            'allreduce a "b"',
            "allreduce a\nb",
            "allreduce größe",
        ]
        assert {each["library"] for each in mine} == {"hvd.torch"}
        assert all("group" not in each for each in mine)
        late = mine[1]
        assert (late["op"], late["tensor"], late["dtype"]) == ("allreduce", "late", "float32")
        assert (late["shape"], late["bytes"]) == ([4, 3], 48)
        assert mine[5]["dtype"] == "float64" and mine[6]["shape"] == [3]
    waited, hurried = by_rank[0][1], by_rank[1][1]
    # On one clock, each span lies within its own call, and none ends before both ranks arrived.
    for rank, whole in enumerate((waited, hurried)):
        begin, end = (each - made.info.start for each in ast.literal_eval(made.results[rank]))
        assert begin <= whole["start"] + 100 and whole["end"] - 100 <= end
        assert whole["end"] >= max(waited["start"], hurried["start"])
    for rank, whole in enumerate((waited, hurried)):
        parts = [each for each in recorded(made, rank, "phase") if each.get("tensor") == "late"]
        assert [each["name"] for each in parts] == ["NEGOTIATE", "GLOO_ALLREDUCE"]
        assert parts[0]["start"] == whole["start"]
        assert parts[0]["end"] <= parts[1]["start"] and parts[1]["end"] <= whole["end"]


@pytest.mark.cluster
def test_fused_tensors_share_their_phases(frameworks: Cluster) -> None:
    made = done(
        frameworks,
        """
        import torch
        import horovod.torch as hvd
        hvd.init()
        hvd.grouped_allreduce([torch.ones(8) for _ in range(5)], name="many")
        """,
    )
    for rank in (0, 1):
        mine = collectives(made, rank)
        assert len(mine) == 5 and len({each["tensor"] for each in mine}) == 5
        parts = recorded(made, rank, "phase")
        assert {each["name"]: each.get("fused") for each in parts} == {
            "NEGOTIATE": 5,
            "MEMCPY_IN_FUSION_BUFFER": 5,
            "GLOO_ALLREDUCE": 5,
            "MEMCPY_OUT_FUSION_BUFFER": 5,
        }


@pytest.mark.cluster
def test_collectives_of_a_process_set_name_its_ranks(frameworks: Cluster) -> None:
    made = done(
        frameworks,
        """
        import torch
        import horovod.torch as hvd
        hvd.init()
        solo = hvd.add_process_set([1])
        hvd.allreduce(torch.ones(3), name="x")
        if solo.included():
            hvd.allreduce(torch.ones(3), name="x", process_set=solo)
        """,
    )
    assert [each.get("ranks") for each in collectives(made, 0)] == [None]
    alone = collectives(made, 1)
    assert [each.get("ranks") for each in alone] == [None, [1]]
    assert alone[1]["group"].startswith("process set ")
    assert alone[0]["tensor"] == alone[1]["tensor"] == "x"
    subset = finish(
        frameworks, "hvd.allreduce(torch.ones(3), process_set=solo, name='y')", ranks=[1]
    )
    assert [each["tensor"] for each in collectives(subset, 1)] == ["y"]


@pytest.mark.cluster
def test_nameless_collectives_are_numbered_up_to_a_thousand(frameworks: Cluster) -> None:
    made = done(
        frameworks,
        """
        import torch
        import horovod.torch as hvd
        hvd.init()
        handles = [hvd.allreduce_async(torch.ones(1)) for _ in range(1005)]
        for handle in handles:
            hvd.synchronize(handle)
        """,
    )
    for rank in (0, 1):
        found = Counter(each["tensor"] for each in collectives(made, rank))
        assert found == {"#": 5} | {f"#{number}": 1 for number in range(1, 1001)}


@pytest.mark.cluster
def test_collectives_that_reuse_a_name_are_described_separately(frameworks: Cluster) -> None:
    """A collective is not described by what is known of the last one with the same name."""
    made = done(
        frameworks,
        """
        import torch
        import horovod.torch as hvd
        hvd.init()
        for turn in range(3):
            hvd.allreduce(torch.ones(2, 3), name="x")
            hvd.allreduce(torch.ones(3, 2), name="x")
            hvd.allreduce(torch.ones(6, dtype=torch.float64), name="x")
            hvd.broadcast(torch.ones(2, 3), 0, name="x")
        """,
    )
    each = [
        ("allreduce", 24, "float32", [2, 3]),
        ("allreduce", 24, "float32", [3, 2]),
        ("allreduce", 48, "float64", [6]),
        ("broadcast", 24, "float32", [2, 3]),
    ]
    for rank in (0, 1):
        told = [
            (found["op"], found["bytes"], found["dtype"], found["shape"])
            for found in collectives(made, rank)
        ]
        assert told == 3 * each


@pytest.mark.cluster
def test_a_collective_that_spans_two_cells_is_recorded_in_the_second(
    frameworks: Cluster, tmp_path: Path
) -> None:
    first = done(
        frameworks,
        """
        import torch
        import horovod.torch as hvd
        hvd.init()
        if rank == 0:
            handle = hvd.allreduce_async(torch.ones(4), name="long")
        """,
    )
    assert collectives(first, 0) == []
    second = done(
        frameworks,
        # A collective that ended before rank 0 began this cell would be in no record.
        f"""
        import pathlib, time
        begun = pathlib.Path({str(tmp_path / "begun")!r})
        if rank == 0:
            begun.touch()
        while not begun.exists():
            time.sleep(0.01)
        if rank == 1:
            handle = hvd.allreduce_async(torch.ones(4), name="long")
        hvd.synchronize(handle)
        """,
    )
    for rank in (0, 1):
        assert [each["tensor"] for each in collectives(second, rank)] == ["long"]
    assert collectives(second, 0)[0]["start"] < 0 <= collectives(second, 1)[0]["start"]


@pytest.mark.cluster
def test_an_aborted_collective_is_recorded_and_the_next_cell_is_complete(
    frameworks: Cluster, tmp_path: Path
) -> None:
    begin = "import torch\nimport horovod.torch as hvd\nhvd.init()\n"
    done(frameworks, begin)
    # Rank 1 fails only once rank 0 waits, however long that takes.
    waits = str(tmp_path / "waits")
    failed = finish(
        frameworks,
        begin
        + f"""
import os, time
hvd.allreduce(torch.ones(1), name='good')
if rank == 0:
    handle = hvd.allreduce_async(torch.ones(1), name='alone')
    open({waits!r}, 'w').close()
    hvd.synchronize(handle)
while not os.path.exists({waits!r}):
    time.sleep(0.01)
time.sleep(0.3)
raise ValueError('planned')
""",
    )
    assert failed.state == "failed"
    assert [each["tensor"] for each in collectives(failed, 0)] == ["good", "alone"]
    assert [each["tensor"] for each in collectives(failed, 1)] == ["good"]
    assert collectives(failed, 0)[1]["dur"] > 100_000
    after = done(frameworks, begin + "hvd.allreduce(torch.ones(1), name='again')")
    for rank in (0, 1):
        assert [each["tensor"] for each in collectives(after, rank)] == ["again"]


@pytest.mark.cluster
def test_a_cell_without_collectives_has_none(frameworks: Cluster) -> None:
    done(frameworks, "import torch, horovod.torch as hvd; hvd.init(); hvd.allreduce(torch.ones(1))")
    made = done(frameworks, "pass")
    assert all(collectives(made, rank) == [] for rank in (0, 1))


@pytest.mark.cluster
def test_tensorflow_collectives_are_recorded_eagerly_and_in_graphs(frameworks: Cluster) -> None:
    made = done(
        frameworks,
        """
        import time
        import tensorflow as tf
        import horovod.tensorflow as hvd
        hvd.init()
        hvd.allreduce(tf.ones((2, 5)), name="eager")

        @tf.function
        def double(x):
            return hvd.allreduce(x, name="graph") * 2

        calls = []
        for step in range(3):
            time.sleep(0.5 * (1 - rank))
            begin = time.time_ns() // 1000
            double(tf.ones(7)).numpy()
            calls.append((begin, time.time_ns() // 1000))
        calls
        """,
    )
    both = [collectives(made, rank) for rank in (0, 1)]
    for mine in both:
        # Outside of graphs, TensorFlow gives all collectives the same name.
        assert [each["name"] for each in mine] == ["allreduce"] + ["allreduce graph"] * 3
        assert {each["library"] for each in mine} == {"hvd.tensorflow"}
        assert [each["bytes"] for each in mine] == [40, 28, 28, 28]
    for rank in (0, 1):
        # PyTorch's Horovod, which earlier tests load, must not record these phases.
        parts = recorded(made, rank, "phase")
        assert {each["library"] for each in parts} == {"hvd.tensorflow"}
        assert Counter(each["name"] for each in parts)["GLOO_ALLREDUCE"] == 4
    # In a graph, too, a span begins with its rank's own arrival, within its own call.
    for rank in (0, 1):
        calls = ast.literal_eval(made.results[rank])
        for (begin, end), mine in zip(calls, both[rank][1:], strict=True):
            assert begin <= made.info.start + mine["start"] + 100
            assert made.info.start + mine["end"] - 100 <= end
    # Rank 0 arrives last.
    apart = [late["start"] - early["start"] for late, early in zip(*both, strict=True)][1:]
    assert median(apart) > 0


@pytest.mark.cluster
def test_keras_fit_and_torch_collectives_are_recorded_in_one_run(frameworks: Cluster) -> None:
    made = done(
        frameworks,
        """
        import numpy as np
        import tensorflow as tf
        import torch
        import horovod.tensorflow.keras as hvd
        import horovod.torch as torch_hvd
        hvd.init()
        torch_hvd.init()
        model = tf.keras.Sequential([tf.keras.layers.Dense(3)])
        model.compile(loss="mse", optimizer=hvd.DistributedOptimizer(tf.keras.optimizers.SGD()))
        model.fit(np.ones((12, 4)), np.ones((12, 3)), batch_size=4, epochs=2, verbose=0)
        torch_hvd.allreduce(torch.ones(1), name="mine")
        """,
    )
    counts = []
    for rank in (0, 1):
        mine = collectives(made, rank)
        assert [each["tensor"] for each in mine if each["library"] == "hvd.torch"] == ["mine"]
        keras = [each for each in mine if each["library"] == "hvd.tensorflow"]
        counts.append(Counter((each["op"], each["tensor"]) for each in keras))
        # The kernel's and the bias's gradient, in each of 3 batches in 2 epochs.
        assert sum(each["shape"] in ([4, 3], [3]) for each in keras) == 12
    assert counts[0] == counts[1]


@pytest.mark.cluster
def test_the_users_own_timeline_is_written_as_well(frameworks: Cluster, tmp_path: Path) -> None:
    made = done(
        frameworks,
        f"""
        import torch
        import horovod.torch as hvd
        hvd.init()
        hvd.start_timeline({str(tmp_path / "own.{rank}.json")!r})
        for step in range(5):
            hvd.allreduce(torch.ones(3), name="x")
        hvd.stop_timeline()
        """,
    )
    assert made.info.notes == []
    for rank in (0, 1):
        assert (tmp_path / f"own.{rank}.json").read_text().count("GLOO_ALLREDUCE") == 5
        assert len(collectives(made, rank)) == 5


@pytest.mark.cluster
def test_samples_report_cpu_and_memory_including_child_processes(frameworks: Cluster) -> None:
    made = done(
        frameworks,
        """
        import subprocess, sys, time
        # Where others compute as well, it takes longer and is no less.
        busy = "import time\\nwhile time.process_time() < 3: pass"
        if rank:
            subprocess.run([sys.executable, "-c", busy])
        else:
            for _ in range(30):
                time.sleep(0.1)
        """,
    )
    samples = {
        rank: [each for each in made._store.events(made.id)
               if (each["kind"], each["rank"]) == ("sample", rank)]
        for rank in (0, 1)
    }  # fmt: skip
    for mine in samples.values():
        assert 1 <= len(mine) <= made.duration + 1
        assert all(each["memory"] > 10 << 20 for each in mine)
    # A child process of rank 1 does the work.
    assert sum(each["cpu"] for each in samples[1]) > 3 * sum(each["cpu"] for each in samples[0])
