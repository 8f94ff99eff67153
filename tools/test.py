"""Run the tests in two parts: first, one by one, those that nothing may run beside; then the rest.

`tools/test.py [--all] [OPTIONS OF PYTEST]`. With --all, racy faults are injected 20 times, and a
third part sets up a bare clone with another Python. All parts run, whatever the first one finds;
the last line says what came of them together.
"""

from __future__ import annotations

import os
import re
import subprocess
import sys
import time
from collections import Counter
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
# In tests/conftest.py's order, not by how many tests a file has: the longest have one or two.
TOGETHER = ["-n", "3", "--dist", "loadfile", "--no-loadscope-reorder"]
PARTS = (["-m", "alone"], ["-m", "not alone", *TOGETHER])
THOROUGH = ["--repeat", "20"]
OTHER = ["--other", "--torch", "cuda"]
NOTHING = 5  # pytest's exit status when it found no test
# As pytest closes: `1 failed, 240 passed in 107.45s (0:01:47)`
CLOSING = re.compile(r"^=*\s*(?:no tests ran|(\d+ \w+(?:, \d+ \w+)*)) in [\d.]+s")


def main(options: list[str]) -> int:
    """All parts, and a line of what they found; the worst exit status among them."""
    begun = time.monotonic()
    counts: Counter[str] = Counter()
    statuses = []
    everything = "--all" in options
    options = [each for each in options if each != "--all"] + ([*THOROUGH] if everything else [])
    commands = [[sys.executable, "-m", "pytest", *part, *options] for part in PARTS]
    commands += [[sys.executable, str(ROOT / "tools" / "interpreters.py"), *OTHER]] * everything
    for command in commands:
        status, closing = run(command)
        statuses.append(status)
        counts.update(counted(closing))
    print(summary(counts, time.monotonic() - begun), flush=True)
    found = [status for status in statuses if status != NOTHING]
    return max(found, key=abs) if found else NOTHING


def run(argv: list[str]) -> tuple[int, str]:
    """Run pytest, passing on what it prints as it comes; its exit status and its closing line."""
    tests = subprocess.Popen(argv, cwd=ROOT, stdout=subprocess.PIPE)
    assert tests.stdout is not None
    kept = b""
    try:
        while piece := os.read(tests.stdout.fileno(), 1 << 16):
            sys.stdout.buffer.write(piece)
            sys.stdout.flush()
            kept = (kept + piece)[-(1 << 16) :]
    except KeyboardInterrupt:
        tests.wait()  # it was interrupted as well, and tidies up
        raise
    lines = kept.decode("utf-8", "replace").splitlines()
    return tests.wait(), next((line for line in reversed(lines) if CLOSING.match(line)), "")


def counted(closing: str) -> dict[str, int]:
    """The numbers of a closing line, by what they count."""
    found = CLOSING.match(closing)
    parts = found[1].split(", ") if found and found[1] else []
    return {what: int(number) for number, what in (part.split(" ") for part in parts)}


def summary(counts: Counter[str], seconds: float) -> str:
    """`3539 passed, 2 failed, 2 skipped in 0:17:03`"""
    words = [f"{counts.pop('passed', 0)} passed", f"{counts.pop('failed', 0)} failed"]
    words += [f"{number} {what}" for what, number in sorted(counts.items())]
    minutes, rest = divmod(round(seconds), 60)
    return f"{', '.join(words)} in {minutes // 60}:{minutes % 60:02d}:{rest:02d}"


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
