"""Golden traces: records with spans, and what must be derived from them.

`python tests/trace_makers.py` writes tests/traces/<name>/. What is expected is found by looking at
every instant between two changes, span by span: slow, and unlike how the package and the extension
do it, so that the three check each other. The rules are in tests/traces/README.md.
"""

from __future__ import annotations

import itertools
import json
import math
import random
import statistics
import sys
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

FOLDER = Path(__file__).parent / "traces"
START = 1_790_000_000_000_000  # epoch microseconds of every trace's zero
TEN_YEARS = 315_576_000_000_000
Json = dict[str, Any]


@dataclass
class Made:
    """One sound span as it was planned, on the clock of the run's writer."""

    rank: int
    cat: str
    name: Json
    start: int
    end: int


@dataclass
class Trace:
    """A record under construction; `offsets` are how far the ranks' clocks are ahead."""

    size: int
    offsets: dict[int, int] = field(default_factory=dict)
    errors: dict[int, int] = field(default_factory=dict)
    title: str = "train()"
    spans: list[Made] = field(default_factory=list)
    dropped: dict[str, int] = field(default_factory=dict)
    begun: dict[int, int] = field(default_factory=dict)
    ended: dict[int, int] = field(default_factory=dict)
    ends: dict[int, str] = field(default_factory=dict)
    raw: list[str] = field(default_factory=list)
    names: dict[int, dict[str, int]] = field(default_factory=dict)
    last_words: int = -TEN_YEARS  # the latest time in the record, for runs that go on
    by_hand: int = 0  # how many of the spans, the last ones, stand in lines of `raw`

    def add(self, rank: int, cat: str, name: str | Json, start: int, dur: int) -> int:
        """Plan a sound span; returns its end."""
        named = {"name": name} if isinstance(name, str) else name
        self.spans.append(Made(rank, cat, named, start, start + dur))
        return start + dur

    def active(self, rank: int, begin: int, end: int | None, state: str = "ok") -> None:
        """When a rank ran the cell."""
        self.begun[rank] = begin
        if end is not None:
            self.ended[rank] = end
            self.ends[rank] = state

    def event(self, line: str, **dropped: int) -> None:
        """A line of events.jsonl as it is, and how many of its spans must be dropped, and why."""
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
        """The events, as ranks report them: each rank's in order, spans as they end."""
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
                # A rank that is lost cannot say so: the run's writer does, by its own clock.
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

    # -- what must be derived from it

    def expected(self) -> Json:
        collectives = self._collectives()
        found = {
            "collectives": [
                {k: v for k, v in c.items() if k not in ("spans", "waits")} for c in collectives
            ],
            "profile": self._profile(collectives),
            "dropped": {
                "spans": sum(self.dropped.values()),
                "why": dict(sorted(self.dropped.items())),
            },
        }
        return found

    def _collectives(self) -> list[Json]:
        groups: dict[tuple[Any, ...], list[Made]] = {}
        for rank in range(self.size):
            count: dict[tuple[str, ...], int] = {}
            mine = [s for s in self.spans if s.rank == rank and s.cat == "collective"]
            for span in sorted(mine, key=lambda s: s.start):
                name = span.name
                key = (
                    name.get("library", ""), name.get("group", ""),
                    name.get("op", name["name"]), name.get("tensor", ""),
                )  # fmt: skip
                n = count[key] = count.get(key, -1) + 1
                groups.setdefault((*key, n), []).append(span)
        out = []
        for (library, group, op, tensor, n), spans in groups.items():
            arrivals = [s.start for s in spans]
            last = max(arrivals)
            straggler = min(s.rank for s in spans if s.start == last)
            others = [s.start for s in spans if s.rank != straggler]
            asked = next((s.name["ranks"] for s in spans if "ranks" in s.name), range(self.size))
            out.append(
                {
                    "library": library, "group": group, "op": op, "tensor": tensor, "n": n,
                    "ranks": [s.rank for s in spans],
                    "absent": sorted(set(asked) - {s.rank for s in spans}),
                    "arrivals": arrivals,
                    "ends": [s.end for s in spans],
                    "last": last,
                    "straggler": straggler,
                    "spread": last - min(arrivals),
                    "cost": last - math.floor(statistics.median(others)) if others else 0,
                    "spans": spans,
                    "waits": [s.start + max(0, min(last, s.end) - s.start) for s in spans],
                }
            )  # fmt: skip
        out.sort(
            key=lambda c: (
                min(c["arrivals"]),
                *(c[k] for k in ("library", "group", "op", "tensor", "n")),
            )
        )
        return out

    def _wall(self) -> tuple[int, int]:
        if not self.begun:
            if not self.spans:
                return 0, 0
            return min(s.start for s in self.spans), max(s.end for s in self.spans)
        begin = min(self.begun.values())
        ends = list(self.ended.values())
        if set(self.begun) - set(self.ended):
            ends += [self.last_words, *(s.end for s in self.spans), *self.begun.values()]
        return begin, max(begin, *ends)

    def _profile(self, collectives: list[Json]) -> Json:
        w0, w1 = self._wall()
        any_wait = any(s.cat == "wait" for s in self.spans)
        blocks: dict[int, list[tuple[int, int]]] = {}
        waits: dict[int, list[tuple[int, int]]] = {r: [] for r in range(self.size)}
        moves: dict[int, list[tuple[int, int]]] = {r: [] for r in range(self.size)}
        for c in collectives:
            for span, until in zip(c["spans"], c["waits"], strict=True):
                waits[span.rank].append((span.start, until))
                moves[span.rank].append((until, span.end))
        ranks, waiting_at = [], {}
        for rank in range(self.size):
            mine = [s for s in self.spans if s.rank == rank]
            begin, end = (w0, w1) if not self.begun else (
                self.begun.get(rank, w1), self.ended.get(rank, w1))  # fmt: skip
            if self.begun and rank not in self.begun:
                begin = end = w1
            blocks[rank] = [
                (s.start, s.end)
                for s in mine
                if s.cat == "wait"
                or (s.cat == "collective" and s.name.get("library") == "hvd.tensorflow")
                or (s.cat == "collective" and not any_wait)
            ]
            loads = [(s.start, s.end) for s in mine if s.cat == "data"]
            sums = dict.fromkeys(("compute", "data", "waiting", "exposed", "idle"), 0)
            communication = 0
            waiting_at[rank] = []
            for a, b in _instants(
                w0, w1, [(begin, end)], blocks[rank], loads, waits[rank], moves[rank]
            ):
                if not begin <= a < end:
                    what = "idle"
                elif _in(a, blocks[rank]):
                    what = "waiting" if _in(a, waits[rank]) else "exposed"
                else:
                    what = "data" if _in(a, loads) else "compute"
                sums[what] += b - a
                if what == "waiting":
                    waiting_at[rank].append((a, b))
                if what == "exposed" or (what != "idle" and _in(a, moves[rank])):
                    communication += b - a
            ranks.append({"rank": rank, **sums, "communication": communication})
        kinds = self._kinds(collectives, w0, w1)
        stragglers = self._stragglers(collectives, waiting_at, w0, w1)
        shared = [c for c in collectives if len(c["ranks"]) > 1]
        return {
            "wall": w1 - w0,
            "ranks": ranks,
            "kinds": kinds,
            "stragglers": stragglers,
            "diagnosis": diagnosis(w1 - w0, ranks, stragglers, [c["op"] for c in shared]),
        }

    def _kinds(self, collectives: list[Json], w0: int, w1: int) -> list[Json]:
        out = []
        for library, op in dict.fromkeys((c["library"], c["op"]) for c in collectives):
            mine = [c for c in collectives if (c["library"], c["op"]) == (library, op)]
            by_rank: dict[int, list[tuple[int, int, int]]] = {}
            for c in mine:
                for span, until in zip(c["spans"], c["waits"], strict=True):
                    by_rank.setdefault(span.rank, []).append((span.start, until, span.end))
            sizes = [s.name["bytes"] for c in mine for s in c["spans"] if "bytes" in s.name]
            time, wait, transfer = (
                sum(_length(w0, w1, [(s[a], s[b]) for s in spans]) for spans in by_rank.values())
                // len(by_rank)
                for a, b in ((0, 2), (0, 1), (1, 2))
            )
            mean = sum(sizes) / len(sizes) if sizes else None
            known = mean is not None and transfer > 0
            out.append(
                {
                    "library": library, "op": op, "calls": len(mine), "bytes": mean,
                    "time": time, "wait": wait, "transfer": transfer,
                    "bandwidth": len(mine) * mean / (transfer / 1e6) if known else None,
                }
            )  # fmt: skip
        return sorted(out, key=lambda k: (-k["time"], k["library"], k["op"]))

    def _stragglers(
        self, collectives: list[Json], waiting: dict[int, list[tuple[int, int]]], w0: int, w1: int
    ) -> list[Json]:
        shared = [c for c in collectives if len(c["ranks"]) > 1]
        out = []
        for rank in range(self.size):
            mine = [c for c in shared if c["straggler"] == rank]
            costs = [(c["last"] - c["cost"], c["last"]) for c in mine]
            others = [w for other, found in waiting.items() if other != rank for w in found]
            cost = sum(
                b - a
                for a, b in _instants(w0, w1, costs, others)
                if _in(a, costs) and _in(a, others)
            )
            if cost:
                last = sum(c["spread"] > 0 for c in mine)
                out.append({"rank": rank, "last": last, "of": len(shared), "cost": cost})
        return sorted(out, key=lambda s: (-s["cost"], s["rank"]))


def diagnosis(wall: int, ranks: list[Json], stragglers: list[Json], ops: list[str]) -> str:
    """The sentence, by the rules of the README."""
    if len(ranks) < 2 or not ops or not wall:
        return ""
    top = stragglers[0]["cost"] if stragglers else 0
    named = [s for s in stragglers if 2 * s["cost"] >= top]
    if 100 * top < 3 * wall or 2 * len(named) > len(ranks):
        parts = ["no rank stands out"]
        waiting = sum(r["waiting"] for r in ranks) / len(ranks)
        exposed = sum(r["exposed"] for r in ranks) / len(ranks)
        if waiting >= 0.1 * wall and waiting >= exposed:
            parts.append(f"they wait for each other in turn, {_percent(waiting, wall)} of the cell")
        elif exposed >= 0.2 * wall:
            share = _percent(exposed, wall)
            parts.append(f"{share} of the cell is communication that nothing overlaps")
        return "; ".join(parts)
    who = sorted(s["rank"] for s in named)
    one = len(who) == 1
    what = ops[0] if len(set(ops)) == 1 and ops[0] not in ("", "?") else "collective"
    many = what + ("es" if what.endswith(("s", "x", "ch", "sh")) else "s")
    share = _percent(sum(s["last"] for s in named), len(ops))
    in_what = f"{share} of {len(ops):,} {many}" if len(ops) > 1 else f"the only {what}"
    names = f"rank {who[0]}" if one else f"ranks {', '.join(map(str, who[:-1]))} and {who[-1]}"
    cost = min(sum(s["cost"] for s in named), wall)
    sentence = (
        f"{names} {'arrives' if one else 'arrive'} last in {in_what}"
        f" and {'costs' if one else 'cost'} {_percent(cost, wall)} of the cell"
    )
    causes = []
    for what in ("data", "compute"):
        mine = sum(r[what] for r in ranks if r["rank"] in who) // len(who)
        rest = math.floor(statistics.median(r[what] for r in ranks if r["rank"] not in who))
        if 5 * mine >= 6 * rest and 2 * (mine - rest) * len(who) >= cost:
            causes.append((mine - rest, what == "data", mine, rest))
    if not causes:
        return sentence
    _, data, mine, rest = max(causes)
    if not rest:
        verb = (
            ("loads data" if data else "computes") if one else ("load data" if data else "compute")
        )
        return f"{sentence}; only {'it' if one else 'they'} {verb}"
    own = ("its" if one else "their") + (" data loading takes" if data else " own computing takes")
    return f"{sentence}; {own} {_times(mine, rest)} the others'"


def _percent(part: float, whole: float) -> str:
    return f"{math.floor(100 * part / whole + 0.5)} %"


def _times(mine: int, rest: int) -> str:
    if mine >= 10 * rest:
        return f"{math.floor(mine / rest + 0.5)} ×"
    return f"{math.floor(10 * mine / rest + 0.5) / 10:.1f} ×"


def _instants(w0: int, w1: int, *sets: Iterable[tuple[int, int]]) -> list[tuple[int, int]]:
    """The pieces of [w0, w1] between which nothing of `sets` begins or ends."""
    cuts = {w0, w1, *(edge for spans in sets for span in spans for edge in span if w0 < edge < w1)}
    places = sorted(cuts)
    return list(itertools.pairwise(places))


def _in(t: int, spans: Iterable[tuple[int, int]]) -> bool:
    return any(a <= t < b for a, b in spans)


def _length(w0: int, w1: int, spans: list[tuple[int, int]]) -> int:
    return sum(b - a for a, b in _instants(w0, w1, spans) if _in(a, spans))


def _line(kind: str, rank: int, seq: int, t: int, **fields: Any) -> str:
    return json.dumps(
        {"kind": kind, "rank": rank, "seq": seq, "t": t, **fields}, separators=(",", ":")
    )


# -- the traces


def collective(
    op: str, tensor: str, library: str = "hvd.torch", size: int | None = 4096, **more: Any
) -> Json:
    """The name of a collective's spans."""
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
    """Steps that end in one collective; `before(rank, step)` loads and computes so long."""
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


def slow_loader() -> Trace:
    """Four ranks; rank 2's data loader takes three times as long."""
    trace = Trace(4)
    loop(trace, 40, lambda rank, step: (12_000 if rank == 2 else 4_000, 9_000))
    return trace


def even() -> Trace:
    """Four ranks alike, whose transfers take most of the time."""
    trace = Trace(4)
    loop(trace, 30, lambda rank, step: (500, 5_000), transfer=9_000)
    return trace


def turns() -> Trace:
    """Two ranks that take turns at being late: no one stands out, but waiting is large."""
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
            # Only there: a collective on its own, and one with a name nobody else has.
            trace.add(rank, "collective", collective("broadcast", "only.here"), t + 100, 500)
        trace.active(rank, 0, 60_000 - 9_000 * (rank == 1), "error" if rank == 1 else "ok")
    return trace


def groups() -> Trace:
    """Process sets: ranks 0, 1 and ranks 2, 3 reduce the same tensor apart, then all together."""
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
        # A group that was opened for three, of which one never comes.
        if n == 7:
            named = collective("barrier", "#1", "dist", None, group="trio", ranks=[0, 1, 3])
            for rank in (0, 1):
                trace.add(rank, "collective", named, 97_000 + rank, 1_000)
    return trace


def overlap() -> Trace:
    """Asynchronous collectives behind the computing; rank 1 issues each of them 3 ms later."""
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
    """TensorFlow in graph mode: collectives of which nobody sees the main thread wait."""
    trace = Trace(2)
    loop(
        trace, 20, lambda rank, step: (1_000, 4_000 + 7_000 * (rank == 0)),
        library="hvd.tensorflow", blocked=False,
    )  # fmt: skip
    # One wait elsewhere, so that this is not a record without any.
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
    """The straggler again, but the ranks' clocks are an hour and 20 ms apart."""
    trace = Trace(3, offsets={1: 3_600_000_000, 2: -20_000}, errors={1: 180, 2: 75})
    loop(trace, 12, lambda rank, step: (0, 5_000 + 10_000 * (rank == 1)))
    trace.ends[2] = "lost"
    return trace


def live() -> Trace:
    """A run that goes on: rank 1 has not ended, rank 2 has not begun."""
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
    """Another program's spans: no status, no waits, categories nobody knows, names without args."""
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
    """A single rank: collectives with nobody to wait for."""
    trace = Trace(1)
    loop(trace, 5, lambda rank, step: (0, 4_000))
    return trace


def empty() -> Trace:
    """Nothing at all."""
    return Trace(2)


def no_spans() -> Trace:
    """Ranks that ran, and reported no span."""
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
    """A name of its own for each of 3,000 spans, some of them long or strange."""
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
    """Clocks that jump: ends before begins, a cell that ended before it began, far-off moments."""
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
    """Events that nobody should write; what is sound in them must come through."""
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
    # Negative, and not whole.
    trace.event(spans(0, 10, [0, 0, 0], [1_000, 100, 100], [10, -5, 20]), negative=1)
    keep(0, "op", "sound", 1_000, 10)
    keep(0, "op", "sound", 1_200, 20)
    trace.event(spans(0, 11, [0, 0, 0], [2_000, 100, 100], [10, 1.5, "7"]), number=2)
    keep(0, "op", "sound", 2_000, 10)
    trace.event(spans(0, 12, [0, 0, 0, 0], [3_000, None, 100, 100], [10, 10, 10, 10]), number=3)
    keep(0, "op", "sound", 3_000, 10)
    trace.event(spans(0, 13, [0, 0, 0], [4_000.0, 100, 0.5], [True, 10.0, 10]), number=2)
    keep(0, "op", "sound", 4_100, 10)
    # Too far away: of one, or of all that follow.
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
    # Names: none, undefined, defined by nonsense, defined later, defined far away.
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
    # Arguments of the wrong kind count as left out.
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
    # Not a span at all: another shape, another rank, no JSON.
    trace.event(_line("spans", 0, 30, 40_000, cat="op", name=0, start=[1], dur=[1]))
    trace.event(_line("spans", 0, 31, 40_000, cat=None, name=[0], start=[1], dur=[1]))
    trace.event(spans(9, 0, [0, 0], [1_000, 100], [10, 10]), rank=2)
    trace.event('{"kind":"spans","rank":0,"seq":33,"t":40000,"cat":"op","name":[0],"start":[1')
    trace.spans += kept
    trace.by_hand = len(kept)
    return trace


def nan() -> Trace:
    """NaN and Infinity, which JSON does not have but Python writes: only they are lost."""
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


ALL: list[Callable[[], Trace]] = [
    straggler, slow_loader, even, turns, slow_host, uneven, groups, overlap, graph_mode, alone,
    clocks, live, imported, one_rank, empty, no_spans, nested, many_names, jumping, hostile, nan,
]  # fmt: skip


def files(make: Callable[[], Trace]) -> dict[str, str]:
    """The three files of a trace."""
    trace = make()
    lines = trace.lines()
    return {
        "run.json": json.dumps(trace.run_json(make.__name__), indent=1) + "\n",
        "events.jsonl": "\n".join(lines) + "\n" if lines else "",
        "expected.json": json.dumps(trace.expected(), indent=None, separators=(",", ":")).replace(
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
