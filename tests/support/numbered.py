"""Numbered lines, to check that a record has each line once, in the order of writing."""

from __future__ import annotations

from rankroom.record.store import Store

# Runs until the file exists, so that a test decides what happens during the run.
GATED = """
import time
from pathlib import Path
i = 0
while not Path({gate!r}).exists() or i < 50:
    print("line", i)
    i += 1
    time.sleep(0.005)
f"{{i}} lines"
"""


def written(store: Store, run_id: str, rank: int, stream: str = "stdout") -> str:
    """Everything in a record that a rank wrote to one stream."""
    return "".join(
        event["text"]
        for event in store.events(run_id)
        if (event["kind"], event["rank"], event.get("stream")) == ("log", rank, stream)
    )


def assert_numbered(store: Store, run_id: str, rank: int, count: int | None = None) -> int:
    """Assert that the lines are `line 0`, `line 1`, …, none missing, none twice; return how many.

    Without `count`, the rank was stopped at an unknown line, perhaps in the middle of it.
    """
    text = written(store, run_id, rank)
    lines = text.splitlines()
    if count is None and not text.endswith("\n") and lines:
        cut = lines.pop()
        assert f"line {len(lines)}".startswith(cut.rstrip())
    for number, line in enumerate(lines):
        assert line == f"line {number}", f"rank {rank}: {line!r} stands where line {number} should"
    if count is not None:
        assert len(lines) == count, f"rank {rank}: {len(lines)} of {count} lines"
    return len(lines)
