"""Timelines, collectives and profiles: what the golden traces say, and what must always hold."""

from __future__ import annotations

import json
import math
from typing import Any

import pytest

from rankroom.collectives import match
from rankroom.profile import Profile
from rankroom.record import RunInfo
from rankroom.timeline import Timeline
from trace_makers import ALL, FOLDER, Trace, files

PARTS = ("compute", "data", "waiting", "exposed", "idle")
NAMES = sorted(path.parent.name for path in FOLDER.glob("*/run.json"))


def golden(name: str) -> tuple[Timeline, dict[str, Any]]:
    folder = FOLDER / name
    run = RunInfo.from_json(json.loads((folder / "run.json").read_text()))
    timeline = Timeline.read(run, folder / "events.jsonl")
    return timeline, json.loads((folder / "expected.json").read_text())


def timeline_of(trace: Trace, lines: list[str] | None = None) -> Timeline:
    run = RunInfo.from_json(trace.run_json("made"))
    return Timeline.of(run, [f"{line}\n".encode() for line in lines or trace.lines()])


def close(found: Any, expected: Any) -> bool:
    if isinstance(expected, dict):
        return found.keys() == expected.keys() and all(
            close(found[key], value) for key, value in expected.items()
        )
    if isinstance(expected, list):
        return len(found) == len(expected) and all(map(close, found, expected))
    if isinstance(expected, float):
        return math.isclose(found, expected, rel_tol=1e-9)
    return bool(found == expected)


# --- golden traces --------------------------------------------------------------------------------


@pytest.mark.parametrize("make", ALL, ids=lambda make: make.__name__)
def test_the_traces_are_those_that_are_made(make: Any):
    folder = FOLDER / make.__name__.replace("_", "-")
    for name, text in files(make).items():
        assert (folder / name).read_text() == text, f"run tests/trace_makers.py: {folder / name}"


def test_there_is_no_other_trace():
    assert [make.__name__.replace("_", "-") for make in sorted(ALL, key=lambda m: m.__name__)] == (
        NAMES
    )


@pytest.mark.parametrize("name", NAMES)
def test_collectives_are_matched(name: str):
    timeline, expected = golden(name)
    assert [each.to_json() for each in match(timeline)] == expected["collectives"]


@pytest.mark.parametrize("name", NAMES)
def test_the_profile_is_the_expected_one(name: str):
    timeline, expected = golden(name)
    found = Profile.of(timeline).to_json()
    for key, value in expected["profile"].items():
        assert close(found[key], value), (key, found[key], value)
    assert found.keys() == expected["profile"].keys()


@pytest.mark.parametrize("name", NAMES)
def test_unsound_spans_are_counted(name: str):
    timeline, expected = golden(name)
    assert dict(sorted(timeline.dropped.items())) == expected["dropped"]["why"]
    assert sum(timeline.dropped.values()) == expected["dropped"]["spans"]
