"""Compare the ranks' paths through a cell, and warn about collectives that not all reach."""

from __future__ import annotations

import ast
import re
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import product, takewhile
from typing import Any

from rankroom.lint.expressions import Call, CellTooLong
from rankroom.lint.names import JOINABLE_COLLECTIVES
from rankroom.lint.values import opposite
from rankroom.lint.walk import Exit, Walk
from rankroom.text.rank_ranges import name_ranks

MAX_WARNINGS = 5  # warnings for one cell
MAX_WALKED_RANKS = 8  # of a large cluster, ranks whose paths are walked
MAX_CONDITIONS = 6  # undecided conditions of which all outcomes are compared
MAX_CONDITION_CHARS = 60  # characters of a condition in a warning
_WRAPPER_MAGICS = ("time", "timeit", "capture", "prun")  # magics that run their cell in place

# Parts of the names by which a cell tells ranks apart, and of those of collectives.
_RANK_WORDS = (
    "rank",
    "main",
    "master",
    "root",
    "chief",
    "primary",
    "coord",
    "leader",
    "procid",
    "zero",
)
_COLLECTIVE_WORDS = re.compile(
    r"all_?(?:reduce|gather|to_?all)|reduce|gather|scatter|broadcast|barrier|\bjoin\b|process_set"
    r"|new_(?:sub)?group|\b(?:init|shutdown)\(|init_process_group|[dD]istributed|DDP\b"
)


@dataclass(frozen=True)
class Warning:
    """A line of the cell (counted from 1) and a warning about it."""

    line: int
    text: str


def warnings(source: str, ranks: Sequence[int] | None, size: int) -> list[Warning]:
    """Return warnings about collectives in which ranks may wait for others that never reach them.

    `source` is the cell as plain Python; `ranks` are those that it is for, None for all of `size`.
    There is no warning unless it is certain that conditions differ. Raises SyntaxError.
    """
    some = sorted(set(ranks)) if ranks is not None and len(set(ranks)) < size else None
    if size < 2 or not _worth_a_look(source, some is not None):
        return []
    body, first, source = _unwrapped(ast.parse(source).body, source)
    try:
        found = _subset(source, body, some, size) if some else _all(source, body, size)
    except (CellTooLong, RecursionError):
        return []
    unique = dict.fromkeys(Warning(each.line + first, each.text) for each in found)
    return [
        Warning(each.line, f"cell line {each.line}: {each.text}")
        for each in sorted(unique, key=lambda each: each.line)[:MAX_WARNINGS]
    ]


def _worth_a_look(source: str, some: bool) -> bool:
    """Return whether a cell's text mentions ranks and collectives. Most cells do not, and are
    delayed no further."""
    if _COLLECTIVE_WORDS.search(source) is None:
        return False
    low = source.lower()
    return some or any(word in low for word in _RANK_WORDS)


def _unwrapped(body: list[ast.stmt], source: str) -> tuple[list[ast.stmt], int, str]:
    """Return the cell inside `%%time` and the like, how many lines are above it, and its source."""
    only = body[0] if len(body) == 1 else None
    call = only.value if isinstance(only, ast.Expr) else None
    if isinstance(call, ast.Call) and getattr(call.func, "attr", "") == "run_cell_magic":
        given = [each.value for each in call.args if isinstance(each, ast.Constant)]
        if len(given) == 3 and given[0] in _WRAPPER_MAGICS and isinstance(given[2], str):
            try:
                return ast.parse(given[2]).body, 1, given[2]
            except SyntaxError:
                return [], 0, ""
    return body, 0, source


def _all(source: str, body: list[ast.stmt], size: int) -> list[Warning]:
    lines = source.encode().split(b"\n")
    ranks = _telling(source, size)
    if not _may_diverge(Walk(lines, ranks[0], size), body):
        return []  # the other ranks take the same path: most cells need one walk
    walks = [Walk(lines, rank, size) for rank in ranks]
    found = _differences(walks, [walk.through_cell(body) for walk in walks])
    return found + _through_uncalled(walks)


def _may_diverge(walk: Walk, body: list[ast.stmt]) -> bool:
    """Return whether other ranks may take other paths than this one."""
    walk.through_cell(body)
    if not walk.may_diverge:
        _through_uncalled([walk])
    return walk.may_diverge


def _through_uncalled(walks: list[Walk]) -> list[Warning]:
    """Return warnings about functions that the cell defines but does not call."""
    called = set().union(*(walk.called for walk in walks))
    found: list[tuple[ast.AST, list[Warning], set[ast.AST]]] = []
    for function, owner in walks[0].defined:
        if function not in called:
            before = [walk.called for walk in walks]
            for walk in walks:
                walk.called = set()
            ways = [walk.through_function(function, owner) for walk in walks]
            calls = set().union(*(walk.called for walk in walks)) - {function}
            found.append((function, _differences(walks, ways), calls))
            for walk, others in zip(walks, before, strict=True):
                walk.called |= others
    # A function that another one calls was checked there, with the arguments of the call. Functions
    # that only call each other come last.
    inner = set().union(*(calls for *_, calls in found))
    told, seen = [], set[ast.AST]()
    for function, some, calls in sorted(found, key=lambda each: each[0] in inner):
        if function not in seen:
            told += some
            seen |= calls | {function}
    return told


def _telling(source: str, size: int) -> list[int]:
    """Return ranks that represent all: the first two, the last, and those next to numbers in the
    cell."""
    if size <= MAX_WALKED_RANKS:
        return list(range(size))
    numbers = {int(each) for each in re.findall(r"\b\d{1,4}\b", source)}
    near = {each + by for each in numbers for by in (-1, 0, 1)}
    chosen = [0, 1, size - 1, *sorted(near & set(range(2, size - 1)))]
    return sorted(chosen[:MAX_WALKED_RANKS])


def _differences(walks: list[Walk], ways: list[list[Call]]) -> list[Warning]:
    ways = _evened_out(ways)
    met = [[(call.name, call.path) for call in way] for way in ways]
    if all(each == met[0] for each in met) or _alike_whatever_holds(ways):
        return []
    counts = [Counter(each) for each in met]
    if all(each == counts[0] for each in counts):
        return _other_order(ways)
    least = {key: min(each[key] for each in counts) for each in counts for key in each}
    sites = [Counter(_site(call) for call in way) for way in ways]
    exits = [each for walk in walks for each in walk.exits]
    apart = _as_often_as_it_takes(ways)
    out: dict[Any, Call] = {}
    for way, count, mine in zip(ways, counts, sites, strict=True):
        over = {key: count[key] - least[key] for key in count}
        for call in reversed(way):
            key, site = (call.name, call.path), _site(call)
            if (
                call.name not in apart
                and over[key] > 0
                and mine[site] > min(each[site] for each in sites)
            ):
                over[key] -= 1
                # The condition that separates the ranks may be known on one of them only.
                place = (call.line, call.column, call.call_stack)
                if place not in out or call.conditions:
                    out[place] = call
    return [_words(call, exits) for call in out.values()]


def _alike_whatever_holds(ways: list[list[Call]]) -> bool:
    """Return whether all ranks reach the same collectives, however the conditions turn out that are
    decided alike on all of them: one rank may reach a barrier under `if` and under its `else`,
    and another one outside of both."""
    # What all of them reach in one place is alike in any case.
    shared = set.intersection(*({_site(call) for call in way} for way in ways))
    under = [call for way in ways for call in way if call.path and _site(call) not in shared]
    conditions = {text.removeprefix("not ") for call in under for text in call.path}
    # In different functions, the same words may stand for different things.
    if len(conditions) > MAX_CONDITIONS or len({call.call_stack for call in under}) > 1:
        return False
    for outcome in product((True, False), repeat=len(conditions)):
        holds = {
            text if is_so else opposite(text)
            for text, is_so in zip(conditions, outcome, strict=True)
        }
        met = {
            tuple(
                _site(call) if _site(call) in shared else call.name
                for call in way
                if _site(call) in shared or call.path <= holds
            )
            for way in ways
        }
        if len(met) > 1:
            return False
    return True


def _evened_out(ways: list[list[Call]]) -> list[list[Call]]:
    """Drop the all-reduces before the last hvd.join() of all ranks: some may do more of them."""
    joins = [[place for place, call in enumerate(way) if call.name == "hvd.join"] for way in ways]
    if not joins[0] or len({len(each) for each in joins}) > 1:
        return ways
    return [
        [
            call
            for n, call in enumerate(way)
            if n > each[-1] or not JOINABLE_COLLECTIVES.fullmatch(call.name)
        ]
        for way, each in zip(ways, joins, strict=True)
    ]


def _as_often_as_it_takes(ways: list[list[Call]]) -> set[str]:
    """Return the collectives that every rank calls in code of its own and some call in a loop, such
    as one rank sending data that the others receive until it says that there is no more."""
    places = [{(call.line, call.column, call.call_stack) for call in way} for way in ways]
    shared = set.intersection(*places)
    own = [
        [call for call in way if (call.line, call.column, call.call_stack) not in shared]
        for way in ways
    ]
    names = set.intersection(*({call.name for call in way} for way in own))
    return names & {call.name for way in own for call in way if call.again}


def _site(call: Call) -> Any:
    return (call.line, call.column, call.path, call.call_stack)


def _other_order(ways: list[list[Call]]) -> list[Warning]:
    """Return a warning if ranks reach the same collectives in different orders: each then waits for
    the others in another one."""
    for way in ways[1:]:
        for mine, other in zip(ways[0], way, strict=True):
            if mine.name != other.name and "async" not in mine.written + other.written:
                return [
                    Warning(
                        mine.line,
                        f"{mine.written} and, on other ranks, {other.written} (line {other.line}) "
                        "come first: each waits for the other (use one order on all ranks)",
                    )
                ]
    return []


def _words(call: Call, exits: list[Exit]) -> Warning:
    if call.conditions:
        condition = call.conditions[-1]
        line, what = _seen_from(call, condition.depth)
        where = f"under `{_short(condition.text)}`"
        remedy = f"move it {condition.way_out}"
    elif exits := [e for e in exits if _leaves_out(e, call)] or exits:
        way_out = next((e for e in exits if e.line < call.line), exits[0])
        line, what = _seen_from(call, _shared(call, way_out))
        where = (
            f"after `{way_out.how}` under `{_short(way_out.condition.text)}`, line {way_out.line},"
        )
        remedy = "have all ranks leave together"
    else:
        line, what, where, remedy = call.line, call.written, "here", "call it on all of them"
    if call.name == "hvd.shutdown":
        return Warning(line, f"{what} {where} ends Horovod on the other ranks too ({remedy})")
    return Warning(
        line,
        f"{what} {where} is not reached by every rank: the ranks that reach it will wait "
        f"({remedy})",
    )


def _seen_from(call: Call, depth: int) -> tuple[int, str]:
    """Return the line to name, and the words for the collective, as seen from inside the first
    `depth` enclosing calls."""
    if len(call.call_stack) <= depth:
        return call.line, call.written
    line, name = call.call_stack[depth]
    return line, f"{_short(name)}(), which calls {call.written},"


def _leaves_out(way_out: Exit, call: Call) -> bool:
    """Return whether a rank that leaves at `way_out` may miss the call: a return, for one, only
    ends its function."""
    ends = way_out.how in ("raise", "exit")
    return ends or call.call_stack[: len(way_out.call_stack)] == way_out.call_stack


def _shared(call: Call, way_out: Exit) -> int:
    """Return how many calls of the cell's functions enclose both."""
    both = zip(call.call_stack, way_out.call_stack, strict=False)
    return len(list(takewhile(lambda pair: pair[0] == pair[1], both)))


def _subset(source: str, body: list[ast.stmt], ranks: list[int], size: int) -> list[Warning]:
    """Return warnings about a cell on some of the ranks: collectives of all are refused there."""
    lines = source.encode().split(b"\n")
    out = []
    for rank in ranks[:MAX_WALKED_RANKS]:
        for call in Walk(lines, rank, size).through_cell(body):
            # An init may have been done already, and a shutdown waits for no rank.
            if call.name not in ("hvd.init", "hvd.shutdown", "dist.init_process_group"):
                line, what = _seen_from(call, 0)
                of = "process_set" if call.name.startswith("hvd.") else "group"
                out.append(
                    Warning(
                        line,
                        f"{what} is for all {size} ranks and will be refused in a cell on "
                        f"{name_ranks(ranks)} (run it on all of them, or give it a {of})",
                    )
                )
    return out


def _short(text: str) -> str:
    text = " ".join(text.split())
    return text if len(text) <= MAX_CONDITION_CHARS else text[: MAX_CONDITION_CHARS - 1] + "…"
