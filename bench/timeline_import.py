"""Another program's Chrome JSON: from `rankroom timeline FILE` until all of it is painted."""

from __future__ import annotations

from pathlib import Path

from browser import browse, needed
from rankroom.analysis.export import chrome_json
from rankroom.record.store import Store
from sides import workplace
from table import NotMeasured, Row
from timeline_view import PERFETTO, write_record

RANKS = 8


def measure(quick: bool) -> list[Row]:
    """Import the million spans of `timeline_view` from a file with one process per rank."""
    needed()
    each = 25_000 if quick else 125_000
    with workplace() as folder:
        file = write_file(folder, each)
        megabytes = file.stat().st_size / 1e6
        found = browse(
            folder,
            "import.bench.ts",
            {
                "RANKROOM_BENCH_FILE": str(file),
                "RANKROOM_BENCH_RANKS": str(RANKS),
                "RANKROOM_BENCH_SPANS": str(RANKS * each),
                "RANKROOM_BENCH_PAIRS": "3" if quick else "7",
            },
        )
    what = f"{RANKS} ranks × {each:,} spans as Chrome JSON ({megabytes:.0f} MB)"
    if not found.get(("painted", "ours")):
        raise NotMeasured("the browser did not report when it was painted")
    read = Row(f"{what}: a record of it", "s", found["read", "ours"])
    painted = Row(f"{what}: all spans painted", "s", found["painted", "ours"], at_most=4.0)
    if not quick:
        painted.detail["perfetto"] = PERFETTO
    return [read, painted]


def write_file(folder: Path, each: int) -> Path:
    """Write a trace without our own header, as any other program would."""
    write_record(folder / "from" / "runs" / "spans", RANKS, each)
    file = folder / "trace.json"
    with file.open("wb") as out:
        for piece in chrome_json(Store(folder / "from"), "spans"):
            _, found, rest = piece.partition(b'"traceEvents":')
            out.write(b"{" + found + rest if found else piece)
    return file
