"""The view of a run on 64 ranks in a real browser: time to open it, frames of scrolling."""

from __future__ import annotations

import json
from pathlib import Path

from browser import FRAME_S, browse, needed
from sides import workplace
from table import NotMeasured, Row
from timeline_view import write_run

RANKS = 64
SECONDS = 60


def measure(quick: bool) -> list[Row]:
    """Write a record with lines that differ from rank to rank, then open it in a page."""
    needed()
    lines = 200 if quick else 2_000
    with workplace() as folder:
        _write_record(folder / "home" / "runs" / "wide", lines)
        asked = {
            "RANKROOM_BENCH_RUN": "wide",
            "RANKROOM_BENCH_RANKS": str(RANKS),
            "RANKROOM_BENCH_PAIRS": "2" if quick else "5",
        }
        found = browse(folder, "wide.bench.ts", asked)
    what = f"view of {RANKS} ranks × {lines:,} lines"

    def row(key: str, words: str, unit: str, at_most: float) -> Row:
        if not found.get((key, "ours")):
            raise NotMeasured(f"the browser did not report {key!r}")
        return Row(f"{what}: {words}", unit, found[key, "ours"], at_most=at_most)

    return [
        row("opened", "open to all of it", "s", 1.5),
        row("scrolled", "scrolling: 95 % of frames below", "ms", FRAME_S),
    ]


def _write_record(folder: Path, lines: int) -> None:
    write_run(folder, RANKS, SECONDS)
    with (folder / "events.jsonl").open("w") as file:
        for i in range(lines):
            t = i * SECONDS * 1_000_000 // lines
            for rank in range(RANKS):
                text = f"step {i} of rank {rank}: loss {1 / (1 + i + rank / 100):.6f}\n"
                event = {
                    "kind": "log", "rank": rank, "seq": i, "t": t + rank,
                    "stream": "stdout", "text": text,
                }  # fmt: skip
                file.write(json.dumps(event, separators=(",", ":")) + "\n")
