"""What recording spans costs a training loop: the same ranks, with all spans and without.

The ranks train together (horovod.torch, digits), as every collective is recorded. Two ranks that
wait for one another are never equally fast twice, by far more than what is looked for here: so they
take turns of some 50 ms, with and without, and many of these make one sample of each side: the
median step, as one that something else held up says nothing of spans. What was recorded is handed
over at the end of a sample, and each step bears its share of that. Beside the speed stands the
processor time that a rank uses for a step in all of its threads, as recording makes nobody wait,
though it grows as well with every millisecond of waiting, in which Horovod looks for work.
"""

from __future__ import annotations

import ast
import json
import re

from rankroom.record.store import Store
from sides import RANKS, Rankroom, workplace
from table import NotMeasured, Row

LOOP = """
import resource, statistics, time, torch
import horovod.torch as hvd
from sklearn.datasets import load_digits
from rankroom.rank import spans
from rankroom.rank.frameworks.horovod import horovod_spans
hvd.init()
torch.set_num_threads(1)
digits = load_digits()
x = torch.tensor(digits.data, dtype=torch.float32) / 16
y = torch.tensor(digits.target)
torch.manual_seed(1)
model = torch.nn.Sequential(
    torch.nn.Linear(64, WIDTH), torch.nn.ReLU(), torch.nn.Linear(WIDTH, WIDTH), torch.nn.ReLU(),
    torch.nn.Linear(WIDTH, 10))
optimizer = hvd.DistributedOptimizer(
    torch.optim.SGD(model.parameters(), 0.1), named_parameters=model.named_parameters())
reporter = get_ipython().kernel.reporter
def record(on):
    spans.recorder.on = on
    for source in horovod_spans._sources.values():
        source.record(on)
def used():
    usage = resource.getrusage(resource.RUSAGE_SELF)
    return usage.ru_utime + usage.ru_stime
def step():
    batch = torch.randint(len(x), (BATCH,))
    optimizer.zero_grad()
    torch.nn.functional.cross_entropy(model(x[batch]), y[batch]).backward()
    optimizer.step()
def steps(count):
    times, cpu = [time.perf_counter()], used()
    for _ in range(count):
        step()
        times.append(time.perf_counter())
    return [b - a for a, b in zip(times, times[1:])], used() - cpu
def usual(count=20):
    return hvd.broadcast_object(statistics.median(steps(count)[0]))
def hand_over():
    begin, cpu = time.perf_counter(), used()
    with reporter._lock:
        reporter._take_spans()
        reporter._flush()
    return time.perf_counter() - begin, used() - cpu
record(False)
steps(20)
while STEP and not 1 <= (taken := usual()) / STEP < 1.2:
    BATCH = max(1, int(BATCH * 1.1 * STEP / taken))
count = int(0.05 / usual()) + 2
found = [], []
for pair in range(PAIRS):
    times, cpus = ([], []), [0.0, 0.0]
    for turn in range(TURNS):
        for which in ((0, 1) if turn % 2 else (1, 0)):
            reporter._spans_due = time.monotonic() + 1000
            record(bool(which))
            taken, cpu = steps(count)
            # The first one after a change finds other things in the processor's caches.
            times[which].extend(taken[1:])
            cpus[which] += cpu
    record(True)
    over = [(0.0, 0.0), hand_over()]
    for which, (seconds, cpu) in enumerate(over):
        each = statistics.median(times[which]) + seconds / (count * TURNS)
        found[which].append((1 / each, (cpus[which] + cpu) / (count * TURNS)))
reporter._spans_due = 0
if rank == 0:
    print("FOUND", repr((*found, BATCH)))
"""


def measure(quick: bool) -> list[Row]:
    """Steps per second and processor time per step, digits and steps of 20 ms; bytes per span."""
    pairs = 5 if quick else 200
    rows = []
    with workplace() as folder:
        side = Rankroom(folder / "rankroom")
        try:
            side.start()
            for what, width, step, target in (
                ("digits", 128, 0, 0.02),
                ("steps of 20 ms", 512, 0.02, 0.01),
            ):
                about = f"PAIRS, TURNS, WIDTH, BATCH, STEP = {pairs}, 10, {width}, 64, {step}\n"
                rows += _training(side, what, about + LOOP, target)
            rows.append(_size(side.store))
        finally:
            side.close()
    return rows


def _training(side: Rankroom, what: str, source: str, target: float) -> list[Row]:
    side.cell(source, timeout=900)
    lines = "\n".join(side.lines(side.latest())[0])
    said = re.search(r"FOUND (.*)", lines)
    if said is None:
        raise NotMeasured(f"the loop did not report; it said:\n{lines[-1000:]}")
    without, with_it, batch = ast.literal_eval(said[1])
    return [
        Row(
            f"training loop with spans, {RANKS} ranks, {what}", "steps/s",
            [speed for speed, _ in with_it], [speed for speed, _ in without],
            ratio_at_least=1 - target, peer="without", detail={"batch": batch},
        ),
        Row(
            f"processor time of a step with spans, {what}", "ms",
            [cpu for _, cpu in with_it], [cpu for _, cpu in without],
            ratio_at_most=1 + target, peer="without",
        ),
    ]  # fmt: skip


def _size(store: Store) -> Row:
    """Bytes for each span in the record of the digits, and of the same as Chrome's JSON."""
    run = store.load(store.ids()[1])
    table: dict[tuple[int, int], dict[str, object]] = {}
    count = ours = chrome = 0
    for event in store.events(run.id):
        if event["kind"] != "spans":
            continue
        rank = event["rank"]
        for number, name in enumerate(event.get("define", []), event.get("from", 0)):
            table[rank, number] = name
        ours += len(json.dumps(event, separators=(",", ":"), ensure_ascii=False).encode()) + 1
        now = 0
        for number, start, dur in zip(event["name"], event["start"], event["dur"], strict=True):
            now += start
            name = str(table[rank, number]["name"])
            span = {"ph": "X", "name": name, "pid": rank, "tid": 0, "ts": now, "dur": dur}
            chrome += len(json.dumps(span, separators=(",", ":")).encode()) + 2
            count += 1
    if count < 1000:
        raise NotMeasured(f"only {count} spans in the record")
    return Row(
        "a span in the record", "B", [ours / count], [chrome / count],
        at_most=14, peer="Chrome JSON", detail={"spans": count},
    )  # fmt: skip
