"""Run the tests in two parts: first, one by one, those that must run alone; then the rest.

`tools/test.py [--all] [OPTIONS OF PYTEST]`. With --all, racy faults are injected 20 times, and a
bare clone is set up with another Python beside the second part. All parts run, even if the first
one fails. If only a few tests fail, they are run once more, alone: those that pass then are named,
as they depend on what else is running. The last line has the results of all parts together. Without
--all, what has not ended after 75 minutes is terminated, and reports what it was doing.
"""

from __future__ import annotations

import os
import re
import subprocess
import sys
import threading
import time
from collections import Counter
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
# In tests/conftest.py's order, not by how many tests a file has: the longest have one or two.
# If a hung test ends its worker, the run ends: a new worker might wait forever.
TOGETHER = ["-n", "5", "--dist", "loadfile", "--no-loadscope-reorder", "--max-worker-restart", "0"]
ALONE = ["-m", "alone", "--cache-clear"]
REST = ["-m", "not alone", *TOGETHER]
AGAIN = ["--last-failed", "--last-failed-no-failures", "none", "-rA", "--show-capture", "no"]
FEW = 8  # more failures than this are not due to a busy machine
THOROUGH = ["--repeat", "20"]
LIMIT_S = 4500.0  # over twice the time of all tests on two cores, as a bare machine is slower
# It mostly waits for downloads, and the tests have priority over its compilation.
OTHERS = ["nice", "-n", "10", sys.executable, str(ROOT / "tools" / "interpreters.py")]
OTHERS += ["--other", "--torch", "cuda"]
DIED = "crashed while running"  # in pytest's summary, about a worker
# pytest's exit statuses when tests failed, and when it found none
FAILED, NOTHING = 1, 5
# pytest's closing line: `1 failed, 240 passed in 107.45s (0:01:47)`
CLOSING = re.compile(r"^=*\s*(?:no tests ran|(\d+ \w+(?:, \d+ \w+)*)) in [\d.]+s")


def main(options: list[str]) -> int:
    """Run all parts, and print a summary; return the worst of their exit statuses."""
    begun = time.monotonic()
    counts: Counter[str] = Counter()
    statuses = []
    everything = "--all" in options
    options = [each for each in options if each != "--all"] + ([*THOROUGH] if everything else [])
    pytest = [sys.executable, "-m", "pytest"]
    until = float("inf") if everything else begun + LIMIT_S
    cut_off = False  # some tests were not run, so that failures are not due to chance

    def part(*chosen: str) -> None:
        nonlocal cut_off
        status, closing, died = run([*pytest, *chosen, *options], until)
        cut_off |= died
        statuses.append(status)
        counts.update(counted(closing))

    part(*ALONE)
    # It prints a few lines, which are shown when it has ended.
    others = subprocess.Popen(OTHERS, stdout=subprocess.PIPE, text=True) if everything else None
    part(*REST)
    tried = others.communicate()[0] if others else ""
    if FAILED in statuses and broken(counts) <= FEW and not cut_off:
        print(f"{broken(counts)} failed: once more, alone", flush=True)
        status, closing, _ = run([*pytest, *AGAIN, *options], until)
        if status in (0, FAILED) and (again := counted(closing)).get("passed"):
            counts["passed"] += again["passed"]
            counts["failed"] = broken(Counter(again))
            counts["errors"] = counts["error"] = 0
            counts["passed alone only"] = again["passed"]
            statuses = [status if each == FAILED else each for each in statuses]
    if others:
        print(tried, end="", flush=True)
        statuses.append(others.returncode)
        counts.update(counted(closing_line(tried)))
    print(summary(counts, time.monotonic() - begun), flush=True)
    found = [status for status in statuses if status != NOTHING]
    return max(found, key=abs) if found else NOTHING


def run(argv: list[str], until: float) -> tuple[int, str, bool]:
    """Run pytest, and pass its output on; return its exit status, its closing line, and whether one
    of its workers died."""
    print(time.strftime("%H:%M:%S"), *argv[1:], flush=True)
    tests = subprocess.Popen(argv, cwd=ROOT, stdout=subprocess.PIPE)
    assert tests.stdout is not None
    if until < float("inf"):
        limit = threading.Timer(max(0.0, until - time.monotonic()), tests.terminate)
        limit.daemon = True
        limit.start()
    kept = b""
    try:
        while piece := os.read(tests.stdout.fileno(), 1 << 16):
            sys.stdout.buffer.write(piece)
            sys.stdout.flush()
            kept = (kept + piece)[-(1 << 16) :]
    except KeyboardInterrupt:
        tests.wait()  # it was interrupted, too, and cleans up
        raise
    said = kept.decode("utf-8", "replace")
    return tests.wait(), closing_line(said), DIED in said


def closing_line(said: str) -> str:
    """Return the last line that says how many passed; empty if there is none."""
    return next((line for line in reversed(said.splitlines()) if CLOSING.match(line)), "")


def broken(counts: Counter[str]) -> int:
    """Return how many tests failed, themselves or in their setup."""
    return counts["failed"] + counts["error"] + counts["errors"]


def counted(closing: str) -> dict[str, int]:
    """Return the numbers of a closing line, by what they count."""
    found = CLOSING.match(closing)
    parts = found[1].split(", ") if found and found[1] else []
    return {what: int(number) for number, what in (part.split(" ") for part in parts)}


def summary(counts: Counter[str], seconds: float) -> str:
    """Return a summary such as `3539 passed, 2 failed, 2 skipped in 0:17:03`."""
    words = [f"{counts.pop('passed', 0)} passed", f"{counts.pop('failed', 0)} failed"]
    words += [f"{number} {what}" for what, number in sorted(counts.items()) if number]
    minutes, rest = divmod(round(seconds), 60)
    return f"{', '.join(words)} in {minutes // 60}:{minutes % 60:02d}:{rest:02d}"


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
