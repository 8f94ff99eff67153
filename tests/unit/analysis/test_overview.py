"""overview.jsonl: short spans merged into blocks that cover the same time, and when it is used."""

from __future__ import annotations

import json
import shutil
from pathlib import Path

import jsonschema
import numpy as np
import pytest

from rankroom.analysis import overview
from rankroom.analysis.collectives import Collectives
from rankroom.analysis.overview import TRANSFER, WAIT, blocks, overview_lines, part_width
from rankroom.analysis.profile.of_run import stored_overview, write_profile
from rankroom.analysis.timeline import Timeline
from rankroom.record.model import SCHEMA_FILE, Json, RunInfo
from rankroom.record.store import Store
from trace_makers import FOLDER

NAMES = sorted(path.parent.name for path in FOLDER.glob("*/run.json"))
DEFS = json.loads(SCHEMA_FILE.read_text())["$defs"]


def columns(*spans: tuple[int, int, int]) -> overview.Columns:
    """The columns of spans given as name, start and duration."""
    name, start, dur = np.array(spans, np.int64).reshape(-1, 3).T
    return name, start, start + dur


def items(lane: Json) -> list[tuple[int, int, int, int]]:
    """Name, start, duration and busy time of each block."""
    starts = np.cumsum(lane["start"]).tolist()
    return list(zip(lane["name"], starts, lane["dur"], lane["busy"] or lane["dur"], strict=True))


def copied(name: str, home: Path) -> tuple[Store, RunInfo]:
    store = Store(home)
    shutil.copytree(FOLDER / name, store.runs / name)
    return store, store.load(name)


def follows(name: str) -> jsonschema.Draft202012Validator:
    return jsonschema.Draft202012Validator({"$ref": f"#/$defs/{name}", "$defs": DEFS})


def test_long_spans_are_kept_and_short_ones_are_merged_into_blocks():
    lane = blocks(columns((0, 0, 10), (1, 20, 30), (0, 60, 5), (2, 100, 500), (3, 650, 1)), 100)
    assert items(lane) == [(1, 0, 65, 45), (2, 100, 500, 500), (3, 650, 1, 1)]


def test_a_lane_without_merged_spans_has_no_busy_times():
    assert blocks(columns((0, 0, 100), (1, 100, 300)), 50)["busy"] == []
    assert blocks(columns(), 50) == {"name": [], "start": [], "dur": [], "busy": []}


def test_nested_spans_are_merged_separately_at_each_depth():
    outer = [(0, 1000 * i, 900) for i in range(10)]
    inner = [(1, 1000 * i + 10 * j, 9) for i in range(10) for j in range(80)]
    both = sorted(outer + inner, key=lambda span: (span[1], span[0]))
    found = items(blocks(columns(*both), 500))
    assert [each for each in found if each[0] == 0] == [(0, 1000 * i, 900, 900) for i in range(10)]
    assert sum(busy for name, _, _, busy in found if name == 1) == 9 * len(inner)
    assert len(found) < 40


def test_spans_nested_deeper_than_is_shown_are_still_covered():
    depth, last = overview.MAX_DEPTH + 20, overview.MAX_DEPTH - 1
    spans = [(i, 1000 * at + i, 100 - 2 * i) for at in range(50) for i in range(depth)]
    found = items(blocks(columns(*spans), 10_000))
    assert len(found) == 5 * overview.MAX_DEPTH
    deepest = [(lasting, busy) for name, _, lasting, busy in found if name == last]
    assert deepest == [(9_100 - 2 * last,) * 2] * 5, "no more is covered than there is"


@pytest.mark.parametrize("width", [1, 7, 100, 10_000])
def test_each_part_is_as_busy_as_its_spans(width: int):
    chance = np.random.default_rng(width)
    start = np.cumsum(chance.integers(1, 60, 5_000))
    end = start + chance.integers(0, np.diff(start, append=start[-1] + 60) + 1)
    found = items(blocks((chance.integers(0, 9, 5_000), start, end), width))
    exact: dict[int, int] = {}
    for begin, dur in zip(start.tolist(), (end - start).tolist(), strict=True):
        exact[begin // width] = exact.get(begin // width, 0) + dur
    coarse: dict[int, int] = {}
    for _, begin, _, busy in found:
        coarse[begin // width] = coarse.get(begin // width, 0) + busy
    assert coarse == exact
    assert len(found) <= 2 * (end[-1] // width + 1)


@pytest.mark.parametrize("name", NAMES)
def test_an_overview_follows_the_schema_and_has_every_lane(name: str, tmp_path: Path):
    store, run = copied(name, tmp_path)
    timeline = Timeline.read(run, store.paths(name).events)
    head, *lanes = map(json.loads, overview_lines(timeline, Collectives(timeline), 12))
    follows("OverviewHead").validate(head)
    lane_rule = follows("OverviewLane")
    assert head["spans"] == timeline.count
    assert head["dropped"] == timeline.dropped
    for lane in lanes:
        lane_rule.validate(lane)
        known = range(lane["from"], lane["from"] + len(lane["define"]))
        assert set(lane["name"]) <= set(known)
    there = {(rank, cat) for rank in timeline.ranks for cat in timeline.lanes[rank]}
    assert {(lane["rank"], lane["cat"]) for lane in lanes} == there
    extent = [(s, s + dur) for lane in lanes for _, s, dur, _ in items(lane)]
    spans = [
        (min(lane.start), max(lane.end)) for ls in timeline.lanes.values() for lane in ls.values()
    ]
    if spans:
        assert min(extent)[0] == min(spans)[0]
        assert max(end for _, end in extent) == max(end for _, end in spans)


def test_an_overview_divides_collectives_into_waits_and_transfers(tmp_path: Path):
    store, run = copied("slow-loader", tmp_path)
    timeline = Timeline.read(run, store.paths(run.id).events)
    collectives = Collectives(timeline)
    _, *lanes = map(json.loads, overview_lines(timeline, collectives, 0))
    width = part_width(timeline)
    for lane in lanes:
        if lane["cat"] == "collective":
            calls = collectives.calls[lane["rank"]]
            waits = (calls.wait_end - calls.start).sum()
            found = items(lane)
            busy = {name: sum(b for n, _, _, b in found if n == name) for name in (WAIT, TRANSFER)}
            assert sum(busy.values()) == (calls.end - calls.start).sum()
            # A block is named after the longest span in it.
            assert abs(busy[WAIT] - waits) <= width * len(found)
            assert [each["name"] for each in lane["define"]] == ["wait", "transfer"]


def test_only_long_runs_have_an_overview_and_an_outdated_one_is_ignored(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    store, run = copied("slow-loader", tmp_path)
    paths = store.paths(run.id)
    write_profile(store, run)
    assert not paths.overview.exists(), "it is short"
    assert stored_overview(paths) == b""
    monkeypatch.setattr(overview, "MIN_SPANS", 1)
    write_profile(store, run)
    assert stored_overview(paths) == paths.overview.read_bytes() != b""
    text = paths.overview.read_text()
    paths.overview.write_text(text.replace(f'"rules":{overview.RULES}', '"rules":0'))
    assert stored_overview(paths) == b""
    write_profile(store, run)
    with paths.events.open("ab") as events:
        events.write(b"{}\n")
    assert stored_overview(paths) == b""
    paths.overview.write_bytes(b"\n")
    assert stored_overview(paths) == b""
