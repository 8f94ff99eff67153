"""The cost of each part of a rank to a training loop, and the gain from our edits of Horovod.

The same ranks train with and without a part, in short alternating segments of one cell; the edits
are compared under horovodrun, without the rest of Rankroom.
"""

from __future__ import annotations

import json
import sys

from rankroom.record.store import Store
from sides import workplace
from table import NotMeasured, Row
from training import LOOPS, PAIRS, TRAIN, Loop, alternated, cell, launched

# Code that switches each part on or off, as `on` says.
PARTS = {
    "spans": "recorder.on = on\nfor each in horovod_spans._sources.values(): each.record(on)",
    "the watchdog": "(kernel.watchdog.start if on else kernel.watchdog.stop)()",
    "samples": "kernel.reporter.sampler = sampler if on else None",
    # Our wrappers do nothing in code that is being compiled.
    "torch's hooks": "torch_compile.is_compiling = is_compiling if on else lambda: True",
}
SWITCHED = f"""
from rankroom.rank.frameworks.horovod import horovod_spans
from rankroom.rank.frameworks.torch import torch_compile
from rankroom.reporting.spans import recorder

kernel = get_ipython().kernel
sampler, is_compiling = kernel.reporter.sampler, torch_compile.is_compiling
switches = {PARTS!r}

def switch(parts, on):
    for part in parts:
        exec(switches[part], globals() | {{"on": on}})

def without(parts, steps, of):
    switch(parts, False)
    try:
        return timed(steps, of)
    finally:
        switch(parts, True)
"""
# The speed that a loop must keep with any one part, relative to that without it.
MEASURED = ((LOOPS[1], 0.98), (LOOPS[2], 0.99))


def measure(quick: bool) -> list[Row]:
    """Measure steps per second with and without each part and our edits, and bytes per span."""
    pairs = 5 if quick else PAIRS
    rows = []
    for loop, at_least in MEASURED[:1] if quick else MEASURED:
        print(f"  … {loop.what}", file=sys.stderr, flush=True)
        with workplace() as folder:
            with cell(folder / "rankroom", loop, SWITCHED) as ranks:
                for parts in (*([part] for part in PARTS), list(PARTS)):
                    without = f"without({parts!r}, {{}}, {{}})"
                    found = alternated(pairs, loop, (ranks, TRAIN), (ranks, without))
                    what = parts[0] if len(parts) == 1 else "all of these"
                    limits = (at_least, 2 - at_least) if len(parts) == 1 else (None, None)
                    rows += found.rows(f"{loop.what}, with {what}", "without", *limits)
            rows.append(_size(loop, Store(folder / "rankroom" / "home")))
        rows += _edits(loop, pairs)
    return rows


def _edits(loop: Loop, pairs: int) -> list[Row]:
    with (
        workplace() as folder,
        launched("horovodrun", folder / "edited", loop, edited=True) as ours,
        launched("horovodrun", folder / "plain", loop) as plain,
    ):
        found = alternated(pairs, loop, (ours, TRAIN), (plain, TRAIN))
    return found.rows(f"{loop.what}, our Horovod under horovodrun", "horovodrun", None, None)


def _size(loop: Loop, store: Store) -> Row:
    """Return the bytes per span in the loop's record, and in Chrome's JSON."""
    run = store.load(store.ids()[0])
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
        f"a span in the record, {loop.what}", "B", [ours / count], [chrome / count],
        at_most=14, peer="Chrome JSON", detail={"spans": count},
    )  # fmt: skip
