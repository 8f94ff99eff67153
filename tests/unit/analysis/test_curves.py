"""Curves of metrics: buckets that cover all values, differences between ranks, bad records."""

from __future__ import annotations

import json
import math
import random
import sys
from itertools import pairwise
from pathlib import Path
from typing import Any

import jsonschema
import numpy as np
import pytest

from rankroom.analysis.metrics import metrics_of_run
from rankroom.analysis.metrics.curve_answer import CurveRequest, curve_reply
from rankroom.analysis.metrics.curve_notes import notes_of
from rankroom.analysis.metrics.metric_rows import rows_of
from rankroom.analysis.metrics.metrics_of_run import (
    GrowingMetrics,
    shortened,
    stored_metrics,
    write_metrics,
)
from rankroom.analysis.timeline import Timeline
from rankroom.errors import UsageError
from rankroom.record.model import SCHEMA_FILE, Clock, Json, RunInfo, event_line
from rankroom.record.store import RecordPaths
from record_makers import finished_record, make_run, start_record

DEFS = json.loads(SCHEMA_FILE.read_text())["$defs"]
Point = tuple[float, float, Any]  # step, microseconds, value


def line(rank: int, curves: dict[str, list[Point]], first: int = 0) -> bytes:
    """A metrics event with these points; names are numbered from `first`."""
    rows = [
        (first + number, *point)
        for number, points in enumerate(curves.values())
        for point in points
    ]
    name, step, t, value = map(list, zip(*rows, strict=True))
    at = [t[0], *(b - a for a, b in pairwise(t))]
    columns = {"name": name, "step": step, "at": at, "value": value}
    return event_line("metrics", rank, 1, 0, **{"from": first, "define": list(curves), **columns})


def simple(values: list[Any], begin: int = 0) -> list[Point]:
    """One value per step, a millisecond apart."""
    return [(begin + at, 1000 * (begin + at), value) for at, value in enumerate(values)]


def found(run: RunInfo, *lines: bytes) -> GrowingMetrics:
    growing = GrowingMetrics(RecordPaths(Path("none"), run.id), run)
    growing.metrics.take(lines)
    return growing


def drawn(said: Json, name: str, rank: int) -> Json:
    return next(c for c in said["curves"] if (c["name"], c["rank"]) == (name, rank))


def test_curves_with_few_points_are_returned_exactly():
    lines = [line(rank, {"loss": simple([3, 2.5, 1 + rank])}) for rank in (0, 1)]
    said = curve_reply(found(make_run(2), *lines), CurveRequest())
    assert said["names"] == [
        {"name": "loss", "ranks": [0, 1], "points": 3, "steps": [0, 2], "t": [0, 2000]}
    ]
    assert drawn(said, "loss", 1) == {
        "name": "loss", "rank": 1, "x": [0, 1, 2], "mean": [3, 2.5, 2], "low": [3, 2.5, 2],
        "high": [3, 2.5, 2], "count": [1, 1, 1], "bad": [], "last": 2,
    }  # fmt: skip
    assert said["over_ranks"] == [
        {"name": "loss", "x": [0, 1, 2], "mean": [3, 2.5, 1.5], "low": [3, 2.5, 1],
         "high": [3, 2.5, 2], "count": [1, 1, 1]}
    ]  # fmt: skip
    assert said["exact"] is True
    by_time = curve_reply(
        found(make_run(2), *lines), CurveRequest(axis="time", begin=500, end=1500)
    )
    assert drawn(by_time, "loss", 0)["x"] == [1000]


@pytest.mark.parametrize("points", [2, 7, 100, 999, 1000])
def test_buckets_cover_every_value(points: int):
    chance = random.Random(points)
    values = [chance.uniform(-5, 5) for _ in range(1000)]
    said = curve_reply(
        found(make_run(1), line(0, {"loss": simple(values)})), CurveRequest(points=points)
    )
    curve = drawn(said, "loss", 0)
    assert len(curve["x"]) <= points and sum(curve["count"]) == 1000
    assert min(curve["low"]) == min(values) and max(curve["high"]) == max(values)
    at = 0
    for count, x, mean, low, high in zip(
        *(curve[key] for key in ("count", "x", "mean", "low", "high")), strict=True
    ):
        part = values[at : at + count]
        assert (low, high) == (min(part), max(part))
        assert mean == pytest.approx(sum(part) / count, rel=1e-6)
        assert x == pytest.approx(at + (count - 1) / 2, rel=1e-6)
        at += count


@pytest.mark.parametrize(("value", "said"), [(7.5, 7.5), (math.nan, "NaN")])
def test_a_reply_has_the_last_value_itself_if_its_range_does(value: float, said: Any):
    known = found(make_run(1), line(0, {"loss": simple([*[0.0] * 9999, value])}))
    for asked, last in (
        (CurveRequest(points=100), said),
        (CurveRequest(points=100, axis="time"), said),
        (CurveRequest(points=100, begin=0.0, end=5000.0), None),
    ):
        [curve] = curve_reply(known, asked)["curves"]
        assert len(curve["x"]) <= 100 and curve["mean"][-1] != said
        assert curve.get("last") == last


def test_steps_that_go_back_are_in_order_on_the_axis():
    points = [(5, 0, 1.0), (3, 10, 2.0), (4, 20, 3.0), (3, 30, 4.0)]
    growing = found(make_run(1), line(0, {"loss": points}))
    curve = drawn(curve_reply(growing, CurveRequest()), "loss", 0)
    assert curve["x"] == [3, 3, 4, 5] and curve["mean"] == [2, 4, 3, 1]
    assert drawn(curve_reply(growing, CurveRequest(axis="time")), "loss", 0)["mean"] == [1, 2, 3, 4]


def test_ranks_that_log_different_names_and_at_different_steps():
    lines = [
        line(0, {"loss": simple([1, 1, 1]), "rate": simple([5])}),
        line(1, {"acc": simple([0.5]), "loss": simple([3, 3], begin=2)}),
    ]
    said = curve_reply(found(make_run(2), *lines), CurveRequest())
    assert [(each["name"], each["ranks"]) for each in said["names"]] == [
        ("loss", [0, 1]), ("rate", [0]), ("acc", [1]),
    ]  # fmt: skip
    (over,) = said["over_ranks"]
    assert over["x"] == [0, 1, 2, 3] and over["mean"] == [1, 1, 2, 3]
    assert (over["low"], over["high"]) == ([1, 1, 1, 3], [1, 1, 3, 3])


def test_on_the_time_axis_the_mean_includes_ranks_that_report_at_other_times():
    lines = [line(0, {"loss": [(step, 1000 * step, 1.0) for step in range(50)]})]
    lines.append(line(1, {"loss": [(step, 1000 * step + 300, 3.0) for step in range(50)]}))
    growing = found(make_run(2), *lines)
    for points in (400, 70, 20):
        (over,) = curve_reply(growing, CurveRequest(axis="time", points=points))["over_ranks"]
        assert over["x"] == sorted(set(over["x"])) and len(over["x"]) <= points
        assert set(over["mean"]) == {2} and (set(over["low"]), set(over["high"])) == ({1}, {3})
        assert sum(over["count"]) == pytest.approx(50)


def test_on_the_time_axis_a_rank_is_interpolated_only_between_its_points():
    lines = [
        line(0, {"loss": [(0, 0, 0), (1, 100, 10), (2, 200, 20), (3, 300, 30)]}),
        line(1, {"loss": [(0, 50, 5), (1, 150, "NaN"), (2, 160, 16)]}),
        line(2, {"acc": [(0, 5, 1)]}),
    ]
    (over,) = curve_reply(found(make_run(3), *lines), CurveRequest(axis="time"))["over_ranks"]
    assert over["x"] == [0, 50, 100, 150, 160, 200, 300]
    # Rank 1's first bucket extends back to 0, its last one to 165.
    assert over["low"] == [0, 5, 10, 15, 16, 20, 30]
    assert over["high"] == [5, 5, 10, 15, 16, 20, 30]
    assert over["count"] == [0.5, 0.5, 1, 1, 0.5, 1, 1]


def test_the_mean_over_ranks_counts_equally_many_points_coarse_or_fine():
    lines = [line(rank, {"loss": simple(list(range(1000)))}) for rank in range(3)]
    growing = found(make_run(3), *lines)
    for axis in ("step", "time"):
        for points in (1000, 30):
            (over,) = curve_reply(growing, CurveRequest(axis=axis, points=points))["over_ranks"]
            assert sum(over["count"]) == pytest.approx(1000)


def test_a_bucket_counts_its_points_whether_they_are_finite_or_not():
    growing = found(make_run(1), line(0, {"loss": simple([1, "NaN"] * 500)}))
    for points in (1000, 300, 7):
        curve = drawn(curve_reply(growing, CurveRequest(points=points)), "loss", 0)
        assert len(curve["x"]) <= points and sum(curve["count"]) == 1000


def test_values_that_are_not_finite_are_gaps_and_listed():
    values = [1, "NaN", 2, "Infinity", "-Infinity", 3]
    growing = found(make_run(1), line(0, {"loss": simple(values)}))
    curve = drawn(curve_reply(growing, CurveRequest()), "loss", 0)
    assert curve["mean"] == [1, None, 2, None, None, 3]
    assert curve["bad"] == [
        {"x": 1, "value": "NaN"}, {"x": 3, "value": "Infinity"}, {"x": 4, "value": "-Infinity"},
    ]  # fmt: skip
    json.dumps(curve_reply(growing, CurveRequest(points=2)), allow_nan=False)
    part = drawn(curve_reply(growing, CurveRequest(begin=2, end=3)), "loss", 0)
    assert part["bad"] == [{"x": 3, "value": "Infinity"}]
    many = found(make_run(1), line(0, {"loss": simple(["NaN"] * 500)}))
    assert len(drawn(curve_reply(many, CurveRequest()), "loss", 0)["bad"]) == 100


def test_extreme_float_values_give_valid_json():
    values = [1e308, -1e308, 1.7e308, 5e-324] * 100
    growing = found(make_run(2), *(line(r, {"loss": simple(values)}) for r in (0, 1)))
    for points in (3, 400):
        for axis in ("step", "time"):
            json.dumps(
                curve_reply(growing, CurveRequest(axis=axis, points=points)), allow_nan=False
            )
    assert max(drawn(curve_reply(growing, CurveRequest(points=3)), "loss", 0)["high"]) == 1.7e308


def test_only_the_first_of_many_names_are_returned_unless_others_are_requested():
    curves = {f"m{at}": simple([at]) for at in range(10_000)}
    growing = found(make_run(1), line(0, curves))
    said = curve_reply(growing, CurveRequest())
    assert len(said["names"]) == 10_000 and len(said["curves"]) == 20
    said = curve_reply(growing, CurveRequest(names=("m9999", "none")))
    assert [each["mean"] for each in said["curves"]] == [[9999]]


def test_an_answer_with_very_many_curves_has_fewer_points_of_each():
    curves = {f"m{at}": simple(list(range(500))) for at in range(20)}
    growing = found(make_run(16), *(line(rank, curves) for rank in range(16)))
    said = curve_reply(growing, CurveRequest())
    assert said["points"] == 100_000 // 320
    assert sum(len(each["x"]) for each in said["curves"]) <= 100_000


# --- differences between ranks --------------------------------------------------------------------


def noted(*values: list[Any]) -> list[str]:
    lines = [line(rank, {"loss": simple(each)}) for rank, each in enumerate(values)]
    return notes_of(found(make_run(len(values)), *lines).metrics.curves)


def test_a_note_says_since_which_step_ranks_differ():
    same = [1 / (1 + step) for step in range(20)]
    other = [*same[:12], *(value + 0.5 for value in same[12:])]
    assert noted(same, other, same) == [
        "loss differs between ranks since step 12: rank 0 0.0769231, rank 1 0.576923"
    ]
    assert noted(same, same) == []
    assert noted(same, [value * (1 + 1e-9) for value in same]) == [], "the order of adding up"


def test_a_note_counts_the_steps_at_which_ranks_differ_only_briefly():
    same = [1 / (1 + step) for step in range(20)]
    other = [value + 0.1 * (step in (12, 15)) for step, value in enumerate(same)]
    assert noted(same, other) == [
        "loss differs between ranks at 2 of 20 steps, first at step 12: rank 0 0.0769231, "
        "rank 1 0.176923"
    ]


def test_ranks_that_never_agreed_get_no_note():
    assert noted([1, 2, 3, 4, 5], [2, 3, 4, 5, 6]) == []
    assert noted([0, 0, 0, 0, 0.5], [0, 0, 0, 0, 0.25]) == [], "an accuracy that begins with 0"
    assert noted([3, 2, 1], [3, 2, 9]) == [], "too few"
    assert noted([3, 2, 1, 1]) == []


def test_only_steps_that_both_ranks_have_are_compared():
    one = {"loss": [(s, s, 1 / (s + 1)) for s in range(0, 40)]}
    two = {"loss": [(s, s, 1 / (s + 1) + (s > 20)) for s in range(0, 40, 2)]}
    metrics = found(make_run(2), line(0, one), line(1, two)).metrics
    assert notes_of(metrics.curves)[0].startswith("loss differs between ranks since step 22: ")


def test_a_note_names_the_ranks_and_step_of_values_that_are_not_finite():
    fine, broken = [1.0, 2.0, 3.0, 4.0], [1.0, 2.0, "NaN", "NaN"]
    assert noted(fine, broken, fine, broken) == ["loss is NaN on ranks 1,3 since step 2"]
    assert noted([1.0, "Infinity", 2.0]) == ["loss is Infinity on rank 0 at step 1"]


def test_notes_write_steps_above_a_million_in_full():
    late = {"loss": [(1_234_567, 0, 1), (1_234_568, 1, "NaN"), (1_234_569, 2, "NaN")]}
    metrics = found(make_run(1), line(0, late)).metrics
    assert notes_of(metrics.curves) == ["loss is NaN on rank 0 since step 1,234,568"]
    same = [(2_000_000 + at, at, 1 / (1 + at)) for at in range(20)]
    other = [*same[:12], *((step, t, value + 0.5) for step, t, value in same[12:])]
    apart = found(make_run(2), line(0, {"loss": same}), line(1, {"loss": other})).metrics
    assert "differs between ranks since step 2,000,012: " in notes_of(apart.curves)[0]


# --- stored and growing metrics -------------------------------------------------------------------


def record(root: Path, ranks: int, count: int) -> tuple[Any, RunInfo]:
    lines = []
    for rank in range(ranks):
        for begin in range(0, count, 4096):
            values = [math.sin(at / 50) + rank for at in range(begin, min(count, begin + 4096))]
            lines.append(line(rank, {"loss": simple(values, begin)}))
    return finished_record(root, *lines, size=ranks)


def test_stored_metrics_follow_the_schema_and_give_equivalent_curves(tmp_path: Path):
    store, run = record(tmp_path, 2, 10_000)
    write_metrics(store, run)
    kept = json.loads(store.paths(run.id).metrics.read_text())
    schema = jsonschema.Draft202012Validator({"$ref": "#/$defs/Curves", "$defs": DEFS})
    schema.validate(kept)
    assert kept["exact"] is False and len(kept["curves"][0]["step"]) <= 2048
    coarse = stored_metrics(store.paths(run.id), run)
    whole = GrowingMetrics(store.paths(run.id), run)
    whole.refresh()
    assert coarse is not None
    for axis in ("step", "time"):
        asked = CurveRequest(axis=axis, points=200)
        one, two = curve_reply(coarse, asked), curve_reply(whole, asked)
        assert one["names"] == two["names"]
        assert (one["exact"], two["exact"]) == (False, True)
        for a, b in zip(one["curves"], two["curves"], strict=True):
            assert sum(a["count"]) == sum(b["count"]) == 10_000
            # A stored bucket may straddle the boundary between two buckets of the reply.
            assert np.allclose(a["mean"], b["mean"], atol=0.02)
            assert (min(a["low"]), max(a["high"])) == (min(b["low"]), max(b["high"]))


def test_a_range_is_read_without_the_whole_record(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(metrics_of_run, "PART_BYTES", 100_000)
    store, run = record(tmp_path, 2, 40_000)
    write_metrics(store, run)
    paths = store.paths(run.id)
    kept, whole = stored_metrics(paths, run), GrowingMetrics(paths, run)
    whole.refresh()
    assert kept is not None
    for axis, factor in (("step", 1), ("time", 1000)):
        low, high = 20_000 * factor, 20_100 * factor
        part = kept.part(paths.events, run, axis, low, high)
        assert part is not None
        assert all(101 <= curve.points <= 10_000 for _, _, curve in part.all())
        asked = CurveRequest(axis=axis, begin=low, end=high, points=200)
        assert curve_reply(kept, asked, part=part) == curve_reply(whole, asked)
    nothing = kept.part(paths.events, run, "step", 50_000, 60_000)
    assert nothing is not None
    said = curve_reply(kept, CurveRequest(begin=50_000), part=nothing)
    assert said["curves"] == [] and len(said["names"]) == 1
    monkeypatch.setattr(metrics_of_run, "MAX_READ_BYTES", 1000)
    assert kept.part(paths.events, run, "step", 20_000, 20_100) is None


def test_metrics_with_few_points_are_stored_exactly(tmp_path: Path):
    values = [1.5, "NaN", 0.1, "-Infinity", 1e-300]
    store, run = finished_record(tmp_path, line(0, {"loss": simple(values)}), size=1)
    write_metrics(store, run)
    paths = store.paths(run.id)
    jsonschema.Draft202012Validator({"$ref": "#/$defs/Curves", "$defs": DEFS}).validate(
        json.loads(paths.metrics.read_text())
    )
    kept, whole = stored_metrics(paths, run), GrowingMetrics(paths, run)
    whole.refresh()
    assert kept is not None
    assert curve_reply(kept, CurveRequest()) == curve_reply(whole, CurveRequest())
    assert kept.notes() == ["loss is NaN on rank 0 at step 1"]


def test_stored_metrics_are_ignored_when_outdated_or_damaged(tmp_path: Path):
    store, run = record(tmp_path, 1, 10)
    paths = store.paths(run.id)
    assert stored_metrics(paths, run) is None
    write_metrics(store, run)
    text = paths.metrics.read_text()
    older = text.replace(f'"rules":{metrics_of_run.METRICS_FORMAT_VERSION}', '"rules":0')
    damaged = text.replace('"step":[', '"step":["x",')
    for wrong in ("", "[]", "{}", text[:-20], older, damaged):
        paths.metrics.write_text(wrong)
        assert stored_metrics(paths, run) is None, wrong[:40]
    paths.metrics.write_text(text)
    assert stored_metrics(paths, run) is not None
    with paths.events.open("ab") as file:
        file.write(line(0, {"loss": simple([1], 10)}))
    assert stored_metrics(paths, run) is None


def test_metrics_of_a_live_run_grow_with_its_events(tmp_path: Path):
    store, run, writer = start_record(tmp_path, size=1)
    growing = GrowingMetrics(store.paths(run.id), run)
    assert curve_reply(growing, CurveRequest())["curves"] == []
    writer.append(line(0, {"loss": simple([1, 2])}))
    growing.refresh()
    more = line(0, {"loss": simple([3], 2)})
    with store.paths(run.id).events.open("ab") as file:
        file.write(more[:30])
        file.flush()
        growing.refresh()
        assert drawn(curve_reply(growing, CurveRequest()), "loss", 0)["mean"] == [1, 2]
        file.write(more[30:])
    growing.refresh()
    assert drawn(curve_reply(growing, CurveRequest()), "loss", 0)["mean"] == [1, 2, 3]
    writer.close()


def test_notes_may_lag_behind_a_live_run_but_not_behind_a_finished_one():
    growing = found(make_run(1), line(0, {"loss": simple([1, 2])}))
    assert curve_reply(growing, CurveRequest(), "running")["notes"] == []
    growing._next = math.inf
    growing.metrics.take([line(0, {"loss": simple(["NaN"], 2)})])
    assert curve_reply(growing, CurveRequest(), "running")["notes"] == []
    assert curve_reply(growing, CurveRequest(), "done")["notes"] == [
        "loss is NaN on rank 0 since step 2"
    ]


def test_points_and_curves_in_memory_are_bounded(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(metrics_of_run, "MAX_POINTS_IN_MEMORY", 1000)
    monkeypatch.setattr(metrics_of_run, "MAX_CURVES", 3)
    growing = found(make_run(1))
    for begin in range(0, 50_000, 500):
        part = simple(list(range(begin, begin + 500)), begin)
        growing.metrics.take([line(0, {"loss": part})])
        assert growing.metrics.held <= 1500
    said = curve_reply(growing, CurveRequest(points=50))
    curve = drawn(said, "loss", 0)
    assert said["exact"] is False and said["names"][0]["points"] == 50_000
    assert sum(curve["count"]) == 50_000
    assert (curve["low"][0], curve["high"][-1]) == (0, 49_999)
    growing.metrics.take([line(0, {f"m{at}": simple([1]) for at in range(10)}, 1)])
    assert len(growing.metrics.curves) == 3 and growing.metrics.dropped == {"curves": 8}


# --- invalid records ------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("change", "why"),
    [
        ({"value": [1]}, "length"),
        ({"value": [1, [2]]}, "number"),
        ({"value": [1, {}]}, "number"),
        ({"value": [1, "many"]}, "number"),
        ({"step": ["x", 1]}, "number"),
        ({"step": [1e300, 1]}, "far"),
        ({"at": [10**17, 1]}, "far"),
        ({"at": [10**400, 1]}, "number"),
        ({"name": [7, 0]}, "name"),
        ({"name": [0.5, 0]}, "name"),
        ({"rank": 9}, "rank"),
        ({"define": "loss"}, "name"),
        ({"define": [3]}, "name"),
        ({"from": "0"}, "name"),
        ({"from": -1}, "name"),
    ],
)
def test_invalid_metrics_are_dropped_and_counted(change: Json, why: str):
    event = {"kind": "metrics", "rank": 0, "seq": 1, "t": 1, "from": 0, "define": ["loss"],
             "name": [0, 0], "step": [0, 1], "at": [5, 5], "value": [1, 2]}  # fmt: skip
    raw = json.dumps({**event, **change}, separators=(",", ":")).encode()
    growing = found(make_run(1), raw)
    assert set(growing.metrics.dropped) == {why}
    json.dumps(curve_reply(growing, CurveRequest()), allow_nan=False)
    rows_of(make_run(1), [raw])


@pytest.mark.parametrize("seed", range(20))
def test_reading_damaged_metrics_events_never_raises(seed: int):
    chance = random.Random(seed)
    raw = bytearray(line(0, {"loss": simple([1.5, "NaN", 3])}) + line(1, {"acc": simple([1, 2])}))
    for _ in range(chance.randint(1, 6)):
        raw[chance.randrange(len(raw))] = chance.randrange(256)
    lines = bytes(raw).split(b"\n")
    growing = found(make_run(2), *lines)
    json.dumps(curve_reply(growing, CurveRequest(points=2)), allow_nan=False)
    rows_of(make_run(2), lines)


def test_clock_offsets_are_corrected_and_times_that_jump_back_are_sorted():
    run = make_run(2)
    run.ranks[1].clock = Clock(2_000, 10)
    jump = [(0, 3000, 1), (1, -5000, 2), (2, 4_000_000, 3)]
    lines = [line(rank, {"loss": jump}) for rank in (0, 1)]
    said = curve_reply(found(run, *lines), CurveRequest(axis="time"))
    assert drawn(said, "loss", 0)["x"] == [-5000, 3000, 4_000_000]
    assert drawn(said, "loss", 1)["x"] == [-7000, 1000, 3_998_000]
    assert [row["t"] for row in rows_of(run, lines)][3:] == [0.001, -0.007, 3.998]


def test_a_timeline_ignores_metrics_events():
    timeline = Timeline.of(make_run(1), [line(0, {"loss": simple([1])})])
    assert timeline.count == 0 and timeline.dropped == {}


# --- rows -----------------------------------------------------------------------------------------


def test_rows_are_the_points_as_they_were_reported(monkeypatch: pytest.MonkeyPatch):
    rows = rows_of(make_run(1), [line(0, {"loss": simple([1, "Infinity"]), "acc": simple([0.5])})])
    assert rows == [
        {"name": "loss", "rank": 0, "step": 0, "t": 0.0, "value": 1},
        {"name": "loss", "rank": 0, "step": 1, "t": 0.001, "value": math.inf},
        {"name": "acc", "rank": 0, "step": 0, "t": 0.0, "value": 0.5},
    ]
    monkeypatch.setitem(sys.modules, "pandas", None)
    with pytest.raises(UsageError, match="pip install pandas"):
        rows.to_pandas()


def test_means_are_rounded_to_nine_significant_digits():
    values = np.array([1 / 3, -12345.678901234, 0.0, np.nan, 5e-324, 1e308, 2.0])
    short = shortened(values)
    assert short[0] == 0.333333333 and short[1] == -12345.6789
    assert np.allclose(short, values, rtol=1e-8, equal_nan=True)
