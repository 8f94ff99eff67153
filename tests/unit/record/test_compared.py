"""Find the runs that a user wants to compare a run with."""

from __future__ import annotations

from pathlib import Path

from rankroom.record.compared import compared, with_metrics
from rankroom.record.model import MAX_COMPARED_RUNS, RunInfo
from rankroom.record.store import Store
from record_makers import finished_record, make_run, start_record


def kept(root: Path, run_id: str, has_metrics: bool = True, **fields: object) -> str:
    """Write the record of a finished run; return its id."""
    _, run = finished_record(root, id=run_id, has_metrics=has_metrics, **fields)
    return run.id


def test_runs_are_found_by_id_part_of_an_id_name_or_last(tmp_path: Path):
    first = kept(tmp_path, "20260101-000000-aaaa01", name="baseline")
    second = kept(tmp_path, "20260102-000000-aaaa02", name="baseline")
    third = kept(tmp_path, "20260103-000000-aaaa03")
    kept(tmp_path, "20260104-000000-aaaa04", has_metrics=False)
    store = Store(tmp_path)
    for text, found in (
        (first, first), ("aaaa01", first), ("20260101", first),
        ("baseline", second),  # the newest of that name
        ("last", third),  # the newest with metrics
    ):  # fmt: skip
        assert compared(store, [text]) == ([found], []), text
    assert compared(store, ["aaaa03, baseline", "last"]) == ([third, second], [])
    assert compared(store, ["last"], third) == ([second], [])
    assert compared(store, ["baseline,"], second) == ([first], [])  # an earlier run
    [same] = compared(store, ["baseline"], first)[0]
    assert same == second


def test_a_note_says_why_a_run_cannot_be_compared(tmp_path: Path):
    ids = [kept(tmp_path, f"20260101-000000-00000{number}") for number in range(6)]
    store = Store(tmp_path)
    found, notes = compared(store, ["none", "../x", "2026", ids[0], ids[1]], ids[0])
    assert found == [ids[1]]
    gone, outside, many, itself = notes
    assert gone.startswith(f"not compared: no record 'none' in {store.runs}")
    assert outside.startswith("not compared: no record '../x'")
    assert many.startswith("not compared: '2026' matches 6 records")
    assert itself == f"not compared: {ids[0]!r} is this run"
    found, notes = compared(store, [",".join(ids)])
    assert found == ids[:MAX_COMPARED_RUNS]
    assert [note.split(":")[0] for note in notes] == [
        f"not compared with {run_id}" for run_id in ids[MAX_COMPARED_RUNS:]
    ]


def test_comparing_before_any_record_exists_yields_a_note(tmp_path: Path):
    found, (note,) = compared(Store(tmp_path), ["last"])
    assert found == [] and "there are no records yet" in note


def test_with_metrics_lists_runs_that_have_metrics_or_are_live(tmp_path: Path):
    kept(tmp_path, "20260101-000000-aaaa01")
    kept(tmp_path, "20260102-000000-aaaa02", has_metrics=False)
    earlier = kept(tmp_path, "20251231-000000-aaaa00", has_metrics=False)
    store, live, _ = start_record(tmp_path)
    store.paths(earlier).metrics.write_text("{}")  # as earlier versions left it
    assert [run.id for run in with_metrics(store)] == [live.id, "20260101-000000-aaaa01", earlier]


def test_compared_runs_are_stored_in_run_json_only_if_there_are_some():
    run = make_run(compare=["a", "b"])
    assert RunInfo.from_json(run.to_json()).compare == ["a", "b"]
    assert not {"compare", "has_metrics"} & set(make_run().to_json())
    for wrong in (None, 5, "ab", {"a": 1}):
        assert RunInfo.from_json(make_run().to_json() | {"compare": wrong}).compare == []
    many = [str(number) for number in range(9)]
    told = RunInfo.from_json(make_run().to_json() | {"compare": [*many, 7]})
    assert told.compare == many[:MAX_COMPARED_RUNS]
