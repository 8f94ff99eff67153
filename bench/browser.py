"""A run in a real browser: first line painted, scrolling through a flood, memory of the tab."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from pathlib import Path

import flood
from kernel import MARK
from sides import RANKS, Rankroom, workplace
from table import NotMeasured, Row

HERE = Path(__file__).parent / "browser"
ROOT = Path(__file__).parents[1]
PLAYWRIGHT = HERE / "node_modules" / ".bin" / "playwright"
CHROMIUM = Path(os.environ.get("RANKROOM_CHROMIUM", "/usr/bin/chromium"))
PORT = "8917"
FRAME_S = 0.034


def measure(quick: bool) -> list[Row]:
    """Record a real flood, then have Playwright measure in a page that shows it."""
    needed()
    lines = flood.LINES // 10 if quick else flood.LINES
    with workplace() as folder:
        run = _record(folder, lines)
        asked = {
            "RANKROOM_BENCH_RUN": run,
            "RANKROOM_BENCH_LINES": str(lines),
            "RANKROOM_BENCH_PAIRS": str(4 if quick else 20),
        }
        found = browse(folder, "flood.bench.ts painted.bench.ts", asked)
    all_lines = f"{RANKS * lines:,}-line run open"

    def row(what: str, words: str, unit: str, at_most: float | None = None) -> Row:
        ours, peers = (found.get((what, side), []) for side in ("ours", "peers"))
        if not ours:
            raise NotMeasured(f"the browser did not report {what!r}")
        return Row(words, unit, ours, peers, at_most=at_most)

    return [
        row("painted", "first line painted", "ms", 0.150),
        row("scrolling", f"{all_lines}, scrolling: 95 % of frames below", "ms", FRAME_S),
        row("longest", f"{all_lines}, scrolling: longest frame", "ms"),
        row("opening", f"{all_lines}, while it opens: longest frame", "ms"),
        row("memory", f"{all_lines}: the tab grows by", "MB", 150e6),
    ]


def needed() -> None:
    """Raise NotMeasured if something that the browser needs is missing."""
    for path in (PLAYWRIGHT, CHROMIUM, ROOT / "lab" / "rankroom" / "labextension"):
        if not path.exists():
            raise NotMeasured(f"no {path}: `make bench` sets up what the browser needs")


def _record(folder: Path, lines: int) -> str:
    """Record a run with that many lines on each rank, for JupyterLab to open; return its id."""
    side = Rankroom(folder)
    try:
        side.start()
        side.cell(flood.source(lines))
        flood.check(side, lines)
        return side.latest().id
    finally:
        side.close()


def browse(folder: Path, file: str, asked: dict[str, str]) -> dict[tuple[str, str], list[float]]:
    """Run benchmarks of bench/browser/ with these variables; return samples by row and side."""
    out = folder / "browser.jsonl"
    out.unlink(missing_ok=True)
    env = os.environ | {
        MARK: str(folder),
        "RANKROOM_UI_HOME": str(folder),
        "RANKROOM_PYTHON": sys.executable,
        "RANKROOM_TEST_PORT": PORT,
        "RANKROOM_BENCH_OUT": str(out),
        **asked,
    }
    # In a session of its own, so that Playwright's JupyterLab and browser always end with it.
    process = subprocess.Popen(
        [PLAYWRIGHT, "test", *file.split()], cwd=HERE, env=env, text=True, start_new_session=True,
        stdout=subprocess.PIPE, stderr=subprocess.STDOUT,
    )  # fmt: skip
    try:
        said, _ = process.communicate(timeout=900)
    finally:
        if process.poll() is None:
            os.killpg(process.pid, signal.SIGTERM)
            process.wait(10)
    if process.returncode:
        raise NotMeasured(f"the browser's benchmark failed:\n{said[-4000:]}")
    found: dict[tuple[str, str], list[float]] = {}
    for line in out.read_text().splitlines():
        each = json.loads(line)
        found[each["what"], each["side"]] = each["samples"]
    return found
