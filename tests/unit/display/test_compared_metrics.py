"""Runs compared where the view cannot run: last values, curves, and what is missing."""

from __future__ import annotations

import re
from pathlib import Path

import pytest
from test_display import saved
from test_metric_picture import LIMIT, parsed, recorded

from rankroom.analysis.metrics import metrics_of_run
from rankroom.analysis.metrics.metrics_of_run import GrowingMetrics, write_metrics
from rankroom.display import bundle, compared_metrics, metric_picture
from rankroom.display.compared_metrics import comparison
from rankroom.display.metric_picture import PICTURE_BYTES, last_values
from rankroom.display.page import weight
from rankroom.record.model import RunInfo
from rankroom.record.store import Store
from record_makers import finished_record, start_record


def looked_at(store: Store, run: RunInfo) -> GrowingMetrics:
    found = GrowingMetrics(store.paths(run.id), run)
    found.refresh()
    return found


def side_by_side(store: Store, run: RunInfo, *others: RunInfo | str) -> list[str]:
    """The lines of the table and of its legend."""
    run.compare = [other if isinstance(other, str) else other.id for other in others]
    found = looked_at(store, run)
    told = comparison(store, run, list(found.metrics.curves))
    return [*last_values(found, told.others).splitlines(), *told.legend.splitlines()]


@pytest.mark.parametrize("is_kept", [True, False])
def test_last_values_are_means_of_ranks_with_their_difference(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, is_kept: bool
):
    store, run = recorded(tmp_path, {"loss": [9, 0.5], "lr": [0.1]}, 2)
    _, other = recorded(tmp_path, {"loss": [9, 2, "NaN", 0.25], "acc": [0.75]}, 4)
    # Even if curves are stored coarsely, the last value is exact.
    for most in ("MAX_CURVE_BUCKETS", "MIN_CURVE_BUCKETS"):
        monkeypatch.setattr(metrics_of_run, most, 2)
    if is_kept:
        write_metrics(store, other)
    lines = side_by_side(store, run, other)
    assert re.split(r"\s\s+", lines[0]) == ["metric", "this run", "step", "A", "step", "this − A"]
    assert [line.split() for line in lines[2:5]] == [
        ["loss", "1", "1", "1.75", "3", "-0.75"],
        ["lr", "0.6", "0", "–", "–", "–"],
        ["acc", "–", "–", "2.25", "0", "–"],
    ]
    assert re.fullmatch(rf"A: x = 1, run {other.id}, \d{{4}}-.*, 4 ranks", lines[5])


def test_metrics_stored_by_an_earlier_version_are_read(tmp_path: Path):
    store, run = recorded(tmp_path, {"loss": [1]})
    _, other = recorded(tmp_path, {"loss": [9, 0.5]})
    write_metrics(store, other)
    kept = store.paths(other.id).metrics
    kept.write_text(re.sub(r'"last":\[[^]]*\],', "", kept.read_text()))
    assert '"last"' not in kept.read_text()
    assert side_by_side(store, run, other)[2].split() == ["loss", "1", "0", "0.5", "1", "+0.5"]


def test_no_difference_is_shown_if_a_value_is_nan(tmp_path: Path):
    store, run = recorded(tmp_path, {"loss": ["NaN"]})
    _, other = recorded(tmp_path, {"loss": [1]})
    assert side_by_side(store, run, other)[2].split() == ["loss", "nan", "0", "1", "0", "–"]


def test_each_run_that_cannot_be_compared_is_reported_in_a_line(tmp_path: Path):
    store, run = recorded(tmp_path, {"loss": [1]})
    _, silent = finished_record(tmp_path)
    _, live, _ = start_record(tmp_path)
    _, strange = recorded(tmp_path, {"acc": [0.5], "top5": [0.75]})
    lines = side_by_side(store, run, silent, "gone", live, strange)
    assert lines[-4:] == [
        f"A, run {silent.id}, has no metrics",
        "not compared with B, run gone: its record was not found",
        f"C, run {live.id}, has no metrics yet",
        "D shares no metric with this run; its metrics include acc, top5",
    ]
    run.compare = [strange.id]
    told = comparison(store, run, ["loss"], most=10)
    assert told.others == []
    assert told.notes == [compared_metrics.LARGE.format(letter="A", id=strange.id)]


@pytest.mark.parametrize("ranks", [1, 4, 64])
@pytest.mark.parametrize("count", [1, 3])
def test_a_picture_of_several_runs_keeps_to_its_size_limit(tmp_path: Path, ranks: int, count: int):
    curves = {f"m{at}": [1 / (1 + step) for step in range(200)] for at in range(8)}
    store, run = recorded(tmp_path, curves, ranks)
    others = [recorded(tmp_path, {"m0": [2, 1, 0.5]}, 2)[1] for _ in range(count)]
    run.compare = [other.id for other in others]
    found = looked_at(store, run)
    told = comparison(store, run, list(found.metrics.curves))
    svg = metric_picture.metric_picture(found, PICTURE_BYTES, told.others)
    assert svg and weight(svg) <= PICTURE_BYTES and not re.search(r"nan|inf(?!i)", svg)
    panel = next(parsed(svg).iter("g"))
    words = [text.text for text in panel.iter("text")]
    letters = [chr(ord("A") + at) for at in range(count)]
    assert [word for word in words if word in ("this run", *letters)] == [
        *reversed(letters), "this run",
    ]  # fmt: skip
    dashes = {path.get("stroke-dasharray") for path in panel.iter("path")} - {None}
    assert len(dashes) == count


def test_the_output_shows_compared_runs_and_stays_small(tmp_path: Path):
    curves = {f"loss{at}": [step / (at + 1) for step in range(500)] for at in range(8)}
    store, run = recorded(tmp_path, curves, 6)
    run.compare = [recorded(tmp_path, curves, 2)[1].id for _ in range(4)]
    data = bundle(run, store)
    assert "this − D" in data["text/plain"] and "stroke-dasharray" in data["text/html"]
    assert run.compare[3] in data["text/plain"]
    assert saved(data) < LIMIT


def test_a_run_without_metrics_does_not_mention_compared_runs(tmp_path: Path):
    store, run = finished_record(tmp_path)
    run.compare = ["gone"]
    assert "gone" not in bundle(run, store)["text/plain"]
