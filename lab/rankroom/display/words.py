"""The phrases that describe a run, the same in a notebook, a terminal and the CLI."""

from __future__ import annotations

from collections.abc import Iterable

from rankroom.display.text import clip, one_line
from rankroom.record.model import RunInfo
from rankroom.text.amounts import duration
from rankroom.text.rank_ranges import name_ranks


def headline(run: RunInfo) -> str:
    """Return one line on how the run went: `4 ranks · done in 12.4 s`."""
    parts = [ranks_words(run), state_words(run)]
    if run.failure is not None:
        why = error_words(run.failure.ename, run.failure.evalue, 200)
        line = run.failure.cell_line
        parts.append(f"{why} (cell line {line})" if isinstance(line, int) else why)
    if run.name:
        parts.append(one_line(run.name, 40))
    return " · ".join(parts)


def error_words(name: str, value: str, most: int) -> str:
    """Return `ValueError: no such rank`; of an error without a message, only its name."""
    said = one_line(value, most)
    return f"{one_line(name, 80)}: {said}" if said else one_line(name, 80)


def ranks_words(run: RunInfo) -> str:
    """Return `4 ranks`, or `ranks 0,2 of 4` if the run left some out."""
    count = len(run.ranks) or run.size
    if count < run.size:
        return f"{rank_label(rank.rank for rank in run.ranks)} of {run.size}"
    return "1 rank" if count == 1 else f"{count} ranks"


def state_words(run: RunInfo) -> str:
    """Return the state in words, with the time it took."""
    if run.state == "lost":
        return "lost: the process that wrote this record ended before the run did"
    if run.state == "running":
        return "running"
    took = "" if run.end is None else duration(run.end - run.start)
    if run.state == "done":
        return f"done in {took}" if took else "done"
    where = "" if run.failure is None else f" on rank {run.failure.rank}"
    return f"{clip(run.state, 20)}{where}" + (f" after {took}" if took else "")


def prompt_words(run: RunInfo) -> str:
    """Return which ranks wait for the user, and where; empty if none does."""
    groups: dict[tuple[bool, str], list[int]] = {}
    for prompt in run.prompts if run.state == "running" else ():
        place = f" at {one_line(prompt.place, 60)}" if prompt.place else ""
        groups.setdefault((prompt.kind == "debugger", place), []).append(prompt.rank)
    return "; ".join(
        f"{rank_label(ranks)} {_ASKS[in_debugger][len(ranks) > 1]}{place}"
        for (in_debugger, place), ranks in groups.items()
    )


def rank_label(ranks: Iterable[int]) -> str:
    """Return `rank 2` or `ranks 0–3`."""
    return clip(name_ranks(list(ranks)), 66)


def counted(count: int, noun: str) -> str:
    """Return `1 more line` or `1,200 more lines`."""
    return f"{count:,} {noun}{'' if count == 1 else 's'}"


_ASKS = {
    True: ("is in the debugger", "are in the debugger"),
    False: ("waits for input", "wait for input"),
}


def whole_log(run: RunInfo) -> str:
    """Return the command that shows everything."""
    return f"rankroom runs show {run.id}"
