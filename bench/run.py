"""Benchmarks against peers, both sides in one run: `bench/run.py [NAME …] [--list] [--quick]`.

Prints one table (medians, ranges in brackets) and saves all samples in bench/results/. Exits with 1
if a target is missed, and with 2 if something could not be measured.
"""

from __future__ import annotations

import argparse
import importlib
import json
import os
import platform
import signal
import sys
import time
import traceback
from pathlib import Path

from table import Row, table

NAMES = [
    "empty_cell",
    "collective_checker",
    "first_line",
    "flood",
    "slow_lines",
    "notebook",
    "training",
    "script",
    "release",
    "rank_parts",
    "many_ranks",
    "straggler",
    "start",
    "ranks_ready",
    "reconnect",
    "memory",
    "idle",
    "horovod_init",
    "browser",
    "profile",
    "metrics",
    "timeline_view",
    "wide_view",
    "long_tasks",
    "timeline_import",
]
RESULTS = Path(__file__).parent / "results"


def main() -> int:
    """Run the chosen benchmarks one after the other."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("names", nargs="*", metavar="NAME", help="which (default: all)")
    parser.add_argument("--list", action="store_true", help="say which there are")
    parser.add_argument("--quick", action="store_true", help="fewer repetitions, smaller floods")
    chosen = parser.parse_args()
    if chosen.list:
        for name in NAMES:
            print(f"{name:<16}{(importlib.import_module(name).__doc__ or '').splitlines()[0]}")
        return 0
    unknown = [name for name in chosen.names if name not in NAMES]
    if unknown:
        parser.error(f"no benchmark {unknown[0]!r}; there are {', '.join(NAMES)}")
    # SIGTERM must not leave ranks behind: it raises an exception, so that cleanup runs.
    signal.signal(signal.SIGTERM, lambda number, frame: sys.exit(128 + number))
    rows: list[Row] = []
    failed = []
    for name in chosen.names or NAMES:
        print(f"… {name} (load {os.getloadavg()[0]:.1f})", file=sys.stderr, flush=True)
        try:
            rows += importlib.import_module(name).measure(chosen.quick)
        except Exception:
            # The other benchmarks still count, but this one must not look like a result.
            traceback.print_exc()
            failed.append(name)
    if rows:
        print(table(rows))
        keep(rows, chosen.quick)
    for name in failed:
        print(f"NOT MEASURED: {name}")
    return 2 if failed else int(not all(row.reached for row in rows))


def keep(rows: list[Row], quick: bool) -> None:
    """Write all samples to a file that is named after the time."""
    RESULTS.mkdir(exist_ok=True)
    file = RESULTS / f"{time.strftime('%Y%m%d-%H%M%S')}.json"
    about = {
        "quick": quick,
        "python": platform.python_version(),
        "cpus": len(os.sched_getaffinity(0)),
        "load": os.getloadavg(),
        "rows": [row.to_json() for row in rows],
    }
    file.write_text(json.dumps(about, indent=1))
    print(f"samples: {file}")


if __name__ == "__main__":
    sys.exit(main())
