"""Golden traces: records with spans, and the results that must be derived from them.

`python tests/support/trace_makers.py` writes them to traces/<name>/ beside it. The expected results
are computed by trace_truth.py.
"""

from __future__ import annotations

import json
import random
import sys
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from rankroom.analysis.collectives import Collectives
from rankroom.analysis.timeline import Timeline
from rankroom.record.model import RunInfo
from trace_truth import Json, Made, Plan, expected

FOLDER = Path(__file__).parent / "traces"
START = 1_790_000_000_000_000  # epoch microseconds of every trace's zero
TEN_YEARS = 315_576_000_000_000


@dataclass
class Trace(Plan):
    """A record under construction; `offsets` are how far the ranks' clocks are ahead."""

    offsets: dict[int, int] = field(default_factory=dict)
    title: str = "train()"
    ends: dict[int, str] = field(default_factory=dict)
    raw: list[str] = field(default_factory=list)
    names: dict[int, dict[str, int]] = field(default_factory=dict)
    by_hand: int = 0  # the number of last spans that are in lines of `raw`

    def add(self, rank: int, cat: str, name: str | Json, start: int, dur: int) -> int:
        """Plan a valid span; return its end."""
        named = {"name": name} if isinstance(name, str) else name
        self.spans.append(Made(rank, cat, named, start, start + dur))
        return start + dur

    def active(self, rank: int, begin: int, end: int | None, state: str = "ok") -> None:
        """Set when a rank ran the cell, and how it ended."""
        self.begun[rank] = begin
        if end is not None:
            self.ended[rank] = end
            self.ends[rank] = state
            if state != "ok":
                self.failed.add(rank)

    def event(self, line: str, **dropped: int) -> None:
        """Add a raw line of events.jsonl; `dropped` counts its dropped spans, by cause."""
        self.raw.append(line)
        for why, count in dropped.items():
            self.dropped[why] = self.dropped.get(why, 0) + count

    # -- the record

    def run_json(self, name: str) -> Json:
        ranks = []
        for rank in range(self.size):
            info: Json = {
                "rank": rank,
                "host": f"node{rank}" if self.offsets else "node0",
                "pid": 1000 + rank,
                "device": "cpu",
                "local_rank": 0 if self.offsets else rank,
                "state": self.ends.get(rank, "running") if self.begun else "ok",
            }
            if self.offsets.get(rank) is not None:
                info["clock"] = {"offset": self.offsets[rank], "error": self.errors.get(rank, 0)}
            ranks.append(info)
        latest = max([*self.ended.values(), *(span.end for span in self.spans), 0])
        return {
            "version": 1,
            "id": f"trace-{name}",
            "state": "done",
            "start": START,
            "end": START + latest,
            "title": self.title,
            "cluster": "local",
            "size": self.size,
            "ranks": ranks,
            "lines": 0,
        }

    def lines(self, batch: int = 64) -> list[str]:
        """The events as ranks report them: each rank's in order, spans when they end."""
        out: list[tuple[int, int, str]] = []
        for rank in range(self.size):
            ahead = self.offsets.get(rank, 0)
            seq = 0
            if rank in self.begun:
                t = self.begun[rank] + ahead
                out.append((t, rank, _line("status", rank, seq, t, state="running")))
                seq += 1
            planned = self.spans[: len(self.spans) - self.by_hand]
            mine = sorted((s for s in planned if s.rank == rank), key=lambda s: (s.end, s.start))
            for at in range(0, len(mine), batch):
                part = mine[at : at + batch]
                t = max(s.end for s in part) + 1 + ahead
                for cat in dict.fromkeys(s.cat for s in part):
                    fields = self._columns(rank, cat, [s for s in part if s.cat == cat], ahead)
                    out.append((t, rank, _line("spans", rank, seq, t, cat=cat, **fields)))
                    self.last_words = max(self.last_words, t - ahead)
                    seq += 1
            if rank in self.ended:
                state = self.ends[rank]
                # The end of a lost rank is reported by the run's writer, by its own clock.
                t = self.ended[rank] + (0 if state == "lost" else ahead)
                out.append((t, rank, _line("status", rank, seq, t, state=state)))
        out.sort(key=lambda item: item[0])
        return [line for _, _, line in out] + self.raw

    def _columns(self, rank: int, cat: str, spans: list[Made], ahead: int) -> Json:
        table = self.names.setdefault(rank, {})
        before, new = len(table), []
        numbers, starts, last = [], [], 0
        for span in spans:
            key = json.dumps(span.name)
            if key not in table:
                table[key] = len(table)
                new.append(span.name)
            numbers.append(table[key])
            starts.append(span.start + ahead - last)
            last = span.start + ahead
        fields: Json = {"from": before, "define": new} if new else {}
        durs = [span.end - span.start for span in spans]
        return {**fields, "name": numbers, "start": starts, "dur": durs}


def _line(kind: str, rank: int, seq: int, t: int, **fields: Any) -> str:
    return json.dumps(
        {"kind": kind, "rank": rank, "seq": seq, "t": t, **fields}, separators=(",", ":")
    )


# -- the traces


def collective(
    op: str, tensor: str, library: str = "hvd.torch", size: int | None = 4096, **more: Any
) -> Json:
    """The definition of a name for a collective's spans."""
    named: Json = {"name": f"{op} {tensor}", "op": op, "tensor": tensor, "library": library}
    if size is not None:
        named |= {"bytes": size, "dtype": "float32", "shape": [size // 4]}
    return {**named, **more}


def loop(
    trace: Trace,
    steps: int,
    before: Callable[[int, int], tuple[int, int]],
    transfer: int = 2_000,
    op: str = "allreduce",
    tensor: str = "grad",
    library: str = "hvd.torch",
    blocked: bool = True,
    noise: random.Random | None = None,
) -> None:
    """Add steps that end in a collective; `before(rank, step)`: times to load and to compute."""
    dice = noise or random.Random(1)
    clock = {rank: 20_000 + 150 * rank for rank in range(trace.size)}
    begun = {rank: 1_000 + 300 * rank for rank in range(trace.size)}
    for rank in clock:
        trace.add(
            rank,
            "cell",
            {"name": "import horovod.torch as hvd", "line": 1},
            begun[rank] + 50,
            clock[rank] - begun[rank] - 60,
        )
    first = dict(clock)
    for step in range(steps):
        arrivals, work = {}, {}
        for rank in clock:
            load, compute = before(rank, step)
            work[rank] = clock[rank]
            if load:
                trace.add(rank, "data", "next(loader)", clock[rank], load)
            arrivals[rank] = clock[rank] + load + compute + dice.randrange(200)
        last = max(arrivals.values())
        for rank in clock:
            end = last + transfer + dice.randrange(50)
            named = collective(op, f"{tensor}.{step % 4}", library)
            trace.add(rank, "collective", named, arrivals[rank], end - arrivals[rank])
            inner = {"name": "GLOO_" + op.upper(), "tensor": f"{tensor}.{step % 4}"}
            ready = arrivals[rank]
            trace.add(
                rank,
                "phase",
                {"name": "NEGOTIATE", "tensor": inner["tensor"]},
                ready,
                last - ready + 40,
            )
            trace.add(rank, "phase", inner, last + 60, end - last - 80)
            if blocked:
                trace.add(
                    rank, "wait", f"hvd.{op} {tensor}.{step % 4}", ready + 15, end - ready + 10
                )
            clock[rank] = end + 30
            trace.add(
                rank, "step", {"name": "step", "step": step}, work[rank], clock[rank] - work[rank]
            )
    for rank in clock:
        trace.add(
            rank,
            "cell",
            {"name": "for step in range(steps):", "line": 3},
            first[rank],
            clock[rank] - first[rank],
        )
        trace.active(rank, begun[rank], clock[rank] + 400 + 100 * rank)


def straggler() -> Trace:
    """Two ranks; rank 1 computes 20 ms longer in each of 50 steps."""
    trace = Trace(2)
    loop(trace, 50, lambda rank, step: (0, 6_000 + 20_000 * rank))
    return trace


def own_span() -> Trace:
    """Four ranks; rank 1 spends most of its time in a span of the user's own."""
    trace = Trace(4)
    loop(trace, 20, lambda rank, step: (2_000, 22_000 if rank == 1 else 3_000))
    for rank in range(4):
        steps = [s for s in trace.spans if s.rank == rank and s.cat == "step"]
        trace.add(rank, "user", "epoch", steps[0].start, steps[-1].end - steps[0].start)
        for at, step in enumerate(steps):
            inside = 19_000 if rank == 1 else 450
            trace.add(rank, "user", {"name": "augment", "fold": at % 3}, step.start + 1_000, inside)
            trace.add(rank, "user", "x" * 41, step.start + 500, inside + 1_200)
            trace.add(rank, "user", "two\nlines", step.start + 500, inside + 1_200)
    return trace


def own_spans() -> Trace:
    """Six ranks; only two of them spend time in `validate`."""
    trace = Trace(6)
    loop(trace, 12, lambda rank, step: (0, 18_000 if rank in (2, 4) else 6_000))
    for rank in (2, 4):
        for step in [s for s in trace.spans if s.rank == rank and s.cat == "step"]:
            trace.add(rank, "user", "validate", step.start + 100, 12_000)
    return trace


def few_milliseconds() -> Trace:
    """A rank that costs 5 % of a cell, but only 9 ms: no rank is named."""
    trace = Trace(2)
    loop(trace, 3, lambda rank, step: (0, 40_000 + 2_700 * rank))
    return trace


def short() -> Trace:
    """A cell of 80 ms, half of which a rank costs: it is too short for a diagnosis."""
    trace = Trace(2)
    loop(trace, 2, lambda rank, step: (0, 5_000 + 18_000 * rank))
    return trace


def broken() -> Trace:
    """Rank 0 fails: the others wait for it until they are released, one of them interrupted."""
    trace = Trace(4)
    for rank in range(4):
        for n in range(3):
            arrival = 10_000 + 20_000 * n + 700 * rank
            end = 14_000 + 20_000 * n
            trace.add(rank, "collective", collective("allreduce", "g"), arrival, end - arrival)
            trace.add(rank, "wait", "hvd.allreduce g", arrival, end - arrival)
    for rank in (1, 2):
        trace.add(rank, "collective", collective("allreduce", "g"), 75_000 + rank, 150_000)
        trace.add(rank, "wait", "hvd.allreduce g", 75_000 + rank, 150_000)
    # In graph mode, its wait is not recorded.
    named = collective("allreduce", "h", "hvd.tensorflow")
    trace.add(3, "collective", named, 80_000, 145_000)
    for rank, state in enumerate(("error", "released", "interrupted", "released")):
        trace.active(rank, 0, 226_000 - 140_000 * (rank == 0), state)
    return trace


def killed() -> Trace:
    """Rank 1 is killed, and its unreported spans are lost; rank 0 ends up in two collectives."""
    trace = Trace(2)
    for rank in range(2):
        for n in range(20 if rank == 0 else 12):
            named = collective("allreduce", "g")
            trace.add(rank, "collective", named, 10_000 * n + 500 * rank, 4_000 - 500 * rank)
            trace.add(rank, "wait", "hvd.allreduce g", 10_000 * n + 500 * rank, 4_000 - 500 * rank)
    for n in range(2):
        trace.add(0, "collective", collective("allreduce", f"h.{n}"), 200_000 + n, 50_000)
    trace.add(0, "wait", "hvd.allreduce h.1", 200_001, 50_000)
    trace.active(0, 0, 251_000, "released")
    trace.active(1, 0, 205_000, "lost")
    return trace


def early() -> Trace:
    """Broadcasts that ranks leave before the last one arrives, certainly or within clock errors."""
    trace = Trace(3, offsets={1: 5_000, 2: -7_000}, errors={1: 400, 2: 100})
    for rank in range(3):
        trace.active(rank, 0, 200_000)
        for n in range(10):
            late = (9_000 if n % 2 else 2_300) if rank == 2 else 0
            named = collective("broadcast", "b", "dist")
            trace.add(rank, "collective", named, 20_000 * n + late, 2_000)
            trace.add(rank, "wait", "dist.broadcast", 20_000 * n + late, 2_000)
    return trace


def slow_loader() -> Trace:
    """Four ranks; rank 2's data loader takes three times as long."""
    trace = Trace(4)
    loop(trace, 40, lambda rank, step: (12_000 if rank == 2 else 4_000, 9_000))
    return trace


def even() -> Trace:
    """Four similar ranks, whose transfers take most of the time."""
    trace = Trace(4)
    loop(trace, 30, lambda rank, step: (500, 5_000), transfer=9_000)
    return trace


def turns() -> Trace:
    """Two ranks that take turns at being late: no rank stands out, but both wait a lot."""
    trace = Trace(2)
    loop(trace, 40, lambda rank, step: (0, 25_000 if step % 2 == rank else 5_000))
    return trace


def slow_host() -> Trace:
    """Eight ranks, two of which are slow in turn: they are named together."""
    trace = Trace(8)
    loop(trace, 16, lambda rank, step: (0, 20_000 if rank == 4 + step % 2 else 8_000))
    return trace


def uneven() -> Trace:
    """Three ranks with unequal numbers of collectives, as rank 1 misses the last ones."""
    trace = Trace(3)
    for rank in range(3):
        t = 5_000
        for n in range(6 - 2 * (rank == 1)):
            t += 3_000 + 800 * rank
            named = collective("allreduce", "loss", size=4)
            end = 4_000 + (n + 1) * 6_000 + rank
            trace.add(rank, "collective", named, t, max(10, end + 3_000 - t))
            trace.add(rank, "wait", "hvd.allreduce loss", t, max(10, end + 3_010 - t))
            t = max(t + 10, end + 3_010)
        if rank == 0:
            # A collective that no other rank calls.
            trace.add(rank, "collective", collective("broadcast", "only.here"), t + 100, 500)
        trace.active(rank, 0, 60_000 - 9_000 * (rank == 1), "error" if rank == 1 else "ok")
    return trace


def groups() -> Trace:
    """Process sets: ranks 0, 1 and ranks 2, 3 reduce a tensor apart; then all gather another."""
    trace = Trace(4)
    for rank in range(4):
        trace.active(rank, 0, 100_000)
    for n in range(8):
        base = 1_000 + 12_000 * n
        for low, name in ((0, "even"), (2, "odd")):
            members = [low, low + 1]
            named = collective("allreduce", "grad", group=name, ranks=members)
            last = base + 2_500 + 100 * n
            for rank, arrival in zip(members, (base + 10 * low, last), strict=True):
                trace.add(rank, "collective", named, arrival, last + 800 - arrival)
                trace.add(rank, "wait", "hvd.allreduce grad", arrival, last + 800 - arrival)
        for rank in range(4):
            named = collective("allgather", "stats", size=64)
            arrival = base + 7_000 + (2_000 if rank == n % 4 else 0)
            end = base + 9_500 + rank
            trace.add(rank, "collective", named, arrival, end - arrival)
            trace.add(rank, "wait", "hvd.allgather stats", arrival, end - arrival)
        # A group of three ranks, one of which never arrives.
        if n == 7:
            named = collective("barrier", "#1", "dist", None, group="trio", ranks=[0, 1, 3])
            for rank in (0, 1):
                trace.add(rank, "collective", named, 97_000 + rank, 1_000)
    return trace


def overlap() -> Trace:
    """Asynchronous collectives that overlap computing; rank 1 issues each of them 3 ms later."""
    trace = Trace(2)
    for rank in range(2):
        trace.active(rank, 0, 320_000)
    for step in range(5):
        base = 10_000 + 60_000 * step
        lasts = [base + 8_000 * bucket + 3_000 for bucket in range(5)]
        ends = [last + 7_000 for last in lasts]
        for rank in range(2):
            for bucket in range(5):
                arrival = base + 8_000 * bucket + 3_000 * rank
                named = collective("allreduce", f"bucket.{bucket}", "dist", 1 << 20)
                trace.add(rank, "collective", named, arrival, ends[bucket] - arrival)
            blocked = base + 36_000 + 3_000 * rank
            if rank == 0:
                blocked = base + 33_000
            trace.add(rank, "wait", "dist.wait", blocked, ends[-1] - blocked)
            trace.add(rank, "step", "optimizer.step", ends[-1] + 200, 1_500)
    return trace


def graph_mode() -> Trace:
    """TensorFlow in graph mode: the main thread's waits for collectives are not recorded."""
    trace = Trace(2)
    loop(
        trace, 20, lambda rank, step: (1_000, 4_000 + 7_000 * (rank == 0)),
        library="hvd.tensorflow", blocked=False,
    )  # fmt: skip
    # One other wait, as other rules apply to a record without any.
    trace.add(0, "wait", "dist.barrier", 2_000, 300)
    return trace


def alone() -> Trace:
    """Two ranks that never meet: no collectives, hence no diagnosis."""
    trace = Trace(2)
    for rank in range(2):
        trace.active(rank, 500 * rank, 30_000 - 4_000 * rank)
        trace.add(rank, "cell", {"name": "x = work()", "line": 1}, 600 * (rank + 1), 20_000)
        for n in range(5):
            trace.add(rank, "data", "next(loader)", 2_000 + 3_000 * n, 1_000)
            trace.add(rank, "user", {"name": "augment", "fold": n}, 3_100 + 3_000 * n, 900)
    return trace


def clocks() -> Trace:
    """A straggler, and ranks whose clocks are an hour ahead and 20 ms behind."""
    trace = Trace(3, offsets={1: 3_600_000_000, 2: -20_000}, errors={1: 180, 2: 75})
    loop(trace, 12, lambda rank, step: (0, 5_000 + 10_000 * (rank == 1)))
    trace.ends[2] = "lost"
    trace.failed.add(2)
    return trace


def live() -> Trace:
    """A live run: rank 1 has not ended, rank 2 has not begun."""
    trace = Trace(3)
    for rank in range(2):
        for n in range(4):
            arrival = 1_000 + 5_000 * n + 2_000 * rank
            end = 5_000 + 5_000 * n
            trace.add(
                rank, "collective", collective("allreduce", "#1", "dist"), arrival, end - arrival
            )
            trace.add(rank, "wait", "dist.all_reduce", arrival, end - arrival)
    trace.add(1, "user", "still at it", 21_500, 3_000)
    trace.active(0, 0, 21_000)
    trace.active(1, 0, None)
    return trace


def imported() -> Trace:
    """Another program's spans: no status, no waits, unknown categories, names without arguments."""
    trace = Trace(2)
    for rank in range(2):
        t = 1_000_000
        for n in range(10):
            trace.add(rank, "kernel", {"name": f"gemm_{n % 3}", "stream": 7}, t, 3_000 + 900 * rank)
            trace.add(rank, "python_function", "forward", t - 200, 3_500)
            arrival = t + 3_000 + 900 * rank
            end = t + 5_200
            trace.add(rank, "collective", {"name": "ncclAllReduce"}, arrival, end - arrival)
            t = end + 100
    return trace


def one_rank() -> Trace:
    """A single rank: its collectives wait for no other."""
    trace = Trace(1)
    loop(trace, 5, lambda rank, step: (0, 4_000))
    return trace


def empty() -> Trace:
    """No events."""
    return Trace(2)


def no_spans() -> Trace:
    """Ranks that ran, but reported no spans."""
    trace = Trace(2)
    trace.active(0, 0, 5_000)
    trace.active(1, 100, 4_000, "interrupted")
    return trace


def nested() -> Trace:
    """Spans nested 100 deep, overlapping ones in one lane, and instants."""
    trace = Trace(2)
    for rank in range(2):
        trace.active(rank, 0, 50_000)
        for depth in range(100):
            trace.add(rank, "op", f"level {depth}", 1_000 + 10 * depth, 40_000 - 20 * depth)
        for n in range(50):
            trace.add(rank, "data", "fetch", 2_000 + 500 * n, 1_800)
            trace.add(rank, "user", "tick", 3_000 + 500 * n, 0)
        for n in range(4):
            named = collective("allreduce", "same")
            trace.add(rank, "collective", named, 20_000 + 700 * n + 90 * rank, 6_000)
            trace.add(rank, "wait", "hvd.allreduce same", 20_100 + 700 * n, 4_000)
    return trace


def many_names() -> Trace:
    """3,000 spans, each with its own name, some of them long or strange."""
    trace = Trace(2)
    strange = [
        "",
        " ",
        "a" * 2_000,
        "<b>&amp;</b>",
        "ünï ☃ 𝄞",
        "line\nbreak",
        '"quoted"',
        "__proto__",
        "constructor",
    ]
    for rank in range(2):
        trace.active(rank, 0, 100_000)
        for n in range(1_500):
            name = strange[n] if n < len(strange) else f"op {rank} {n}"
            trace.add(rank, "op", name, 60 * n, 50)
        for n, name in enumerate(strange):
            named = collective("allreduce", name, size=8)
            trace.add(rank, "collective", named, 1_000 * n + 70 * rank, 300)
    return trace


def jumping() -> Trace:
    """Clocks that jump: a cell ends before it begins, spans are an hour early or a year late."""
    trace = Trace(3)
    trace.active(0, 10_000, 60_000)
    trace.active(1, 50_000, 20_000)
    trace.active(2, 12_000, 90_000)
    for rank in range(3):
        for n in range(6):
            start = 15_000 + 5_000 * n - (40_000 if rank == 1 and n > 2 else 0)
            named = collective("allreduce", "g")
            trace.add(rank, "collective", named, start + 300 * rank, 1_000)
            trace.add(rank, "wait", "hvd.allreduce g", start + 300 * rank, 1_000)
        trace.add(rank, "user", "long before", -3_600_000_000, 1_000)
        trace.add(rank, "user", "a year later", 31_000_000_000_000, 1_000)
    return trace


def hostile() -> Trace:
    """Malformed events, whose valid spans must still be read."""
    trace = Trace(2)
    for rank in range(2):
        trace.active(rank, 0, 50_000)
    trace.add(0, "op", "sound", 100, 50)
    trace.add(1, "op", "sound", 100, 50)

    def spans(
        rank: int, seq: int, name: Any, start: Any, dur: Any, cat: Any = "op", **more: Any
    ) -> str:
        return _line("spans", rank, seq, 40_000, cat=cat, **more, name=name, start=start, dur=dur)

    def keep(rank: int, cat: str, name: str, start: int, dur: int) -> None:
        kept.append(Made(rank, cat, {"name": name}, start, start + dur))

    kept: list[Made] = []
    # Negative durations, and times that are not whole numbers.
    trace.event(spans(0, 10, [0, 0, 0], [1_000, 100, 100], [10, -5, 20]), negative=1)
    keep(0, "op", "sound", 1_000, 10)
    keep(0, "op", "sound", 1_200, 20)
    trace.event(spans(0, 11, [0, 0, 0], [2_000, 100, 100], [10, 1.5, "7"]), number=2)
    keep(0, "op", "sound", 2_000, 10)
    trace.event(spans(0, 12, [0, 0, 0, 0], [3_000, None, 100, 100], [10, 10, 10, 10]), number=3)
    keep(0, "op", "sound", 3_000, 10)
    trace.event(spans(0, 13, [0, 0, 0], [4_000.0, 100, 0.5], [True, 10.0, 10]), number=2)
    keep(0, "op", "sound", 4_100, 10)
    # Times out of range: one span is dropped, or all that follow, too.
    far = TEN_YEARS
    trace.event(spans(0, 14, [0, 0, 0], [far + 1, -far + 4_999, 0], [0, 10, far]), far=2)
    keep(0, "op", "sound", 5_000, 10)
    trace.event(spans(0, 15, [0, 0, 0], [6_000, 2**53 + 1, 0], [10, 10, 10]), far=2)
    keep(0, "op", "sound", 6_000, 10)
    trace.event(spans(0, 16, [0, 0], [7_000, 100], [10**30, 10]), far=1)
    keep(0, "op", "sound", 7_100, 10)
    trace.event(spans(0, 17, [0, 0], [10**19, 100], [10, 10]), far=2)
    # Columns of unequal length.
    trace.event(spans(0, 18, [0, 0, 0], [8_000, 100], [10, 10, 10, 10]), length=4)
    trace.event(spans(0, 19, [], [8_000], []), length=1)
    trace.event(spans(0, 20, [], [], []))
    # Names: missing, undefined, with an invalid definition, defined later, with a huge number.
    trace.event(spans(1, 10, [0, 0.5, None, "0"], [1_000, 100, 100, 100], [10] * 4), name=3)
    keep(1, "op", "sound", 1_000, 10)
    trace.event(spans(1, 11, [77, -1, 10**20], [2_000, 100, 100], [10] * 3))
    for n in range(3):
        keep(1, "op", "?", 2_000 + 100 * n, 10)
    trace.event(
        spans(
            1,
            12,
            [5, 6, 7],
            [3_000, 100, 100],
            [10] * 3,
            **{"from": 5, "define": [None, {"name": 7}, {"name": "third"}]},
        )
    )
    keep(1, "op", "?", 3_000, 10)
    keep(1, "op", "?", 3_100, 10)
    keep(1, "op", "third", 3_200, 10)
    trace.event(spans(1, 13, [8], [4_000], [10]))
    keep(1, "op", "later", 4_000, 10)
    trace.event(spans(1, 14, [2**40], [5_000], [10], **{"from": 8, "define": [{"name": "later"}]}))
    keep(1, "op", "far off", 5_000, 10)
    trace.event(spans(1, 15, [], [], [], **{"from": 2**40, "define": [{"name": "far off"}]}))
    trace.event(
        spans(1, 16, [9], [6_000], [10], **{"from": -1, "define": [{"name": "never"}] * 20})
    )
    trace.event(spans(1, 17, [9], [6_100], [10], **{"from": "0", "define": {"9": "never"}}))
    keep(1, "op", "?", 6_000, 10)
    keep(1, "op", "?", 6_100, 10)
    # Arguments of the wrong type count as left out.
    odd = {
        "name": "odd",
        "op": 7,
        "tensor": None,
        "library": [],
        "group": {},
        "ranks": "all",
        "bytes": "9",
    }
    for rank in range(2):
        table = {"from": 30, "define": [odd]}
        trace.event(spans(rank, 18, [30], [20_000 + 500 * rank], [2_000], "collective", **table))
        keep(rank, "collective", "odd", 20_000 + 500 * rank, 2_000)
    # Not spans: columns of the wrong type, an unknown rank, invalid JSON.
    trace.event(_line("spans", 0, 30, 40_000, cat="op", name=0, start=[1], dur=[1]))
    trace.event(_line("spans", 0, 31, 40_000, cat=None, name=[0], start=[1], dur=[1]))
    trace.event(spans(9, 0, [0, 0], [1_000, 100], [10, 10]), rank=2)
    trace.event('{"kind":"spans","rank":0,"seq":33,"t":40000,"cat":"op","name":[0],"start":[1')
    trace.spans += kept
    trace.by_hand = len(kept)
    return trace


def nan() -> Trace:
    """NaN and Infinity, which Python writes although JSON has neither: they are read as null."""
    trace = Trace(2)
    for rank in range(2):
        trace.active(rank, 0, 50_000)
    trace.add(0, "op", "NaN at start", 100, 50)
    head = '{"kind":"spans","rank":0,"seq":9,"t":40000,"cat":"op","name":'
    trace.event(head + '[0,0,0],"start":[1000,100,100],"dur":[NaN,10,Infinity]}', number=2)
    trace.event(head + '[0,0,0],"start":[2000,-Infinity,100],"dur":[10,10,10]}', number=2)
    trace.event(head + '[0],"start":[3000],"dur":[1e400]}', number=1)
    trace.spans += [
        Made(0, "op", {"name": "NaN at start"}, 1_100, 1_110),
        Made(0, "op", {"name": "NaN at start"}, 2_000, 2_010),
    ]
    trace.by_hand = 2
    return trace


def train(
    trace: Trace,
    clock: dict[int, int],
    load: Callable[[int, int], int],
    steps: int,
    named: Sequence[Json],
    optimizer: str = "SGD.step",
    samples: int | None = None,
) -> None:
    """Add steps from `clock` on, which they advance: load, compute, collectives, optimizer."""
    for step in range(steps):
        for rank in clock:
            end = trace.add(rank, "user", "load", clock[rank], load(rank, step))
            if samples:
                trace.add(
                    rank, "data", {"name": "DataLoader", "samples": samples}, clock[rank], 900
                )
            clock[rank] = end + 3_000
        for each in named:
            last = max(clock.values())
            for rank in clock:
                trace.add(rank, "collective", each, clock[rank], last + 1_200 - clock[rank])
                trace.add(
                    rank, "wait", f"hvd {each['name']}", clock[rank], last + 1_210 - clock[rank]
                )
                clock[rank] = last + 1_215 + 3 * rank
        for rank in clock:
            if optimizer:
                clock[rank] = trace.add(rank, "step", optimizer, clock[rank], 800)


def imports() -> Trace:
    """Four ranks import for ten seconds, then train.

    Rank 2 loads five times as long in each step, and the first two steps take longer.
    """
    trace = Trace(4)
    clock = {}
    for rank in range(4):
        trace.add(rank, "import", "import numpy", 60_000, 900_000)
        end = trace.add(rank, "import", "import torch", 50_000, 10_000_000 + 1_000 * rank)
        clock[rank] = trace.add(rank, "cell", {"name": "import torch", "line": 1}, 40_000, end)
    begun = dict(clock)

    def load(rank: int, step: int) -> int:
        return (20_000 if rank == 2 else 4_000) + (150_000 if step < 2 else 100 * (step % 3))

    gradients = [collective("allreduce", f"grad.{n}", size=4096 * n) for n in (1, 2)]
    train(trace, clock, load, 40, gradients, samples=32)
    for rank in range(4):
        line = {"name": "for step in range(40):", "line": 3}
        end = trace.add(rank, "cell", line, begun[rank], clock[rank] - begun[rank])
        trace.active(rank, 1_000 * rank, end + 500)
    return trace


def validation() -> Trace:
    """Three ranks train in two loops, after frameworks were set up again.

    In the first loop, all validate after every ten steps, and rank 1 makes one step less.
    """
    trace = Trace(3)
    clock = {rank: trace.add(rank, "setup", "set up again", 1_000, 400_000) for rank in range(3)}
    gradients = [collective("allreduce", f"#{n}", size=4096) for n in range(100)]
    for slow, line, steps, optimizer in ((0, 4, 30, "Adam.step"), (1, 9, 25, "SGD.step")):
        begun = dict(clock)
        work = {rank: 2_000 + 7_000 * (rank == slow) for rank in clock}
        for step in range(steps):
            train(trace, clock, lambda rank, _, work=work: work[rank], 1,
                  [gradients.pop()], optimizer)  # fmt: skip
            if line == 4 and step % 10 == 9:
                for rank in range(3):
                    clock[rank] = trace.add(rank, "user", "validate", clock[rank], 60_000)
        for rank in range(3):
            name = {"name": "for batch in loader:", "line": line}
            trace.add(rank, "cell", name, begun[rank] - 10, clock[rank] - begun[rank] + 20)
            clock[rank] += 5_000
    missed = [s for s in trace.spans if s.rank == 1 and s.name["name"] == "Adam.step"][-1]
    trace.spans = [span for span in trace.spans if span is not missed]
    for rank in range(3):
        trace.active(rank, 0, clock[rank])
    return trace


def patterns() -> Trace:
    """Another program's spans of a loop, in which three collectives of two kinds repeat."""
    trace = Trace(2)
    clock = {0: 5_000_000, 1: 5_000_200}
    for rank in range(2):
        for n in range(3):
            trace.add(rank, "collective", collective("broadcast", f"w.{n}", "dist"),
                      clock[rank] + 2_000 * n, 1_500)  # fmt: skip
        clock[rank] += 400_000
    for step in range(12):
        halves = [
            collective("reducescatter", f"#{2 * step + n}", "dist", size=4096 * n) for n in (1, 2)
        ]
        gathered = collective("allgather", f"even #{step + 1}", "dist", size=512)
        train(trace, clock, lambda rank, _: 9_000 * rank + 1_000, 1, [*halves, gathered], "")
    trace.spans = [span for span in trace.spans if span.cat != "wait"]
    return trace


ALL: list[Callable[[], Trace]] = [
    straggler, own_span, own_spans, few_milliseconds, short, broken, slow_loader, even, turns,
    slow_host, uneven, groups, overlap, graph_mode, alone, clocks, live, imported, one_rank,
    empty, no_spans, nested, many_names, jumping, hostile, nan, imports, validation, patterns,
    killed, early,
]  # fmt: skip


def files(make: Callable[[], Trace]) -> dict[str, str]:
    """The files of a trace. The view's tests read collectives.json, the server's answer."""
    trace = make()
    lines = trace.lines()
    run = trace.run_json(make.__name__)
    timeline = Timeline.of(RunInfo.from_json(run), [f"{line}\n".encode() for line in lines])
    told = Collectives(timeline).to_json()
    return {
        "run.json": json.dumps(run, indent=1) + "\n",
        "events.jsonl": "\n".join(lines) + "\n" if lines else "",
        "collectives.json": json.dumps(told, separators=(",", ":")) + "\n",
        "expected.json": json.dumps(expected(trace), indent=None, separators=(",", ":")).replace(
            "},{", "},\n{"
        )
        + "\n",
    }


def main() -> None:
    """Write all traces."""
    for make in ALL:
        folder = FOLDER / make.__name__.replace("_", "-")
        folder.mkdir(parents=True, exist_ok=True)
        for name, text in files(make).items():
            (folder / name).write_text(text)
    print(f"{len(ALL)} traces in {FOLDER}", file=sys.stderr)


if __name__ == "__main__":
    main()
