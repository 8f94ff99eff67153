"""Curves and last values in a cell's output: well-formed, bounded, and only if there are any."""

from __future__ import annotations

import json
import math
import random
import re
from pathlib import Path
from typing import Any
from xml.etree import ElementTree

import pytest
from test_display import saved

from rankroom.analysis.metrics.metrics_of_run import GrowingMetrics
from rankroom.display import bundle, metric_picture
from rankroom.display.compared_metrics import Other, compared_values
from rankroom.display.metric_picture import PICTURE_BYTES, last_values, metric_summary
from rankroom.display.page import weight
from rankroom.record.model import event_line
from rankroom.record.store import Store
from record_makers import finished_record

LIMIT = 64 << 10


def recorded(root: Path, curves: dict[str, list[Any]], ranks: int = 1) -> tuple[Store, Any]:
    """A run whose ranks all report these values, each with its rank added."""
    lines = []
    for rank in range(ranks):
        rows = [
            (number, step, value if isinstance(value, str) else value + rank)
            for number, values in enumerate(curves.values())
            for step, value in enumerate(values)
        ]
        name, step, value = map(list, zip(*rows, strict=True))
        columns = {"name": name, "step": step, "at": [1000] * len(rows), "value": value}
        fields = {"from": 0, "define": list(curves), **columns}
        lines.append(event_line("metrics", rank, 1, 1, **fields))
    return finished_record(root, *lines, size=ranks, has_metrics=True)


def parsed(svg: str) -> ElementTree.Element:
    """Parse the SVG as XML, with quotes around attributes, which HTML does not need."""
    return ElementTree.fromstring(re.sub(r"(\s[a-z-]+)=([^'\s>]+)", r"\1='\2'", svg))


def drawn(svg: str, colour: str) -> list[list[tuple[float, float]]]:
    """The segments of all lines of a colour, as points."""
    paths = [path.get("d", "") for path in parsed(svg).iter("path") if path.get("stroke") == colour]
    pieces = [piece.replace("h.1", "") for path in paths for piece in path.split("M")[1:]]
    return [
        [tuple(map(float, place.split())) for place in piece.split("L")]  # type: ignore[misc]
        for piece in pieces
    ]


def test_a_curve_is_drawn_at_its_values(tmp_path: Path):
    store, run = recorded(tmp_path, {"loss": [4, 2, "NaN", 0, 1]})
    svg = metric_summary(run, store).picture
    first, second = drawn(svg, metric_picture.COLOURS[0])
    (left, top), (_, middle) = first
    (_, bottom), (right, low) = second
    assert (left, right) == (metric_picture.LEFT, metric_picture.PANEL)
    assert middle == pytest.approx((top + bottom) / 2)
    assert low == pytest.approx(bottom - (bottom - top) / 4)


@pytest.mark.parametrize("ranks", [1, 3, 64])
@pytest.mark.parametrize("names", [1, 2, 5, 40])
@pytest.mark.parametrize("count", [1, 2, 400])
def test_a_picture_keeps_to_its_size_limit_and_is_well_formed(
    tmp_path: Path, ranks: int, names: int, count: int
):
    chance = random.Random(names)
    curves = {f"a <b> '{at}' & more": [chance.gauss(0, 1) for _ in range(count)]
              for at in range(names)}  # fmt: skip
    store, run = recorded(tmp_path, curves, ranks)
    found = GrowingMetrics(store.paths(run.id), run)
    found.refresh()
    svg = metric_picture.metric_picture(found, PICTURE_BYTES)
    assert svg and weight(svg) <= PICTURE_BYTES
    tags = {each.tag for each in parsed(svg).iter()}
    assert tags <= {"svg", "g", "title", "path", "text"}
    assert not re.search(r"nan|inf(?!i)", svg)
    words = " ".join(text.text or "" for text in parsed(svg).iter("text"))
    assert ("mean of 64 ranks" if ranks == 64 else "rank 0") in words


def test_nonfinite_constant_and_extreme_values_are_drawn(tmp_path: Path):
    curves = {"none": ["NaN", "NaN"], "even": [3, 3, 3], "far": [-1.7e308, 1.7e308]}
    store, run = recorded(tmp_path, curves, 2)
    said = metric_summary(run, store)
    assert "no finite value" in said.picture and not re.search(r"[ML]-?(nan|inf)", said.picture)
    assert said.note.startswith("none is NaN on ranks 0–1 since step 0")


def test_last_values_of_few_ranks_and_of_many(tmp_path: Path):
    store, run = recorded(tmp_path / "few", {"loss": [9, 0.5], "acc": [0.25]}, 2)
    found = GrowingMetrics(store.paths(run.id), run)
    found.refresh()
    rows = [line.split() for line in last_values(found).splitlines()]
    assert rows[2:] == [["loss", "1", "0.5", "1.5"], ["acc", "0", "0.25", "1.25"]]
    store, run = recorded(tmp_path / "many", {f"m{at}": [0.5] for at in range(20)}, 9)
    found = GrowingMetrics(store.paths(run.id), run)
    found.refresh()
    lines = last_values(found).splitlines()
    assert lines[2].split() == ["m0", "0", "4.5", "0.5", "8.5"]
    assert lines[-1] == "… and 8 more metrics"
    assert last_values(found, (), 19).splitlines()[-1] == "… and 1 more metric"


def test_last_values_do_not_depend_on_the_rank_that_has_nan(tmp_path: Path):
    rows = []
    for place in (0, 2, 4):
        values: list[Any] = [0.25, 0.5, 1, 2]
        values.insert(place, "NaN")
        columns = {"from": 0, "define": ["loss"], "name": [0], "step": [0], "at": [1000]}
        lines = [
            event_line("metrics", rank, 1, 1, **columns, value=[value])
            for rank, value in enumerate(values)
        ]
        store, run = finished_record(tmp_path, *lines, size=5, has_metrics=True)
        found = GrowingMetrics(store.paths(run.id), run)
        found.refresh()
        rows.append(last_values(found).splitlines()[2].split())
    assert rows == [["loss", "0", "nan", "0.25", "2"]] * 3


def test_steps_of_a_million_and_more_are_said_in_full(tmp_path: Path):
    steps = [1_000_000, 2_345_678]
    columns = {"name": [0, 0], "step": steps, "at": [1000, 1000], "value": [2, 1]}
    line = event_line("metrics", 0, 1, 1, **{"from": 0, "define": ["loss"], **columns})
    store, run = finished_record(tmp_path, line, size=1, has_metrics=True)
    said = metric_summary(run, store)
    assert said.table.splitlines()[2].split() == ["loss", "2,345,678", "1"]
    assert ">1,000,000<" in said.picture and ">step 2,345,678<" in said.picture
    found = GrowingMetrics(store.paths(run.id), run)
    found.refresh()
    assert "2,345,678" in compared_values(found, [Other("A", run, found)], 5)


def test_the_output_shows_metrics_and_stays_small(tmp_path: Path):
    curves = {f"loss{at}": [math.sin(step / (at + 1)) for step in range(500)] for at in range(8)}
    store, run = recorded(tmp_path, curves, 6)
    data = bundle(run, store)
    assert "<svg" in data["text/html"] and "loss7" in data["text/html"]
    assert "loss7" in data["text/plain"] and "<svg" not in data["text/plain"]
    assert saved(data) < LIMIT


def test_a_run_without_metrics_has_no_metric_summary(tmp_path: Path):
    store, run = finished_record(tmp_path)
    assert metric_summary(run, store) == ("", "", "")
    assert "<svg" not in json.dumps(bundle(run, store))


def test_the_api_is_named_for_large_metrics(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(metric_picture, "MAX_METRIC_BYTES", 100)
    store, run = recorded(tmp_path, {"loss": [1.0] * 100})
    assert "run.metrics()" in bundle(run, store)["text/plain"]
