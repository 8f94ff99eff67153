"""What must be derived from a trace, found by looking at every instant between two changes.

Span by span, slowly, and unlike how the package and the extension do it, so that the three check
each other. The rules are in docs/profile-rules.md.
"""

from __future__ import annotations

import itertools
import math
import statistics
from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import Any

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
class Plan:
    """A record of `size` ranks: its sound spans, when each rank ran, and what must be dropped."""

    size: int
    spans: list[Made] = field(default_factory=list)
    dropped: dict[str, int] = field(default_factory=dict)
    begun: dict[int, int] = field(default_factory=dict)
    ended: dict[int, int] = field(default_factory=dict)
    failed: set[int] = field(default_factory=set)  # ranks on which the cell did not end by itself
    last_words: int = -(10**15)  # the latest time in the record, for runs that go on


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
    for rank in range(plan.size):
        count: dict[tuple[str, ...], int] = {}
        mine = [s for s in plan.spans if s.rank == rank and s.cat == "collective"]
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
                    given_up := [s.rank for s in spans if absent and s.rank in plan.failed]
                ),
                "arrivals": arrivals,
                "ends": [s.end for s in spans],
                "last": last,
                "straggler": straggler,
                "spread": last - min(arrivals),
                "cost": last - math.floor(statistics.median(others)) if others else 0,
                "spans": spans,
                "waits": [
                    s.end if s.rank in given_up else s.start + max(0, min(last, s.end) - s.start)
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


def _profile(plan: Plan, collectives: list[Json]) -> Json:
    w0, w1 = _wall(plan)
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
            or (s.cat == "collective" and s.name.get("library") == "hvd.tensorflow")
            or (s.cat == "collective" and not any_wait)
        ]
        loads = [(s.start, s.end) for s in mine if s.cat == "data"]
        sums = dict.fromkeys(("compute", "data", "waiting", "exposed", "idle"), 0)
        communication = 0
        waiting_at[rank] = []
        for a, b in _instants(
            w0,
            w1,
            [(begin, end)],
            blocks[rank],
            loads,
            waits[rank],
            moves[rank],
            [(s.start, s.end) for s in mine if s.cat == "user"],
        ):
            if not begin <= a < end:
                what = "idle"
            elif _in(a, blocks[rank]):
                what = "waiting" if _in(a, waits[rank]) else "exposed"
            else:
                what = "data" if _in(a, loads) else "compute"
            sums[what] += b - a
            if what in ("data", "compute"):
                for name in {s.name["name"] for s in mine if s.cat == "user"
                             and s.start <= a < s.end}:  # fmt: skip
                    times = own.setdefault(name, dict.fromkeys(range(plan.size), 0))
                    times[rank] += b - a
            if what == "waiting":
                waiting_at[rank].append((a, b))
            if what == "exposed" or (what != "idle" and _in(a, moves[rank])):
                communication += b - a
        ranks.append({"rank": rank, **sums, "communication": communication})
    kinds = _kinds(plan, collectives, w0, w1)
    stragglers = _stragglers(plan, collectives, waiting_at, w0, w1)
    shared = [c for c in collectives if len(c["ranks"]) > 1]
    return {
        "wall": w1 - w0,
        "ranks": ranks,
        "kinds": kinds,
        "stragglers": stragglers,
        "diagnosis": diagnosis(w1 - w0, ranks, stragglers, [c["op"] for c in shared], own,
                               any(c["given_up"] for c in collectives)),
    }  # fmt: skip


def _kinds(plan: Plan, collectives: list[Json], w0: int, w1: int) -> list[Json]:
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
    plan: Plan, collectives: list[Json], waiting: dict[int, list[tuple[int, int]]], w0: int, w1: int
) -> list[Json]:
    shared = [c for c in collectives if len(c["ranks"]) > 1]
    out = []
    for rank in range(plan.size):
        mine = [c for c in shared if c["straggler"] == rank]
        costs = [(c["last"] - c["cost"], c["last"]) for c in mine]
        others = [w for other, found in waiting.items() if other != rank for w in found]
        cost = sum(
            b - a for a, b in _instants(w0, w1, costs, others) if _in(a, costs) and _in(a, others)
        )
        if cost:
            last = sum(c["spread"] > 0 for c in mine)
            out.append({"rank": rank, "last": last, "of": len(shared), "cost": cost})
    return sorted(out, key=lambda s: (-s["cost"], s["rank"]))


def diagnosis(
    wall: int,
    ranks: list[Json],
    stragglers: list[Json],
    ops: list[str],
    own: dict[str, dict[int, int]],
    given_up: bool,
) -> str:
    """The sentence, by the rules of the README."""
    if len(ranks) < 2 or not ops or wall < 100_000:
        return ""
    top = stragglers[0]["cost"] if stragglers else 0
    named = [s for s in stragglers if 2 * s["cost"] >= top]
    if top < 10_000 or 100 * top < 3 * wall or 2 * len(named) > len(ranks):
        parts = ["no rank stands out"]
        waiting = sum(r["waiting"] for r in ranks) / len(ranks)
        exposed = sum(r["exposed"] for r in ranks) / len(ranks)
        if waiting >= 0.1 * wall and waiting >= exposed:
            why = "ranks that come no more" if given_up else "each other in turn"
            parts.append(f"they wait for {why}, {_percent(waiting, wall)} of the run")
        elif exposed >= 0.2 * wall:
            share = _percent(exposed, wall)
            parts.append(f"{share} of the run is communication that nothing overlaps")
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
        f" and {'costs' if one else 'cost'} {_percent(cost, wall)} of the run"
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
            return f"{sentence}; only {verb} time in {name}"
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
