"""What recording spans costs a training loop: the same ranks, with all spans and without.

The ranks train together (horovod.torch, digits), as every collective is recorded. Two ranks that
wait for one another are never equally fast twice, by far more than what is looked for here: so they
take turns of some 50 ms, with and without, and many of these make one sample of each side. Beside
the speed stands the processor time that a rank uses for a step in all of its threads, as recording
makes nobody wait: it varies less where others use the machine, though it grows as well with every
millisecond of waiting, in which Horovod looks for work. What was recorded is handed over at the end
of a sample, and that counts.
"""

from __future__ import annotations

import ast
import json
import re

from rankroom.store.records import Store
from sides import RANKS, Rankroom, workplace
from table import NotMeasured, Row

LOOP = """
import resource, time, torch
import horovod.torch as hvd
from sklearn.datasets import load_digits
from rankroom.rank import horovod_spans, spans
from rankroom.rank.waiting import Waiting
hvd.init()
torch.set_num_threads(1)
digits = load_digits()
x = torch.tensor(digits.data, dtype=torch.float32) / 16
y = torch.tensor(digits.target)
torch.manual_seed(1)
WIDTH = 128
model = torch.nn.Sequential(
    torch.nn.Linear(64, WIDTH), torch.nn.ReLU(), torch.nn.Linear(WIDTH, WIDTH), torch.nn.ReLU(),
    torch.nn.Linear(WIDTH, 10))
optimizer = hvd.DistributedOptimizer(
    torch.optim.SGD(model.parameters(), 0.1), named_parameters=model.named_parameters())
reporter, keep = get_ipython().kernel.reporter, Waiting.keep
def record(on):
    spans.here.on = on
    Waiting.keep = keep if on else None
    for source in horovod_spans._sources.values():
        source.record(on)
def used():
    usage = resource.getrusage(resource.RUSAGE_SELF)
    return usage.ru_utime + usage.ru_stime
def steps(count):
    begin, cpu = time.perf_counter(), used()
    for step in range(count):
        batch = torch.randint(len(x), (BATCH,))
        optimizer.zero_grad()
        torch.nn.functional.cross_entropy(model(x[batch]), y[batch]).backward()
        optimizer.step()
    return time.perf_counter() - begin, used() - cpu
def hand_over():
    begin, cpu = time.perf_counter(), used()
    with reporter._lock:
        reporter._take_spans()
        reporter._flush()
    return time.perf_counter() - begin, used() - cpu
record(False)
steps(20)
count = int(hvd.broadcast_object(50 / steps(50)[0]) * 0.05) + 1
found = [], []
for pair in range(PAIRS):
    sums = [[0.0, 0.0], [0.0, 0.0]]
    for turn in range(TURNS):
        for which in ((0, 1) if turn % 2 else (1, 0)):
            reporter._spans_due = time.monotonic() + 1000
            record(bool(which))
            sums[which] = [a + b for a, b in zip(sums[which], steps(count))]
    record(True)
    sums[1] = [a + b for a, b in zip(sums[1], hand_over())]
    for which, (seconds, cpu) in enumerate(sums):
        found[which].append((count * TURNS / seconds, cpu / (count * TURNS)))
reporter._spans_due = 0
if rank == 0:
    print("FOUND", repr(found))
"""


def measure(quick: bool) -> list[Row]:
    """Steps per second and processor time per step, digits and steps of 20 ms; bytes per span."""
    pairs = 5 if quick else 60
    rows = []
    with workplace() as folder:
        side = Rankroom(folder / "rankroom")
        try:
            side.start()
            for what, width, batch, turns, target in (
                ("digits", 128, 64, 10, 0.02),
                ("steps of 20 ms", 1024, 768, 10, 0.01),
            ):
                source = LOOP.replace("PAIRS", str(pairs)).replace("TURNS", str(turns))
                source = source.replace("WIDTH = 128", f"WIDTH = {width}")
                rows += _training(side, what, source.replace("BATCH", str(batch)), target)
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
    without, with_it = ast.literal_eval(said[1])
    return [
        Row(
            f"training loop with spans, {RANKS} ranks, {what}", "steps/s",
            [speed for speed, _ in with_it], [speed for speed, _ in without],
            ratio_at_least=1 - target, peer="without",
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
