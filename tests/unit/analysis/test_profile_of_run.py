"""profile.json: what it stores, when it is used, and when the profile is computed instead."""

from __future__ import annotations

import json
import shutil
from dataclasses import replace
from pathlib import Path
from typing import Any

import jsonschema
import pytest

from rankroom.analysis.metrics.metrics_of_run import stored_metrics, write_metrics
from rankroom.analysis.profile import Profile
from rankroom.analysis.profile.of_run import (
    GrowingProfile,
    profile_of,
    stored_profile,
    write_profile,
)
from rankroom.analysis.timeline import Timeline
from rankroom.record.model import SCHEMA_FILE, Clock, RunInfo, event_line
from rankroom.record.store import Store
from trace_makers import FOLDER

NAMES = sorted(path.parent.name for path in FOLDER.glob("*/run.json"))


def copied(name: str, home: Path) -> tuple[Store, RunInfo]:
    store = Store(home)
    shutil.copytree(FOLDER / name, store.runs / name)
    return store, store.load(name)


def computed(store: Store, run: RunInfo) -> Profile:
    return Profile.of(Timeline.read(run, store.paths(run.id).events))


@pytest.mark.parametrize("name", NAMES)
def test_a_stored_profile_follows_the_schema_and_is_read_back_unchanged(name: str, tmp_path: Path):
    store, run = copied(name, tmp_path)
    expected = computed(store, run)
    write_profile(store, run)
    schema = json.loads(SCHEMA_FILE.read_text())
    only = {**schema["$defs"]["Profile"], "$defs": schema["$defs"]}
    jsonschema.validate(json.loads(store.paths(run.id).profile.read_text()), only)
    assert stored_profile(store.paths(run.id)) == profile_of(store, run) == expected


@pytest.mark.parametrize("name", NAMES)
@pytest.mark.parametrize("piece", [1_000, 40_000])
def test_a_profile_read_in_pieces_equals_one_read_at_once(name: str, piece: int, tmp_path: Path):
    store, run = copied(name, tmp_path)
    events = store.paths(run.id).events
    whole = events.read_bytes()
    expected = computed(store, run)
    events.write_bytes(b"")
    growing = GrowingProfile(store.paths(run.id), replace(run, state="running"))
    for at in range(0, len(whole), piece):
        with events.open("ab") as file:
            file.write(whole[at : at + piece])
        growing.refresh(replace(run, state="running"))
    found = growing.refresh(run)
    assert found == expected
    assert growing.refresh(run) is found, "nothing new, so nothing is computed"


def test_a_growing_profile_is_outdated_when_a_ranks_clock_changes(tmp_path: Path):
    store, run = copied("slow-loader", tmp_path)
    growing = GrowingProfile(store.paths(run.id), run)
    growing.refresh(run)
    assert growing.is_current(run)
    run.ranks[1].clock = Clock(offset=500, error=1)
    assert not growing.is_current(run)
    growing = GrowingProfile(store.paths(run.id), run)
    run.ranks[1].clock = Clock(offset=500, error=400)
    assert not growing.is_current(run), "it may be as late as before, and not be known to be"


@pytest.mark.parametrize(
    "spoil",
    [
        lambda kept: kept | {"rules": 0},
        lambda kept: kept | {"read": kept["read"] - 1},
        lambda kept: {name: kept[name] for name in kept if name != "kinds"},
        lambda kept: kept | {"ranks": [{"rank": 0}]},
        lambda kept: kept | {"loop": {"name": "SGD.step"}},
        lambda kept: kept | {"phases": [{"phase": "loop"}]},
        lambda kept: [kept],
        lambda kept: None,
    ],
)
def test_an_outdated_or_malformed_stored_profile_is_ignored(spoil: Any, tmp_path: Path):
    store, run = copied("slow-loader", tmp_path)
    expected = computed(store, run)
    write_profile(store, run)
    file = store.paths(run.id).profile
    file.write_text(json.dumps(spoil(json.loads(file.read_text()))))
    before = file.read_bytes()
    assert stored_profile(store.paths(run.id)) is None
    assert profile_of(store, run) == expected
    assert file.read_bytes() == before, "reading does not write"


def test_output_after_the_run_keeps_the_stored_profile_and_metrics_valid(tmp_path: Path):
    """Such as output of processes that the cell left running, added when its ranks end."""
    store, run = copied("slow-loader", tmp_path)
    write_profile(store, run)
    write_metrics(store, run)
    paths = store.paths(run.id)
    kept = stored_profile(paths)
    assert kept is not None and stored_metrics(paths, run) is not None
    with paths.events.open("ab") as file:
        file.write(event_line("log", 0, 10_000, 10**9, stream="stdout", text="later\n"))
    assert stored_profile(paths) == kept and stored_metrics(paths, run) is not None
    with paths.events.open("ab") as file:
        file.write(event_line("mark", 0, 10_001, 10**9, name="step", args={}))
    assert stored_profile(paths) is None and stored_metrics(paths, run) is None


def test_a_truncated_stored_profile_is_ignored(tmp_path: Path):
    store, run = copied("slow-loader", tmp_path)
    write_profile(store, run)
    file = store.paths(run.id).profile
    file.write_bytes(file.read_bytes()[:-20])
    assert stored_profile(store.paths(run.id)) is None


def test_a_record_without_events_has_an_empty_profile(tmp_path: Path):
    store, run = copied("slow-loader", tmp_path)
    store.paths(run.id).events.unlink()
    assert profile_of(store, run).kinds == []
