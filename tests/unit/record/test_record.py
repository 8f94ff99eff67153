"""The dataclasses, the schema and the golden records agree."""

from __future__ import annotations

import dataclasses
import json
from pathlib import Path
from typing import Any, get_args, get_type_hints

import jsonschema
import pytest

from checkout import RECORDS
from rankroom.record import model, tail
from rankroom.record.model import (
    Failure,
    Owner,
    Prompt,
    RankInfo,
    RunInfo,
    event_line,
    parse_event,
    spans_line,
)
from record_makers import make_run

SCHEMA = json.loads(model.SCHEMA_FILE.read_text())
DEFS = SCHEMA["$defs"]
KINDS = {
    d["properties"]["kind"]["const"]
    for name, d in DEFS.items()
    if name.endswith("Event") and "properties" in d
}
GOLDEN = sorted(RECORDS.glob("*/run.json"))


def validate(value: Any, name: str) -> None:
    schema = {"$ref": f"#/$defs/{name}", "$defs": DEFS}
    jsonschema.Draft202012Validator(schema).validate(value)


def test_the_record_schema_is_valid_json_schema():
    jsonschema.Draft202012Validator.check_schema(SCHEMA)


@pytest.mark.parametrize(
    ("kind", "properties"),
    [
        (RunInfo, DEFS["Run"]["properties"]),
        (RankInfo, DEFS["RankInfo"]["properties"]),
        (Failure, DEFS["Failure"]["properties"]),
        (Prompt, DEFS["Prompt"]["properties"]),
        (Owner, DEFS["Run"]["properties"]["owner"]["properties"]),
    ],
)
def test_dataclasses_have_the_fields_of_the_schema(kind: Any, properties: dict[str, Any]):
    assert {f.name for f in dataclasses.fields(kind)} == set(properties)
    hints = get_type_hints(kind)
    plain = {"integer": int, "string": str, "number": float}
    for name, rule in properties.items():
        kind_of = rule.get("type")
        if isinstance(kind_of, list):
            assert set(get_args(hints[name])) == {plain.get(t, type(None)) for t in kind_of}
        elif kind_of in plain:
            assert hints[name] is plain[kind_of], name


def test_states_are_those_of_the_schema():
    assert list(get_args(model.RunState)) == DEFS["RunState"]["enum"]
    assert list(get_args(model.RankState)) == DEFS["RankState"]["enum"]


def test_required_fields_are_those_that_reading_needs():
    assert set(model._RUN_REQUIRED) == set(DEFS["Run"]["required"])
    assert set(model._PART_REQUIRED[RankInfo]) == set(DEFS["RankInfo"]["required"])
    for name, rule in DEFS.items():
        if name.endswith("Event") and "properties" in rule:
            kind = rule["properties"]["kind"]["const"]
            needs = {"kind", "rank", "seq", "t", *model._KIND_REQUIRED.get(kind, {})}
            assert needs == set(rule["required"]), kind


@pytest.mark.parametrize("size", [1, 2, 64])
@pytest.mark.parametrize("failure", [None, Failure(0, "E", "v"), Failure(0, "E", "v", 3)])
def test_a_run_is_written_as_the_schema_says_and_read_back(size: int, failure: Failure | None):
    run = make_run(size, failure=failure, notes=["a note"], name="train", state="failed")
    run.ranks[0].state = "error"
    data = json.loads(json.dumps(run.to_json()))
    validate(data, "Run")
    assert RunInfo.from_json(data) == run


def test_a_run_without_owner_is_written_as_the_schema_says():
    validate(make_run(owner=None).to_json(), "Run")


def test_prompts_are_written_as_the_schema_says_and_read_back():
    run = make_run(2, prompts=[Prompt(1, 3, "debugger", "ipdb> ", 12, "cell line 5")])
    data = json.loads(json.dumps(run.to_json()))
    validate(data, "Run")
    assert RunInfo.from_json(data) == run
    del data["prompts"]  # as earlier versions wrote it
    assert RunInfo.from_json(data).prompts == [] and "prompts" not in make_run(2).to_json()


def test_to_json_gives_copies():
    run = make_run(2)
    data = run.to_json()
    data["ranks"][0]["host"] = "changed"
    data["notes"].append("changed")
    data["owner"]["host"] = "changed"
    assert "changed" not in json.dumps(run.to_json())


def test_fields_of_a_newer_minor_writer_are_ignored():
    data = make_run(2).to_json()
    data["mood"] = data["ranks"][0]["mood"] = data["owner"]["mood"] = "sunny"
    assert RunInfo.from_json(data).size == 2


@pytest.mark.parametrize(
    "change",
    [
        {"start": "now"},
        {"size": None},
        {"size": True},
        {"ranks": {}},
        {"ranks": [7]},
        {"ranks": [{"rank": 0}]},
        {"state": "sleeping"},
        {"failure": "boom"},
        {"owner": {"pid": "x", "host": ""}},
        {"title": 3},
        {"notes": "n"},
        {"lines": "many"},
    ],
)
def test_a_run_with_an_invalid_field_raises_value_error(change: dict[str, Any]):
    with pytest.raises(ValueError):
        RunInfo.from_json({**make_run(2).to_json(), **change})


@pytest.mark.parametrize("data", [None, [], "x", 3, {}])
def test_data_that_is_no_object_or_empty_raises_value_error(data: Any):
    with pytest.raises(ValueError):
        RunInfo.from_json(data)


def test_an_event_line_is_one_valid_line():
    line = event_line("log", 3, 7, 12, stream="stdout", text='ü\n"\x00\ud800')
    assert line.endswith(b"\n") and line.count(b"\n") == 1
    event = parse_event(line)
    assert event is not None
    validate(event, "Event")
    assert event["text"].startswith('ü\n"\x00')


@pytest.mark.parametrize(
    "line",
    [
        b"",
        b"\n",
        b"garbage",
        b'{"kind":"log","rank":0',
        b"[]",
        b"\xff\xfe",
        b'{"rank":0,"seq":0,"t":0}',
        b'{"kind":"log","rank":"0","seq":0,"t":0,"stream":"stdout","text":""}',
        b'{"kind":"log","rank":true,"seq":0,"t":0,"stream":"stdout","text":""}',
        b'{"kind":"log","rank":-1,"seq":0,"t":0,"stream":"stdout","text":""}',
        b'{"kind":"log","rank":0,"seq":0,"t":0,"stream":"stdout"}',
        b'{"kind":["log"],"rank":0,"seq":0,"t":0}',
        b'{"kind":"error","rank":0,"seq":0,"t":0,"ename":"E","evalue":"v","traceback":"x"}',
        b"[" * 100_000,
    ],
)
def test_garbage_is_no_event(line: bytes):
    assert parse_event(line) is None


def test_an_event_of_an_unknown_kind_is_accepted():
    assert parse_event(b'{"kind":"smell","rank":0,"seq":0,"t":0}') is not None


@pytest.mark.parametrize("run_json", GOLDEN, ids=lambda path: path.parent.name)
def test_golden_records_are_valid_and_readable(run_json: Path):
    data = json.loads(run_json.read_bytes())
    validate(data, "Run")
    run = RunInfo.from_json(data)
    assert RunInfo.from_json(run.to_json()) == run
    for line in (run_json.parent / "events.jsonl").read_bytes().splitlines():
        event = parse_event(line)
        # Readers skip a kind that a newer writer added; this schema does not know it.
        if event is not None and event["kind"] in KINDS:
            validate(event, "Event")


def test_spans_line_writes_the_same_bytes_as_event_line() -> None:
    fields = {"cat": 'a"ü\udc80', "from": 3, "define": [{"name": "n", "x": None}]}
    for columns in (
        {"name": (1, 2, 3), "start": [10**15, -5, 0], "dur": (0, 2**60, 1)},
        {"name": (7,), "start": [0], "dur": (1,)},
    ):
        line = spans_line(2, 5, 99, fields, columns)
        assert line == event_line("spans", 2, 5, 99, **fields, **columns)


def test_a_line_that_is_too_long_is_passed_over(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    """Such as zeros that a crash of the machine has left in place of events."""
    monkeypatch.setattr(tail, "MAX_LINE_BYTES", 100)
    monkeypatch.setattr(tail, "_BLOCK_BYTES", 64)
    events = tmp_path / "events.jsonl"
    events.write_bytes(b"one\n" + bytes(1000) + b"\ntwo\nthree\nfo")
    found = list(tail.lines_after(events, 0))
    assert [line for lines, _ in found for line in lines] == [b"one", b"two", b"three"]
    assert found[-1][1] == events.stat().st_size - 2
