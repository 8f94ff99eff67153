"""The timeline in a real browser: time to first paint, frames of panning and zooming, memory."""

from __future__ import annotations

import json
import random
from pathlib import Path

from browser import ROOT, browse, needed
from rankroom.analysis.profile.of_run import write_profile
from rankroom.record.store import Store
from sides import workplace
from table import NotMeasured, Row

FRAME = 0.017
SECONDS = 60
# Seconds that Perfetto's UI takes for the same spans, 71 MB of Chrome JSON, on a similar machine.
PERFETTO = 7.6
# By category: how many of 1,000 spans, how much of the time they fill, how many names they have.
KINDS = {
    "op": (620, 0.7, 60),
    "phase": (200, 0.5, 80),
    "collective": (80, 0.5, 40),
    "wait": (40, 0.3, 20),
    "step": (20, 0.95, 1),
    "data": (20, 0.1, 1),
    "user": (20, 0.4, 4),
}


def measure(quick: bool) -> list[Row]:
    """Write records of 8 × 125,000 and 64 × 100,000 spans, then open them in a page."""
    needed()
    small, large = (8, 125_000), (64, 100_000)
    if quick:
        small, large = (8, 25_000), (64, 10_000)
    rows = []
    with workplace() as folder:
        for ranks, each in (small, large):
            size = write_record(folder / "home" / "runs" / f"spans-{ranks}", ranks, each)
            # As a supervisor does when the run ends.
            store = Store(folder / "home")
            write_profile(store, store.load(f"spans-{ranks}"))
            found = browse(
                folder,
                "timeline.bench.ts",
                {
                    "RANKROOM_BENCH_RUN": f"spans-{ranks}",
                    "RANKROOM_BENCH_RANKS": str(ranks),
                    "RANKROOM_BENCH_SPANS": str(ranks * each),
                    "RANKROOM_BENCH_PAIRS": "2" if quick else "5",
                },
            )
            rows += _rows(found, ranks, each, size, quick)
    return rows


def _rows(
    found: dict[tuple[str, str], list[float]], ranks: int, each: int, size: int, quick: bool
) -> list[Row]:
    what = f"{ranks} ranks × {each:,} spans ({size / 1e6:.0f} MB)"

    def row(key: str, words: str, unit: str, **targets: float | None) -> Row:
        ours = found.get((key, "ours"))
        if not ours:
            raise NotMeasured(f"the browser did not report {key!r}")
        return Row(f"{what}: {words}", unit, ours, **targets)

    first = row("first", "open to first paint of all ranks' spans", "s", at_most=1.0)
    if ranks == 8 and not quick:
        first.detail["perfetto"] = PERFETTO
    reading = row("reading", "the same while they are read", "ms") if ranks == 64 else None
    return [
        first,
        row("exact", "open to each span as it is", "s"),
        row("frames", "pan and zoom: 95 % of frames below", "ms", at_most=FRAME),
        row("longest", "pan and zoom: longest frame", "ms"),
        row("work", "pan and zoom: painting itself, 95 % below", "ms"),
        row("memory", "the tab grows by", "MB", at_most=500e6 if ranks == 64 else None),
        *([reading] if reading else []),
    ]


def write_record(folder: Path, ranks: int, each: int) -> int:
    """Write a record of that many spans on each rank, as of a one-minute run; return its size."""
    write_run(folder, ranks, SECONDS)
    with (folder / "events.jsonl").open("w") as file:
        writers = [_rank(rank, each) for rank in range(ranks)]
        # Interleaved, as reports arrive while a cell runs.
        for _ in range(2 * SECONDS):
            for writer in writers:
                file.writelines(next(writer))
        return file.tell()


def write_run(folder: Path, ranks: int, seconds: int) -> None:
    """Write the record of a finished run, without events."""
    folder.mkdir(parents=True)
    start = 1_790_000_000_000_000
    infos = [
        {"rank": r, "host": "here", "pid": 1, "device": "cpu", "local_rank": r, "state": "ok"}
        for r in range(ranks)
    ]
    run = {
        "version": 1, "id": folder.name, "state": "done", "start": start, "cluster": "local",
        "end": start + seconds * 1_000_000, "size": ranks, "ranks": infos, "lines": 0,
    }  # fmt: skip
    (folder / "run.json").write_text(json.dumps(run))
    (folder / "source.py").write_text("train()\n")


def _rank(rank: int, each: int):  # type: ignore[no-untyped-def]
    """Yield the lines of one rank for each half second."""
    chance = random.Random(rank)
    seq = 0
    defined = False
    for turn in range(2 * SECONDS):
        lines = []
        number = 0
        for cat, (share, busy, names) in KINDS.items():
            count = each * share // 1000
            count = count * (turn + 1) // (2 * SECONDS) - count * turn // (2 * SECONDS)
            event = {
                "kind": "spans",
                "rank": rank,
                "seq": seq,
                "t": (turn + 1) * 500_000,
                "cat": cat,
            }
            if not defined:
                event["from"] = number
                event["define"] = [_name(cat, i) for i in range(names)]
            period = 500_000 // max(count, 1)
            starts, durs, numbers = [], [], []
            at = turn * 500_000
            for i in range(count):
                begin = turn * 500_000 + i * period + chance.randrange(1 + period // 10)
                starts.append(begin - at if i else begin)
                at = begin
                durs.append(int(period * busy * (0.5 + 0.4 * chance.random())))
                # In the same order on all ranks, as in training.
                numbers.append(number + (i * 7 + turn) % names)
            event.update(name=numbers, start=starts, dur=durs)
            number += names
            if count or not defined:
                seq += 1
                lines.append(json.dumps(event, separators=(",", ":")) + "\n")
        defined = True
        yield lines


def _name(cat: str, i: int) -> dict[str, object]:
    tensor = f"grad.{i % 40}"
    if cat == "collective":
        return {
            "name": f"allreduce {tensor}", "op": "allreduce", "tensor": tensor,
            "library": "hvd.torch", "bytes": 4096 * (i + 1), "dtype": "float32",
        }  # fmt: skip
    if cat == "phase":
        part = "NEGOTIATE" if i % 2 else "GLOO_ALLREDUCE"
        return {"name": part, "tensor": tensor}
    return {"name": f"aten::{'matmul' if i % 3 else 'add'}_{i}" if cat == "op" else f"{cat} {i}"}


if __name__ == "__main__":
    import sys

    write_record(Path(sys.argv[1]), int(sys.argv[2]), int(sys.argv[3]))
    print(ROOT)
