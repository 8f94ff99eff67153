"""Metrics: the cost of `rankroom.log`, a loop that reports 1,000 points a second, a long record.

No peer has metrics. The loop is pure Python, so that nothing else varies: steps of a millisecond on
one rank, in alternating segments with and without reports.
"""

from __future__ import annotations

import ast
import json
import os
import time
from pathlib import Path

from rankroom.analysis.metrics.curve_answer import CurveRequest
from rankroom.analysis.metrics.metrics_of_run import write_metrics
from rankroom.cluster.local import Cluster
from rankroom.record.model import RunInfo, event_line
from rankroom.record.store import Store
from rankroom.server.metric_routes import MetricCurves
from sides import workplace
from table import NotMeasured, Row
from timeline_view import write_run

RANKS, POINTS = 64, 100_000
BATCH = 1000  # points in an event, as with 1,000 a second
CALLS = """
import rankroom, time
def timed(report):
    begin = time.perf_counter()
    for step in range(1000):
        report(step)
    return (time.perf_counter() - begin) / 1000
found = {"one": [], "two": []}
for _ in range(TIMES):
    found["one"].append(timed(lambda step: rankroom.log(loss=0.5)))
    found["two"].append(timed(lambda step: rankroom.log(loss=0.5, acc=0.25, step=step)))
    time.sleep(0.05)
found
"""
LOOP = """
import rankroom, time
def work(count):
    total = 0
    for number in range(count):
        total += number
    return total
def timed(count):
    begin = time.perf_counter()
    work(count)
    return time.perf_counter() - begin
COUNT = int(20_000 * 1e-3 / min(timed(20_000) for _ in range(200)))
def segment(reports):
    begin, used = time.perf_counter(), time.process_time()
    for step in range(1000):
        work(COUNT)
        if reports:
            rankroom.log(loss=0.5)
    return time.perf_counter() - begin, time.process_time() - used
found = []
for turn in range(TIMES):
    pair = {reports: segment(reports) for reports in ((True, False) if turn % 2 else (False, True))}
    found.append((pair[True], pair[False]))
found
"""


def measure(quick: bool) -> list[Row]:
    """Measure a call, the loop, and replies to a browser."""
    with workplace() as folder:
        os.environ["RANKROOM_HOME"] = str(folder / "home")
        cluster = Cluster.local(ranks=1)
        try:
            calls = _ran(cluster, CALLS, 20 if quick else 200)
            pairs = _ran(cluster, LOOP, 4 if quick else 30)
        finally:
            cluster.stop()
        del os.environ["RANKROOM_HOME"]
        rows = _answers(folder, RANKS, POINTS // 10 if quick else POINTS)
    return [
        Row("rankroom.log, one value", "µs", calls["one"], at_most=5e-6),
        Row("rankroom.log, two values and a step", "µs", calls["two"], at_most=5e-6),
        *(
            Row(
                f"1,000 steps that report 1,000 points a second{what}",
                "ms",
                [reporting[i] for reporting, _ in pairs],
                [without[i] for _, without in pairs],
                ratio_at_most=1.01,
                peer="without",
            )
            for i, what in enumerate(("", ": processor time of the rank"))
        ),
        *rows,
    ]


def _ran(cluster: Cluster, source: str, times: int):  # type: ignore[no-untyped-def]
    run = cluster.run(source.replace("TIMES", str(times)))
    if not run.wait(300) or run.state != "done":
        raise NotMeasured(f"the cell did not end well: {run}")
    return ast.literal_eval(run.results[0])


def _answers(folder: Path, ranks: int, points: int) -> list[Row]:
    """Measure replies about a long run: all of it, then a part that is read from its events."""
    write_record(folder / "runs" / "metrics", ranks, points)
    store = Store(folder)
    run = store.load("metrics")
    begin = time.perf_counter()
    write_metrics(store, run)
    written = time.perf_counter() - begin
    first, again = [], []
    for _ in range(5):
        curves = MetricCurves(store)  # as in a server that has just been started
        first.append(_answered(curves, run, CurveRequest()))
        again.append(_answered(curves, run, CurveRequest(axis="time")))
    part = CurveRequest(begin=points * 0.4, end=points * 0.41 + 200)
    zoom = _answered(curves, run, part)
    pan = [_answered(curves, run, part) for _ in range(5)]
    what = f"metrics of {ranks} ranks × {points:,} points"
    return [
        Row(f"{what}: the first answer", "ms", first, at_most=1.0),
        Row(f"{what}: another of the same", "ms", again, at_most=1.0),
        Row(f"{what}: the first part that needs the events", "s", [zoom]),
        Row(f"{what}: a part", "ms", pan, at_most=1.0),
        Row(f"{what}: metrics.json, when the run ends", "s", [written]),
    ]


def _answered(curves: MetricCurves, run: RunInfo, asked: CurveRequest) -> float:
    """Return how long a reply takes."""
    begin = time.perf_counter()
    said = curves.of(run, asked)
    took = time.perf_counter() - begin
    found = json.loads(said)["curves"]
    if len(found) != run.size or not all(100 < len(each["x"]) <= 600 for each in found):
        raise NotMeasured("an answer lacks curves or points")
    return took


def write_record(folder: Path, ranks: int, points: int) -> int:
    """Write a record of one metric with that many points on each rank; return its size."""
    write_run(folder, ranks, points // 1000 + 1)
    with (folder / "events.jsonl").open("wb") as file:
        for seq, begin in enumerate(range(0, points, BATCH)):
            steps = list(range(begin, min(points, begin + BATCH)))
            defined = {} if begin else {"from": 0, "define": ["loss"]}
            for rank in range(ranks):
                values = [round(1 / (1 + step / 5000) + 0.01 * rank, 6) for step in steps]
                at = [1000 * begin, *[1000] * (len(steps) - 1)]
                columns = {"name": [0] * len(steps), "step": steps, "at": at, "value": values}
                t = 1000 * (begin + BATCH)
                file.write(event_line("metrics", rank, seq, t, **defined, **columns))
        return file.tell()


if __name__ == "__main__":
    import sys

    print(write_record(Path(sys.argv[1]), int(sys.argv[2]), int(sys.argv[3])))
