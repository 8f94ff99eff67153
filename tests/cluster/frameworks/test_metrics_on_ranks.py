"""Metrics of real ranks: a PyTorch loop, Keras' fit, log lines, and unusual cells."""

from __future__ import annotations

import json
import time
from typing import Any

import pytest

from cells import failure, finish
from rankroom.analysis.metrics.curve_answer import CurveRequest, curve_reply
from rankroom.analysis.metrics.metrics_of_run import GrowingMetrics, stored_metrics
from rankroom.cluster.local import Cluster
from rankroom.display import bundle
from rankroom.run.run import Run

pytestmark = pytest.mark.cluster


def done(cluster: Cluster, source: str, **how: Any) -> Run:
    run = finish(cluster, source, **how)
    assert run.state == "done", failure(run)
    return run


def curve(run: Run, name: str, rank: int = 0) -> list[tuple[Any, Any]]:
    """Return the steps and values of a metric on a rank."""
    return [
        (row["step"], row["value"])
        for row in run.metrics()
        if (row["name"], row["rank"]) == (name, rank)
    ]


def test_metrics_of_a_loop_are_available_while_it_runs(frameworks: Cluster, tmp_path: Any):
    gate = tmp_path / "gate"
    run = frameworks.run(
        f"""
import os, time, torch, rankroom
torch.manual_seed(0)
model = torch.nn.Linear(4, 1)
sgd = torch.optim.SGD(model.parameters(), 0.1)
total = torch.zeros(())
for step in range(20):
    loss = (model(torch.ones(8, 4)) - 1).square().mean()
    sgd.zero_grad(); loss.backward(); sgd.step()
    total += loss.detach()
    rankroom.log(loss=loss, total=total, rank=rank, step=step)
    if step == 9:
        while not os.path.exists({str(gate)!r}):
            time.sleep(0.01)
float(total)
"""
    )
    until = time.monotonic() + 60
    while len(curve(run, "loss")) < 10 and time.monotonic() < until:
        time.sleep(0.05)
    assert run.state == "running" and len(curve(run, "loss")) == 10, "live"
    gate.touch()
    assert run.wait(60) and run.state == "done", failure(run)
    losses = curve(run, "loss", 1)
    assert [step for step, _ in losses] == list(range(20)) and losses[-1][1] < losses[0][1]
    totals = curve(run, "total", 1)
    assert totals[0][1] == pytest.approx(losses[0][1]), "each is that of its moment"
    assert totals[-1][1] == pytest.approx(float(run.results[1]))
    assert curve(run, "rank", 1)[0] == (0, 1)
    paths = run._store.paths(run.id)
    until = time.monotonic() + 30
    while stored_metrics(paths, run.info) is None and time.monotonic() < until:
        time.sleep(0.05)
    kept = stored_metrics(paths, run.info)
    assert kept is not None and len(curve_reply(kept, CurveRequest())["curves"]) == 6
    assert kept.notes() == []
    assert "<svg" in bundle(run.info, run._store)["text/html"]


def test_metric_names_belong_to_their_run_and_rank(frameworks: Cluster):
    source = """
    import rankroom, threading
    rankroom.log(**{f"only{rank}": 1.5})
    thread = threading.Thread(target=lambda: [rankroom.log(loss=i) for i in range(100)])
    thread.start()
    thread.join()
    """
    for run in (done(frameworks, source), done(frameworks, source)):
        assert curve(run, "only0") == [(0, 1.5)] and curve(run, "only1", 1) == [(0, 1.5)]
        assert curve(run, "only1") == []
        assert curve(run, "loss") == [(i, i) for i in range(100)]
    run = done(frameworks, "rankroom.log(subset=rank)", ranks=[1])
    assert run.metrics()[0]["rank"] == 1 and len(run.metrics()) == 1
    assert done(frameworks, "1").metrics() == []


def test_invalid_metric_values_are_noted_and_the_run_continues(frameworks: Cluster):
    run = done(
        frameworks,
        """
        import math, os, torch
        for step in range(6):
            rankroom.log(loss=math.nan if rank and step > 3 else 1 / (step + 1), step=step)
        rankroom.log(loss="soon", wide=torch.ones(3), empty=None)
        rankroom.log(loss=-math.inf, step=2)
        child = os.fork()
        if child == 0:
            rankroom.log(child=1)
            os._exit(0)
        os.waitpid(child, 0)
        """,
    )
    assert any("'loss': values that are not numbers (str)" in note for note in run.info.notes)
    assert any("'wide': values that are not numbers (Tensor)" in note for note in run.info.notes)
    assert {row["name"] for row in run.metrics()} == {"loss"}
    growing = GrowingMetrics(run._store.paths(run.id), run.info)
    growing.refresh()
    assert "loss is NaN on rank 1 since step 4" in growing.notes()
    assert "loss is -Infinity on rank 0 since step 2" in growing.notes()
    json.dumps(curve_reply(growing, CurveRequest()), allow_nan=False)


def test_a_rank_that_is_killed_leaves_what_it_had_reported(frameworks: Cluster):
    run = finish(
        frameworks,
        """
        import os, signal, time
        rankroom.log(last=rank)
        time.sleep(2.5 if rank else 0)
        if rank:
            os.kill(os.getpid(), signal.SIGKILL)
        """,
    )
    try:
        assert run.state == "failed" and curve(run, "last", 1) == [(0, 1)]
    finally:
        frameworks.restart([1])


def test_keras_fit_reports_metrics_without_user_code(frameworks: Cluster):
    run = done(
        frameworks,
        """
        import numpy, keras
        x, y = numpy.ones((32, 4)), numpy.ones((32, 1))
        model = keras.Sequential([keras.layers.Dense(1)])
        model.compile("sgd", "mse", metrics=["mae"])
        history = model.fit(x, y, batch_size=8, epochs=3, verbose=0, validation_data=(x, y))
        history.history["loss"], history.history["val_mae"]
        """,
    )
    for rank in (0, 1):
        losses, val = json.loads(run.results[rank].replace("(", "[").replace(")", "]"))
        found = curve(run, "loss", rank)
        assert [step for step, _ in found] == list(range(12))
        # The value of an epoch's last batch is that of the epoch.
        assert [value for _, value in found[3::4]] == pytest.approx(losses, rel=1e-4)
        assert [step for step, _ in curve(run, "val_mae", rank)] == [3, 7, 11]
        assert [value for _, value in curve(run, "val_mae", rank)] == pytest.approx(val, rel=1e-4)
        assert len(curve(run, "mae", rank)) == 12


def test_lines_of_a_log_are_metrics_of_ranks_that_report_none(frameworks: Cluster):
    run = done(
        frameworks,
        """
        import rankroom, time
        for epoch in range(1, 5):
            print(f"epoch {epoch}/4  loss {1 / epoch:.3f}  acc 0.9{epoch}", flush=True)
            time.sleep(0.02)
            if rank:
                rankroom.log(own=epoch)
        """,
    )
    assert curve(run, "log/loss") == [(1, 1.0), (2, 0.5), (3, 0.333), (4, 0.25)]
    assert [value for _, value in curve(run, "log/acc")] == [0.91, 0.92, 0.93, 0.94]
    assert {row["name"] for row in run.metrics() if row["rank"] == 1} == {"own"}
