"""Curves of very long runs, of very many ranks, and of a restarted rank."""

from __future__ import annotations

import json
import time
import tracemalloc
from itertools import pairwise
from pathlib import Path

import numpy as np
import pytest
from test_curves import drawn, found, line, simple

from rankroom.analysis.metrics import curve_answer, metrics_of_run
from rankroom.analysis.metrics.curve_answer import CurveRequest, curve_reply
from rankroom.analysis.metrics.curves import Curve
from rankroom.analysis.metrics.metric_rows import rows_of
from rankroom.analysis.metrics.metrics_of_run import GrowingMetrics, stored_metrics, write_metrics
from rankroom.record.model import event_line
from rankroom.reporting.metrics import MetricRecorder
from rankroom.server.metric_routes import MetricCurves
from record_makers import finished_record, make_run


@pytest.mark.parametrize("ranks", [1, 2])
def test_steps_of_a_billion_and_more_are_told_apart(ranks: int):
    """Steps may be the number of tokens seen, or seconds since the epoch."""
    first = 1_700_000_121
    steps = [first + at for at in range(5000)]
    points = [(step, at, 1.0) for at, step in enumerate(steps)]
    growing = found(make_run(ranks), *(line(rank, {"loss": points}) for rank in range(ranks)))
    for begin, end in ((first + 50, first + 57), (first + 0.5, first + 200.5)):
        said = curve_reply(growing, CurveRequest(begin=begin, end=end))
        within = [step for step in steps if begin <= step <= end]
        assert all(each["x"] == within for each in (*said["curves"], *said["over_ranks"]))
    said = curve_reply(growing, CurveRequest())
    for each in (*said["curves"], *said["over_ranks"]):
        assert all(a < b for a, b in pairwise(each["x"]))
        assert each["x"][0] == pytest.approx(first + (each["count"][0] - 1) / 2, abs=1e-3)


def test_large_interleaved_steps_of_two_ranks_stay_distinct():
    first = 10**12
    lines = [
        line(rank, {"loss": [(first + 2 * at + rank, at, 1.0) for at in range(1000)]})
        for rank in (0, 1)
    ]
    (over,) = curve_reply(found(make_run(2), *lines), CurveRequest(points=300))["over_ranks"]
    assert all(a < b for a, b in pairwise(over["x"])) and len(over["x"]) == 300


def test_a_reply_for_very_many_ranks_has_fewer_names_by_default(monkeypatch: pytest.MonkeyPatch):
    assert curve_answer.CURVES_AT_ONCE * curve_answer.MIN_POINTS <= curve_answer.MOST_BUCKETS
    monkeypatch.setattr(curve_answer, "CURVES_AT_ONCE", 250)
    curves = {name: simple([1.0, 2.0]) for name in ("loss", "acc", "rate")}
    growing = found(make_run(100), *(line(rank, curves) for rank in range(100)))
    said = curve_reply(growing, CurveRequest())
    assert {each["name"] for each in said["curves"]} == {"loss", "acc"} and len(said["names"]) == 3
    assert len(curve_reply(growing, CurveRequest(names=("rate",)))["curves"]) == 100


def test_points_added_one_by_one_take_less_than_64_bytes_each():
    curve, count = Curve(), 20_000
    tracemalloc.start()
    for at in range(count):
        curve.add(*(np.array([float(number)]) for number in (at, 10 * at, -at)))
    taken, _ = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    assert taken < 64 * count
    columns = curve.columns()
    assert columns.step.tolist() == list(range(count)) and columns.mean[-1] == -(count - 1)
    curve.add(*(np.array([number]) for number in (1.0, 2.0, 3.0)))
    assert curve.columns().t[-2:].tolist() == [10 * (count - 1), 2.0]


def test_a_note_reports_curves_beyond_the_limit(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(metrics_of_run, "MAX_CURVES", 3)
    curves = {f"m{at}": simple([1, 2]) for at in range(5)}
    store, run = finished_record(tmp_path, line(0, curves), size=1)
    write_metrics(store, run)
    paths = store.paths(run.id)
    kept, whole = stored_metrics(paths, run), GrowingMetrics(paths, run)
    whole.refresh()
    assert kept is not None
    for each in (kept, whole):
        (note,) = curve_reply(each, CurveRequest())["notes"]
        assert "only 3 curves" in note and "4 points" in note


def test_metrics_of_a_restarted_rank_keep_their_own_names(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    """The restarted process numbers its names in another order."""
    monkeypatch.setattr(metrics_of_run, "PART_BYTES", 20_000)
    recorder = MetricRecorder()
    zero = time.time_ns() // 1000
    lines = []
    for starts, first in enumerate(("loss", "rate")):
        recorder.begin(starts)
        for step in range(2500 * starts, 2500 * (starts + 1)):
            values = {"loss": 1.0, "rate": 0.5}
            recorder.add({first: values.pop(first), **values}, step)
        lines += [event_line("metrics", 0, 1, 0, **fields) for fields in recorder.take(zero)]
    store, run = finished_record(tmp_path, *lines, size=1)
    write_metrics(store, run)
    run = store.load(run.id)
    curves = MetricCurves(store)
    for begin, end in ((None, None), (100, 150), (2300, 2350), (4000, 4050)):
        said = json.loads(curves.of(run, CurveRequest(begin=begin, end=end)))
        assert set(drawn(said, "loss", 0)["mean"]) == {1}
        assert set(drawn(said, "rate", 0)["mean"]) == {0.5}
    assert {row["value"] for row in rows_of(run, lines) if row["name"] == "rate"} == {0.5}
