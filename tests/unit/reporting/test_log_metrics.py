"""Log lines that are recognized as metrics, and other lines, which are not."""

from __future__ import annotations

import math
import time
from collections.abc import Callable
from time import process_time

import pytest

from rankroom.reporting import log_metrics, metrics
from rankroom.reporting.log_metrics import LogMetrics, Values

Taken = list[tuple[int, int, Values]]


def looked(*texts: str) -> Taken:
    found: Taken = []
    made = LogMetrics(lambda *each: found.append(each))
    for t, text in enumerate(texts):
        made.take(t, "stdout", text)
    return found


def lines(form: Callable[[int], str], count: int = 3) -> list[str]:
    return [f"{form(step)}\n" for step in range(1, count + 1)]


@pytest.mark.parametrize(
    ("form", "first"),
    [
        (lambda n: f"epoch {n}  loss 0.41{n}  acc 0.91", {"loss": 0.411, "acc": 0.91}),
        (lambda n: f"Epoch {n}/3, loss: 0.4, val_loss: 0.5", {"loss": 0.4, "val_loss": 0.5}),
        (lambda n: f"[epoch {n}] loss=4e-1 acc=91%", {"loss": 0.4, "acc": 91}),
        (lambda n: f"step {n} | train/loss -1.5 | lr 1e-04", {"train/loss": -1.5, "lr": 1e-4}),
        (lambda n: f"iter={n} loss=.5", {"loss": 0.5}),
        (lambda n: f"  step: {n} - loss: 2", {"loss": 2}),
        (lambda n: f"Iteration #{n}: loss inf", {"loss": math.inf}),
    ],
)
def test_log_lines_of_names_and_values_become_metrics(form: Callable[[int], str], first: Values):
    found = looked(*lines(form))
    assert [(t, step) for t, step, _ in found] == [(0, 1), (1, 2), (2, 3)]
    assert found[0][2] == first


def test_a_nan_value_is_recognized():
    assert math.isnan(looked(*lines(lambda n: f"step {n} loss nan"))[0][2]["loss"])


@pytest.mark.parametrize(
    "form",
    [
        lambda n: f"epoch {n} took 3.4 s",
        lambda n: f"step {n} of 3",
        lambda n: f"Epoch {n}/3",
        lambda n: f"step {n}: download file 7 from the server",
        lambda n: f"loss {n}.5 acc 3",
        lambda n: f"step {n} loss 0.5.3",
        lambda n: f"step {n} at 12:30:0{n}",
        lambda n: f"epoch {n} loss 0.4 (best so far)",
        lambda n: f"{n}/3 ━━━━ 1s 5ms/step - loss: 0.{n}",
        lambda n: f"epochs {n} loss 0.5",
        lambda n: f"step {n} version 1.2rc3",
        lambda n: f"epoch {n} " + "loss 0.5 " * 100,
        lambda n: f"step 4 loss 0.{n}",
        lambda n: f"step {4 - n} loss 0.5",
    ],
)
def test_other_lines_are_not_metrics(form: Callable[[int], str]):
    assert looked(*lines(form)) == []


def test_three_lines_of_a_format_are_needed_before_they_become_metrics():
    form = lambda n: f"step {n} loss 0.5\n"  # noqa: E731
    assert looked(form(1), form(2)) == []
    assert [step for _, step, _ in looked(*map(form, (1, 2, 3, 4, 2)))] == [1, 2, 3, 4, 2]


def test_lines_in_pieces_are_joined_separately_for_each_stream():
    found: Taken = []
    made = LogMetrics(lambda *each: found.append(each))
    for step in range(1, 4):
        for stream in ("stdout", "stderr"):
            made.take(step, stream, f"step {step} lo")
        for stream in ("stdout", "stderr"):
            made.take(step, stream, "ss 0.5\n")
    made.take(9, "stdout", "step 9 loss 0.5")
    assert [step for _, step, _ in found] == [1, 2, 3] * 2, "each stream counts by itself"


def test_no_metrics_are_recognized_among_too_many_line_formats():
    texts = [f"step 1 m{at} 0.5\n" for at in range(log_metrics.MAX_FORMS + 1)]
    assert looked(*texts, *lines(lambda n: f"step {n} loss 0.5")) == []


def test_a_flood_is_passed_over_quickly():
    flood = "".join(lines(lambda n: f"step {n} loss 0.5 and more words", 40_000))
    began = time.perf_counter()
    assert looked(flood) == []
    assert time.perf_counter() - began < 1.0
    nasty = "step 1 " + "a 1 " * 90 + "!\n"
    began = time.perf_counter()
    assert looked(*[nasty] * 100) == []
    assert time.perf_counter() - began < 2.0, "no line takes long to be none"


def test_log_lines_are_ignored_once_a_rank_reports_metrics_itself():
    made = metrics.MetricRecorder()
    made.begin()
    made.add_logged(5, 1, {"loss": 0.5})
    (fields,) = made.take(0)
    assert (fields["define"], fields["step"], fields["at"]) == (["log/loss"], (1,), [5])
    made.add({"loss": 0.5})
    made.add_logged(6, 2, {"loss": 0.5})
    assert [fields["define"] for fields in made.take(0)] == [["loss"]]


@pytest.mark.parametrize(
    "line",
    [
        "step 1 | " + " | ".join(f"m{i} {i * 1.2345:>12.4f}" for i in range(20)) + " | 12.3 it/s",
        "step 120 " + " ".join(f"expert{i} {104857 + i}" for i in range(20)) + " (balanced)",
        "epoch 1 " + "lr 0000000000000001 " * 15 + "!",
    ],
)
def test_a_line_of_many_pairs_that_is_no_metric_is_rejected_quickly(line: str):
    begun = process_time()
    made, found = LogMetrics(lambda *point: found.append(point)), []
    for _ in range(100):
        made.take(0, "stdout", line + "\n")
    assert process_time() - begun < 1 and found == []


def test_a_non_ascii_lookalike_of_a_number_is_rejected():
    assert looked(*lines(lambda step: f"epoch {step} loss ınf acc 0.5")) == []
