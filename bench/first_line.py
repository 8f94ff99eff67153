"""The first line of a cell that keeps running: time until a reader of the record can see it."""

from __future__ import annotations

import time
from pathlib import Path

from kernel import Answer, Kernel
from sides import Px, Rankroom, alternate, both
from table import NotMeasured, Row

WORD = "first line of rank"
# The cell keeps running, so that the line does not arrive because of the cell's end.
CELL = f'print("{WORD}", rank, flush=True); import time; time.sleep(0.3)'
LOOK_S = 0.0005


def measure(quick: bool) -> list[Row]:
    """Ours: from request until a rank's line is in events.jsonl. Theirs: until it is on IOPub."""
    with both() as (px, rankroom):
        for side in (px, rankroom):
            side.cell(CELL)
        count = 6 if quick else 30
        peers, ours = alternate(count, lambda: _seen_on_iopub(px), lambda: _in_record(rankroom))
    return [Row("first line in the record (px: on IOPub)", "ms", ours, peers, at_most=0.050)]


def _seen_on_iopub(side: Px) -> float:
    answer = Answer()
    seen = None
    for message in side.kernel.follow(f"{side.magic}\n{CELL}", answer):
        if seen is None and WORD in message.text:
            seen = message.at
    answer.ok()
    if seen is None or seen > 0.3:
        raise NotMeasured(f"the line came {seen} s after the request: not while the cell ran")
    return seen


def _in_record(side: Rankroom) -> float:
    runs = side.store.runs
    before = set(runs.iterdir())
    kernel: Kernel = side.kernel
    begun = time.perf_counter()
    request = kernel.client.execute(f"{side.magic}\n{CELL}")
    seen = _watch(runs, before) - begun
    while kernel.client.get_shell_msg(timeout=20)["parent_header"]["msg_id"] != request:
        pass
    if side.latest().state != "done":
        raise NotMeasured("the run did not end well")
    return seen


def _watch(runs: Path, before: set[Path]) -> float:
    """Return when the line was first seen in the new record in `runs`."""
    deadline = time.perf_counter() + 0.29
    events = None
    while time.perf_counter() < deadline:
        if events is None:
            new = [each for each in runs.iterdir() if each not in before and each.name[0] != "."]
            events = new[0] / "events.jsonl" if new else None
        if events is not None and WORD.encode() in events.read_bytes():
            return time.perf_counter()
        time.sleep(LOOK_S)
    raise NotMeasured("the line was not in the record while the cell ran")
