"""Limits on memory and time when importing malicious or degenerate traces."""

from __future__ import annotations

import gzip
import json
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from rankroom.analysis.importers import (
    chrome,
    import_files,
    importing,
    lanes,
    parallel_parser,
    trace_file,
    trace_repair,
)
from rankroom.analysis.profile.of_run import profile_of
from rankroom.record.store import Store


def span(at: int, **fields: Any) -> dict[str, Any]:
    return {"ph": "X", "pid": 1, "tid": 1, "cat": "op", "name": "x", "ts": at * 10, "dur": 5,
            **fields}  # fmt: skip


@pytest.fixture
def store(tmp_path: Path) -> Store:
    return Store(tmp_path / "home")


@pytest.fixture
def read(tmp_path: Path, store: Store):
    def made(*files: list[dict[str, Any]]) -> importing.Import:
        paths = []
        for number, events in enumerate(files):
            paths.append(tmp_path / f"t.rank{number}.json")
            paths[-1].write_text(json.dumps(events))
        return import_files(paths, store)

    return made


def spans_of(made: importing.Import, store: Store) -> int:
    return sum(len(each["dur"]) for each in store.events(made.run.id) if each["kind"] == "spans")


def test_a_hundred_thousand_processes_are_one_rank_in_seconds(read, store: Store):
    begun = time.process_time()
    made = read([span(i, pid=i) for i in range(100_000)])
    assert "allreduce" not in str(profile_of(store, made.run))
    assert time.process_time() - begun < 20
    assert made.run.size == 1 and spans_of(made, store) == 100_000
    assert "100,000 × processes too many to be ranks: they are one" in str(made.files[0])


def test_processes_are_ranks_up_to_the_maximum_number_of_ranks(read, monkeypatch):
    monkeypatch.setattr(trace_file, "MOST_RANKS", 5)
    assert read([span(i, pid=i) for i in range(5)]).run.size == 5
    assert read([span(i, pid=i) for i in range(6)]).run.size == 1


@pytest.mark.parametrize("large", [1 << 40, 0])
@pytest.mark.parametrize("fields", ["pid tid", "tid", "cat", "pid tid cat"])
def test_the_number_of_lanes_is_bounded_and_all_spans_are_kept(
    read, store: Store, monkeypatch, fields: str, large: int
):
    monkeypatch.setattr(parallel_parser, "MIN_FILE_BYTES", large)
    monkeypatch.setattr(chrome, "MOST_LANES", 50)
    monkeypatch.setattr(chrome, "MOST_PROCESSES", 20)
    monkeypatch.setattr(chrome, "MAX_SHARED_LANES", 10)
    most = []
    close = chrome.Reader.close
    monkeypatch.setattr(
        chrome.Reader, "close", lambda self: (most.append(len(self.lanes)), close(self))
    )
    made = read([span(i, **{each: f"{each} {i}" for each in fields.split()}) for i in range(1000)])
    assert most[0] <= 50 + 20 + 10
    assert spans_of(made, store) == 1000
    assert "spans of too many threads, which share a lane" in str(made.files[0])


def test_the_number_of_categories_of_a_rank_is_bounded(read, store: Store):
    made = read([span(i, cat=f"c{i}") for i in range(2000)])
    found = {each["cat"] for each in store.events(made.run.id) if each["kind"] == "spans"}
    assert len(found) <= trace_file.MOST_CATEGORIES + 1
    assert spans_of(made, store) == 2000


def test_a_note_says_after_how_many_events_a_file_was_cut_off(read, store: Store, monkeypatch):
    monkeypatch.setattr(trace_repair, "BLOCK_CHARS", 4096)
    monkeypatch.setattr(importing, "MOST_EVENTS", 300)
    made = read([span(i) for i in range(2000)], [span(i) for i in range(2000)])
    first, second = made.files
    assert 150 <= first.spans < 300 and 100 <= second.spans < 300
    for each in (first, second):
        assert f"1 × the rest of the file, after {each.spans:,} events" in str(each)
        assert "closing bracket" not in str(each)
    assert any("the rest of the file" in note for note in made.run.notes)
    # A file with exactly that many events is complete.
    monkeypatch.setattr(importing, "MOST_EVENTS", 2000)
    assert "rest of the file" not in str(read([span(i) for i in range(2000)]).files[0])


def unrecorded(made: importing.Import, store: Store) -> list[tuple[int, int, int]]:
    """Rank, start and end of each `unrecorded` span."""
    return [
        (event["rank"], event["start"][0], event["start"][0] + event["dur"][0])
        for event in store.events(made.run.id)
        if event["kind"] == "spans" and event["cat"] == "unrecorded"
    ]


def test_time_beyond_the_event_limit_is_unrecorded(read, store: Store, monkeypatch):
    monkeypatch.setattr(trace_repair, "BLOCK_CHARS", 4096)
    monkeypatch.setattr(importing, "MOST_EVENTS", 300)
    made = read([span(i) for i in range(2000)], [span(200 * i) for i in range(20)])
    last = 10 * made.files[0].spans - 5
    assert unrecorded(made, store) == [(0, last, 38_005)]
    assert profile_of(store, made.run).wall == last


def test_a_large_file_may_use_the_events_that_small_files_leave(read, monkeypatch):
    monkeypatch.setattr(trace_repair, "BLOCK_CHARS", 4096)
    monkeypatch.setattr(importing, "MOST_EVENTS", 900)
    made = read(*[[span(i) for i in range(count)] for count in (600, 50, 50)])
    assert [each.spans for each in made.files] == [600, 50, 50]
    assert not any(each.dropped for each in made.files)


def test_time_is_unrecorded_if_the_event_limit_cut_off_one_of_its_lanes(
    read, store: Store, monkeypatch
):
    """Profilers write threads one after another, so a limit may cut off only the last ones."""
    monkeypatch.setattr(trace_repair, "BLOCK_CHARS", 4096)
    monkeypatch.setattr(importing, "MOST_EVENTS", 1500)
    lanes_of_it = [span(i, cat=cat, tid=cat) for cat in ("cpu", "io") for i in range(1000)]
    made = read(lanes_of_it)
    last = 10 * (made.files[0].spans - 1000) - 5
    assert unrecorded(made, store) == [(0, last, 9995)]


def test_spans_of_ranks_known_only_from_another_ranks_horovod_timeline_are_bounded(
    read, store: Store, monkeypatch
):
    monkeypatch.setattr(importing, "MOST_EVENTS", 200)
    events: list[dict[str, Any]] = []
    for at in range(0, 50_000, 1000):
        events.append({"ph": "B", "name": "NEGOTIATE_ALLREDUCE", "ts": at, "pid": 1})
        ready = range(20) if at == 0 else ()  # later operations are in its cache
        events += [{"ph": "X", "name": str(n), "ts": at, "pid": 1, "dur": 0} for n in ready]
        events.append({"ph": "E", "ts": at + 4, "pid": 1})
        events.append({"ph": "X", "name": "ALLREDUCE", "ts": at + 5, "pid": 1, "dur": 60})
    made = read(events)
    told = [each for each in store.events(made.run.id) if each.get("cat") == "collective"]
    assert [len(each["dur"]) for each in told] == [50, *[10] * 19]
    assert unrecorded(made, store) == [(rank, 10_000, 49_065) for rank in range(1, 20)]
    assert made.files[0].dropped["operations of ranks without a timeline of their own"] == 40


def test_reading_a_trace_stops_at_its_timeout(read, monkeypatch):
    monkeypatch.setattr(trace_repair, "BLOCK_CHARS", 4096)
    monkeypatch.setattr(trace_repair, "READ_TIMEOUT_S", 0.0)
    made = read([span(i) for i in range(2000)])
    assert 0 < made.files[0].spans < 2000
    assert "the rest of the file, after 0 seconds" in str(made.files[0])


def test_a_gzip_bomb_is_read_only_up_to_the_size_limit(tmp_path: Path, store: Store, monkeypatch):
    monkeypatch.setattr(trace_repair, "MAX_FILE_CHARS", 1 << 24)
    packed = tmp_path / "t.json.gz"
    with gzip.open(packed, "wb", compresslevel=1) as out:
        out.write(json.dumps([span(i) for i in range(10)])[:-1].encode())
        for _ in range(64):
            out.write(b" " * (1 << 20))
    read: list[int] = []
    more = trace_repair.Events._to_text

    def counted(self: trace_repair.Events, data: bytes) -> str:
        read.append(len(data))
        return more(self, data)

    monkeypatch.setattr(trace_repair.Events, "_to_text", counted)
    made = import_files([packed], store)
    assert sum(read) < 1 << 25
    assert made.files[0].spans == 10 and "of text" in str(made.files[0])


@pytest.fixture
def few_open(monkeypatch: pytest.MonkeyPatch) -> Iterator[int]:
    monkeypatch.setattr(chrome, "MAX_OPEN_SPANS", 100)
    yield 100


def test_spans_that_never_end_do_not_pile_up(read, store: Store, few_open: int):
    begins = [{"ph": "B", "pid": i, "tid": i, "name": "x", "ts": i} for i in range(1000)]
    made = read(begins)
    assert spans_of(made, store) == few_open
    assert "900 × too many spans open at once" in str(made.files[0])


def test_spans_that_end_make_room_for_others(read, store: Store, few_open: int):
    events = [
        {"ph": phase, "pid": i, "tid": 1, "name": "x", "ts": 10 * i + (phase == "E")}
        for i in range(1000)
        for phase in "BE"
    ]
    made = read(events)
    assert spans_of(made, store) == 1000 and not made.files[0].dropped


def test_the_total_size_of_open_arguments_and_of_names_is_bounded(read, store: Store, monkeypatch):
    monkeypatch.setattr(chrome, "MAX_OPEN_CHARS", 50_000)
    monkeypatch.setattr(lanes, "MOST_TEXT", 20_000)
    args = {"a": "y" * 1000}
    made = read([{"ph": "B", "pid": 1, "tid": 1, "name": f"x{i}", "ts": i, "args": args}
                 for i in range(100)])  # fmt: skip
    assert 40 < spans_of(made, store) < 50
    told = [each for event in store.events(made.run.id) for each in event.get("define", [])]
    assert len(told) < 22 and "(one of too many names)" in [each["name"] for each in told]
