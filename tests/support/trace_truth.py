"""What must be derived from a trace: an independent implementation of docs/profile-rules.md.

It is slow, and works unlike the package, so that the two check each other: it classifies every
interval between two changes.
"""

from __future__ import annotations

import itertools
import math
import re
import statistics
from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import Any

from rankroom.text.amounts import duration

Json = dict[str, Any]


@dataclass
class Made:
    """A valid span as it was planned, on the clock of the run's writer."""

    rank: int
    cat: str
    name: Json
    start: int
    end: int


@dataclass
class Plan:
    """A record of `size` ranks: its valid spans, when each rank ran, and what must be dropped."""

    size: int
    spans: list[Made] = field(default_factory=list)
    dropped: dict[str, int] = field(default_factory=dict)
    begun: dict[int, int] = field(default_factory=dict)
    ended: dict[int, int] = field(default_factory=dict)
    failed: set[int] = field(default_factory=set)  # ranks on which the cell did not end by itself
    errors: dict[int, int] = field(default_factory=dict)  # of clocks; each rank has its own host
    last_words: int = -(10**15)  # the latest time in the record, for live runs

    def doubt(self, rank: int) -> int:
        """How far a rank's times may be off relative to those of another rank."""
        others = [self.errors.get(each, 0) for each in range(self.size) if each != rank]
        return self.errors.get(rank, 0) + max(others) if others else 0


def expected(plan: Plan) -> Json:
    collectives = _collectives(plan)
    found = {
        "collectives": [
            {k: v for k, v in c.items() if k not in ("spans", "waits")} for c in collectives
        ],
        "profile": _profile(plan, collectives),
        "dropped": {
            "spans": sum(plan.dropped.values()),
            "why": dict(sorted(plan.dropped.items())),
        },
    }
    return found


def _collectives(plan: Plan) -> list[Json]:
    groups: dict[tuple[Any, ...], list[Made]] = {}
    newest = {}
    for rank in range(plan.size):
        count: dict[tuple[str, ...], int] = {}
        mine = [s for s in plan.spans if s.rank == rank and s.cat == "collective"]
        newest[rank] = max((s.start for s in mine), default=0)
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
        asked = next((s.name["ranks"] for s in spans if "ranks" in s.name), range(plan.size))
        out.append(
            {
                "library": library, "group": group, "op": op, "tensor": tensor, "n": n,
                "ranks": [s.rank for s in spans],
                "absent": (absent := sorted(set(asked) - {s.rank for s in spans})),
                "given_up": (
                    given_up := [
                        s.rank
                        for s in spans
                        if absent and s.rank in plan.failed and s.end > newest[s.rank]
                    ]
                ),
                "arrivals": arrivals,
                "ends": [s.end for s in spans],
                "last": last,
                "straggler": straggler,
                "spread": last - min(arrivals),
                "cost": last - math.floor(statistics.median(others)) if others else 0,
                "spans": spans,
                "waits": [
                    s.end
                    if s.rank in given_up
                    else s.start
                    if last - s.end > plan.doubt(s.rank)
                    else min(last, s.end)
                    for s in spans
                ],
            }
        )  # fmt: skip
    out.sort(
        key=lambda c: (
            min(c["arrivals"]),
            *(c[k] for k in ("library", "group", "op", "tensor", "n")),
        )
    )
    return out


def _wall(plan: Plan) -> tuple[int, int]:
    if not plan.begun:
        if not plan.spans:
            return 0, 0
        return min(s.start for s in plan.spans), max(s.end for s in plan.spans)
    begin = min(plan.begun.values())
    ends = list(plan.ended.values())
    if set(plan.begun) - set(plan.ended):
        ends += [plan.last_words, *(s.end for s in plan.spans), *plan.begun.values()]
    return begin, max(begin, *ends)


Window = list[tuple[int, int]]  # intervals, in order


def _profile(plan: Plan, collectives: list[Json]) -> Json:
    w0, w1 = _wall(plan)
    run, own = _part(plan, collectives, [(w0, w1)] if w0 < w1 else [])
    shared = [c for c in collectives if len(c["ranks"]) > 1]
    sentence = diagnosis(run["wall"], run["ranks"], run["stragglers"], [c["op"] for c in shared],
                         own, any(c["given_up"] for c in collectives))  # fmt: skip
    found = {**run, "diagnosis": sentence}
    loops = _loops(plan, collectives)
    if not loops:
        return found
    loop, *others = sorted(loops, key=lambda each: -each["time"])
    ends = loop["ends"]
    cells = [s for s in plan.spans if s.rank == loop["rank"] and s.cat == "cell"]
    begun = [s.start for s in sorted(cells, key=lambda s: s.start)
             if s.start < ends[0] <= s.end][-1:]  # fmt: skip
    begin = max([w0, *begun, *(s.end for s in cells if s.end < ends[0])])
    warm = ends[loop["warm"] - 1]
    steps = loop["window"]
    early: dict[str, Window] = {"startup": [(w0, begin)], "warmup": [(begin, warm)], "loop": steps}
    taken = [each for window in early.values() for each in window]
    rest = [piece for piece in _instants(w0, w1, taken) if not _in(piece[0], taken)]
    phases = []
    for name, window in {**early, "rest": rest}.items():
        moments = [(a, b) for a, b in window if a < b]
        if not moments:
            continue
        part, own = _part(plan, collectives, moments)
        imports = sum(
            _length(moments, [(s.start, s.end) for s in plan.spans
                              if s.rank == rank and s.cat == "import"])
            for rank in range(plan.size)
        )  # fmt: skip
        edges = {"begin": moments[0][0], "end": moments[-1][1], "imports": imports // plan.size}
        phases.append({"phase": name, **edges, **part})
        if name == "loop":
            counted, title = len(steps), f"steps {loop['warm'] + 1:,}–{len(ends):,}"
            ops = [c["op"] for c in shared if _in(c["last"], moments)]
            words = diagnosis(part["wall"], part["ranks"], part["stragglers"], ops, own,
                              False, counted)  # fmt: skip
            named = _named(part["wall"], part["stragglers"], plan.size) if words else []
    before = [p for p in phases if p["phase"] in ("startup", "warmup")]
    took = sum(p["wall"] for p in before)
    if words:
        found["diagnosis"] = f"{title}: {words}"
        if took >= 1_000_000:
            found["diagnosis"] += f"; before that: {duration(took)}"
            if 10 * (imports := sum(p["imports"] for p in before)) >= took:
                found["diagnosis"] += f", {duration(imports)} of it imports"
    samples = sum(
        s.name["samples"] for s in plan.spans
        if s.cat in ("data", "user") and "samples" in s.name and _in(s.start, steps)
    )  # fmt: skip
    seconds = loop["time"] / 1e6
    found["loop"] = {
        "name": loop["name"], "line": loop["line"], "first": loop["warm"] + 1, "last": len(ends),
        "steps": counted, "apart": len(ends) - loop["warm"] - counted, "time": loop["time"],
        "rate": counted / seconds, "samples": samples / seconds if samples else None,
        "fewest": min(loop["counts"]), "most": max(loop["counts"]),
        "named": [s["rank"] for s in sorted(named, key=lambda s: s["rank"])],
        "others": [
            {"name": o["name"], "line": o["line"], "steps": len(o["window"]), "time": o["time"]}
            for o in others[:3]
        ],
    }  # fmt: skip
    found["phases"] = phases
    return found


def _loops(plan: Plan, collectives: list[Json]) -> list[Json]:
    """The loops, in order of precedence."""
    w0, w1 = _wall(plan)
    marks: dict[tuple[int, str, int | None], dict[int, list[int]]] = {}
    for rank in range(plan.size):
        cells = sorted((s for s in plan.spans if s.rank == rank and s.cat == "cell"),
                       key=lambda s: s.start)  # fmt: skip

        def line(moment: int, cells: list[Made] = cells) -> int | None:
            begun = [s for s in cells if s.start <= moment]
            return begun[-1].name.get("line") if begun and moment < begun[-1].end else None

        for s in plan.spans:
            if s.rank == rank and s.cat == "step":
                name = s.name["name"]
                keras = name in ("evaluate", "predict", "test batch", "predict batch")
                key = (1 if keras else 0, name, line(s.start))
                marks.setdefault(key, {}).setdefault(rank, []).append(s.end)
        calls = sorted(
            (s for c in collectives if len(c["ranks"]) > 1 for s in c["spans"] if s.rank == rank),
            key=lambda s: s.start,
        )
        patterns: dict[int | None, dict[tuple[Any, ...], list[Made]]] = {}
        for s in calls:
            n = s.name
            tensor = re.sub(r"(after )?#\d*$", "", n.get("tensor", ""))
            pattern = (n.get("library"), n.get("group"), n.get("op", n["name"]), tensor,
                       n.get("bytes"))  # fmt: skip
            patterns.setdefault(line(s.start), {}).setdefault(pattern, []).append(s)
        for where, found in patterns.items():
            sizes = [len(each) for each in found.values()]
            often = max(sizes, key=lambda n: (n * sizes.count(n), n))
            chosen = [each for each in found.values() if len(each) == often]
            last = max(chosen, key=lambda each: calls.index(each[0]))
            name = last[0].name
            tensor = re.sub(r"(after )?#\d*$", "", name.get("tensor", ""))
            title = f"{name.get('op', name['name'])} {tensor}".rstrip()
            marks.setdefault((2, title, where), {})[rank] = [s.end for s in last]
    for each in marks.values():
        for rank in list(each):
            each[rank] = sorted(end for end in each[rank] if w0 <= end <= w1)
            if len(each[rank]) < 5:
                del each[rank]
    loops: list[Json] = []
    believed = sorted((key for key in marks if marks[key]), key=lambda key: (
        key[0], -max(map(len, marks[key].values())), key[1], key[2] or 0))  # fmt: skip
    for key in believed:
        by_rank = marks[key]
        most = max(map(len, by_rank.values()))
        rank = min(r for r in by_rank if len(by_rank[r]) == most)
        ends = by_rank[rank]
        if any(
            2 * sum(o["ends"][0] <= end <= o["ends"][-1] for end in ends) > len(ends) for o in loops
        ):
            continue
        lengths = [b - a for a, b in itertools.pairwise(ends)]
        median = statistics.median_low(lengths)
        warm = 1
        while warm < len(ends) // 2 and 2 * lengths[warm - 1] > 3 * median:
            warm += 1
        window = []
        for a, b in itertools.pairwise(ends[warm - 1 :]):
            rows = _part(plan, collectives, [(a, b)])[0]["ranks"] if a < b else []
            worked = [b - a - r["waiting"] for r in rows if r["rank"] in by_rank and not r["idle"]]
            if min([b - a, *worked]) <= 2 * median:
                window.append((a, b))
        time = sum(b - a for a, b in window)
        if len(window) >= 3 and time >= 100_000:
            loops.append({"name": key[1], "line": key[2], "rank": rank, "ends": ends, "warm": warm,
                          "window": window, "time": time,
                          "counts": [len(each) for each in by_rank.values()]})  # fmt: skip
    return loops


def _part(
    plan: Plan, collectives: list[Json], window: Window
) -> tuple[Json, dict[str, dict[int, int]]]:
    """The profile's rows for a window, and each rank's time in the user's own spans, by name."""
    w0, w1 = _wall(plan)
    is_run = window == ([(w0, w1)] if w0 < w1 else [])
    any_wait = any(s.cat == "wait" for s in plan.spans)
    blocks: dict[int, list[tuple[int, int]]] = {}
    waits: dict[int, list[tuple[int, int]]] = {r: [] for r in range(plan.size)}
    moves: dict[int, list[tuple[int, int]]] = {r: [] for r in range(plan.size)}
    for c in collectives:
        for span, until in zip(c["spans"], c["waits"], strict=True):
            waits[span.rank].append((span.start, until))
            moves[span.rank].append((until, span.end))
    ranks, waiting_at = [], {}
    own: dict[str, dict[int, int]] = {}
    for rank in range(plan.size):
        mine = [s for s in plan.spans if s.rank == rank]
        begin, end = (w0, w1) if not plan.begun else (
            plan.begun.get(rank, w1), plan.ended.get(rank, w1))  # fmt: skip
        if plan.begun and rank not in plan.begun:
            begin = end = w1
        blocks[rank] = [
            (s.start, s.end)
            for s in mine
            if s.cat == "wait"
            or (s.cat == "collective" and s.name.get("library") == "hvd.tensorflow" and any_wait)
            or (s.cat == "collective" and "kernel" not in s.name and not any_wait)
        ]
        kernels = [(s.start, s.end) for s in mine if s.cat == "kernel"]
        blocks[rank] += [
            piece
            for s in mine
            if s.cat == "collective" and "kernel" in s.name and not any_wait
            for piece in _instants(s.start, s.end, kernels)
            if not _in(piece[0], kernels)
        ]
        loads = [(s.start, s.end) for s in mine if s.cat == "data"]
        set_up = [(s.start, s.end) for s in mine if s.cat == "setup"]
        sums = dict.fromkeys(("compute", "data", "waiting", "exposed", "idle"), 0)
        communication = 0
        waiting_at[rank] = []
        users = [s for s in mine if s.cat == "user"]
        for a, b in _pieces(
            window,
            [(begin, end)],
            blocks[rank],
            loads,
            set_up,
            waits[rank],
            moves[rank],
            [(s.start, s.end) for s in users],
        ):
            if not begin <= a < end or _in(a, set_up):
                what = "idle"
            elif _in(a, blocks[rank]):
                what = "waiting" if _in(a, waits[rank]) else "exposed"
            else:
                what = "data" if _in(a, loads) else "compute"
            sums[what] += b - a
            if what in ("data", "compute"):
                for name in {s.name["name"] for s in users if s.start <= a < s.end}:
                    times = own.setdefault(name, dict.fromkeys(range(plan.size), 0))
                    times[rank] += b - a
            if what == "waiting":
                waiting_at[rank].append((a, b))
            if what == "exposed" or (what != "idle" and _in(a, moves[rank])):
                communication += b - a
        ranks.append({"rank": rank, **sums, "communication": communication})
    belong = [c for c in collectives if is_run or _in(c["last"], window)]
    rows = {
        "wall": sum(b - a for a, b in window),
        "ranks": ranks,
        "kinds": _kinds(plan, collectives, belong, window),
        "stragglers": _stragglers(plan, collectives, belong, waiting_at, window),
    }
    return rows, own


def _kinds(plan: Plan, collectives: list[Json], belong: list[Json], window: Window) -> list[Json]:
    out = []
    for library, op in dict.fromkeys((c["library"], c["op"]) for c in collectives):
        every = [c for c in collectives if (c["library"], c["op"]) == (library, op)]
        mine = [c for c in belong if (c["library"], c["op"]) == (library, op)]
        by_rank: dict[int, list[tuple[int, int, int]]] = {}
        for c in every:
            for span, until in zip(c["spans"], c["waits"], strict=True):
                by_rank.setdefault(span.rank, []).append((span.start, until, span.end))
        sizes = [s.name["bytes"] for c in mine for s in c["spans"] if "bytes" in s.name]
        times = [
            sum(_length(window, [(s[a], s[b]) for s in spans]) for spans in by_rank.values())
            for a, b in ((0, 2), (0, 1), (1, 2))
        ]
        time, wait, transfer = (each // len(by_rank) for each in times)
        mean = sum(sizes) / len(sizes) if sizes else None
        done = sum(len(c["ranks"]) for c in mine)
        known = mean is not None and times[2] > 0
        if mine or time:
            out.append(
                {
                    "library": library, "op": op, "calls": len(mine), "bytes": mean,
                    "time": time, "wait": wait, "transfer": transfer,
                    "bandwidth": done * mean / (times[2] / 1e6) if known else None,
                }
            )  # fmt: skip
    return sorted(out, key=lambda k: (-k["time"], k["library"], k["op"]))


def _stragglers(
    plan: Plan,
    collectives: list[Json],
    belong: list[Json],
    waiting: dict[int, list[tuple[int, int]]],
    window: Window,
) -> list[Json]:
    out = []
    of = sum(len(c["ranks"]) > 1 for c in belong)
    for rank in range(plan.size):
        mine = [c for c in collectives if len(c["ranks"]) > 1 and c["straggler"] == rank]
        sure = plan.doubt(rank)  # a delay of at most that may be an error of clocks
        costs = [(c["last"] - max(0, c["cost"] - sure), c["last"]) for c in mine]
        others = [w for other, found in waiting.items() if other != rank for w in found]
        cost = sum(
            b - a for a, b in _pieces(window, costs, others) if _in(a, costs) and _in(a, others)
        )
        if cost:
            last = sum(c["spread"] > 0 for c in mine if c in belong)
            out.append({"rank": rank, "last": last, "of": of, "cost": cost})
    return sorted(out, key=lambda s: (-s["cost"], s["rank"]))


def _named(wall: int, stragglers: list[Json], ranks: int) -> list[Json]:
    top = stragglers[0]["cost"] if stragglers else 0
    named = [s for s in stragglers if 2 * s["cost"] >= top]
    return [] if top < 10_000 or 100 * top < 3 * wall or 2 * len(named) > ranks else named


def diagnosis(
    wall: int,
    ranks: list[Json],
    stragglers: list[Json],
    ops: list[str],
    own: dict[str, dict[int, int]],
    given_up: bool,
    steps: int = 0,
) -> str:
    """The diagnosis in one sentence, by the rules of docs/profile-rules.md."""
    if len(ranks) < 2 or not ops or wall < 100_000:
        return ""
    whole = "a step" if steps else "the run"

    def of_step(time: int) -> str:
        step = wall / steps
        if step >= 10_000_000:
            return f"{_fixed(time, steps * 1_000_000, 1)} of {_fixed(wall, steps * 1_000_000, 1)} s"
        digits = 1 if step < 100_000 else 0
        return f"{_fixed(time, steps * 1_000, digits)} of {_fixed(wall, steps * 1_000, digits)} ms"

    named = _named(wall, stragglers, len(ranks))
    if not named:
        parts = ["no rank stands out"]
        waiting = sum(r["waiting"] for r in ranks) / len(ranks)
        exposed = sum(r["exposed"] for r in ranks) / len(ranks)
        if waiting >= 0.1 * wall and waiting >= exposed:
            why = "ranks that never arrive" if given_up else "each other in turn"
            parts.append(f"they wait for {why}, {_percent(waiting, wall)} of {whole}")
        elif exposed >= 0.2 * wall:
            share = _percent(exposed, wall)
            parts.append(f"{share} of {whole} is exposed communication (nothing overlaps it)")
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
        f" and {'costs' if one else 'cost'} {_percent(cost, wall)} of {whole}"
    )
    spent = []
    for name, times in own.items():
        mine = sum(times[r] for r in who) // len(who)
        rest = math.floor(statistics.median(t for r, t in times.items() if r not in who))
        plain = 0 < len(name) <= 40 and not any(ord(c) < 32 or ord(c) == 127 for c in name)
        if plain and 5 * mine >= 6 * rest and 2 * (mine - rest) * len(who) >= cost:
            spent.append((-mine / rest if rest else -math.inf, rest - mine, name, mine, rest))
    if spent:
        _, _, name, mine, rest = min(spent)
        verb = "it spends" if one else "they spend"
        if not rest:
            part = f", {of_step(mine)}" if steps else ""
            return f"{sentence}; only {verb} time in {name}{part}"
        if steps:
            return (
                f"{sentence}; {verb} {of_step(mine)} in {name}, {_times(mine, rest)}"
                " the others' time"
            )
        return f"{sentence}; {verb} {_times(mine, rest)} the others' time in {name}"
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
        only = f"{sentence}; only {'it' if one else 'they'} {verb}"
        return f"{only}, {of_step(mine)}" if steps else only
    own = ("its" if one else "their") + (" data loading takes" if data else " own computing takes")
    often = f"{of_step(mine)}, {_times(mine, rest)}" if steps else _times(mine, rest)
    return f"{sentence}; {own} {often} the others'"


def _fixed(part: int, of: int, digits: int) -> str:
    return f"{math.floor(10**digits * part / of + 0.5) / 10**digits:.{digits}f}"


def _percent(part: float, whole: float) -> str:
    return f"{math.floor(100 * part / whole + 0.5)} %"


def _times(mine: int, rest: int) -> str:
    if mine >= 10 * rest:
        return f"{math.floor(mine / rest + 0.5)} ×"
    return f"{math.floor(10 * mine / rest + 0.5) / 10:.1f} ×"


def _instants(w0: int, w1: int, *sets: Iterable[tuple[int, int]]) -> list[tuple[int, int]]:
    """Split [w0, w1] wherever an interval in `sets` begins or ends."""
    cuts = {w0, w1, *(edge for spans in sets for span in spans for edge in span if w0 < edge < w1)}
    places = sorted(cuts)
    return list(itertools.pairwise(places))


def _pieces(window: Window, *sets: Iterable[tuple[int, int]]) -> list[tuple[int, int]]:
    """Split the window wherever an interval in `sets` begins or ends."""
    every = [list(each) for each in sets]
    return [piece for a, b in window for piece in _instants(a, b, *every)]


def _in(t: int, spans: Iterable[tuple[int, int]]) -> bool:
    return any(a <= t < b for a, b in spans)


def _length(window: Window, spans: list[tuple[int, int]]) -> int:
    return sum(b - a for a, b in _pieces(window, spans) if _in(a, spans))
