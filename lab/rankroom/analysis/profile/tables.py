"""A profile as tables: headings and cells as text, aligned with spaces or as HTML."""

from __future__ import annotations

import html
from collections.abc import Sequence
from typing import NamedTuple

from rankroom.analysis.profile.diagnosis import percent
from rankroom.analysis.profile.phases import TITLES, Phase
from rankroom.analysis.profile.rows import Kind, Loop, RankMemory, RankTimes, Straggler
from rankroom.text.amounts import duration, size

# The names shown for the parts of a rank's time, in the order shown.
PART_TITLES = {
    "compute": "computing",
    "data": "data loading",
    "waiting": "waiting for others",
    "exposed": "exposed communication",
    "idle": "idle",
}
# Reasons why spans were left out.
DROP_REASONS = {
    "length": "in columns of unequal length",
    "negative": "with negative durations",
    "number": "with times that are not whole numbers",
    "far": "farther than ten years away",
    "name": "without a name",
    "rank": "of ranks that the run does not have",
}


class Table(NamedTuple):
    """Headings and cells; the first column is left-aligned, the others right-aligned."""

    head: Sequence[str]
    rows: Sequence[Sequence[str]]

    def text(self) -> str:
        """Return the table aligned with spaces, with a line under the headings."""
        lines = [self.head, *self.rows]
        widths = [max(len(line[i]) for line in lines) for i in range(len(self.head))]
        first, *others = widths
        shown = [
            "  ".join(
                [
                    f"{line[0]:<{first}}",
                    *(f"{c:>{w}}" for c, w in zip(line[1:], others, strict=True)),
                ]
            ).rstrip()
            for line in lines
        ]
        return "\n".join([shown[0], "─" * (sum(widths) + 2 * len(others)), *shown[1:]])

    def html(self) -> str:
        """Return the table as HTML, without classes or colors, for light and dark themes."""
        rows = [_row("th", self.head), *(_row("td", row) for row in self.rows)]
        return f'<table style="{_TABLE}">{"".join(rows)}</table>'


def of_ranks(wall: int, rows: Sequence[RankTimes], most: int | None = None, of: str = "") -> Table:
    """Return time and share of each rank; of more than `most` ranks, only their mean and extremes.

    `of` says what the table is about, if there are several.
    """
    shown: list[tuple[str, RankTimes]] = [(str(row.rank), row) for row in rows]
    if most is not None and len(rows) > most:
        ordered = sorted(rows, key=lambda row: (row.waiting, row.rank))
        kept = sorted({row.rank for row in (*ordered[: most // 2], *ordered[-(most // 2 - 1) :])})
        shown = [("mean", _mean(rows)), *((str(row.rank), row) for row in rows if row.rank in kept)]
    head = [_headed("rank", of), *PART_TITLES.values(), "communication in all"]
    names = [*PART_TITLES, "communication"]
    cells = [[label, *(_share(getattr(row, n), wall) for n in names)] for label, row in shown]
    return Table(head, cells)


def of_kinds(wall: int, rows: Sequence[Kind], of: str = "") -> Table:
    """Return the flat profile of collectives."""
    times = ("time per rank", "waiting per rank", "transfer per rank")
    head = [_headed("collective", of), "calls", "bytes", *times, "bandwidth"]
    cells = [
        [
            f"{row.library} {row.op}".strip(),
            f"{row.calls:,}",
            "–" if row.bytes is None else size(row.bytes),
            *(_share(time, wall) for time in (row.time, row.wait, row.transfer)),
            "–" if row.bandwidth is None else f"{size(row.bandwidth)}/s",
        ]
        for row in rows
    ]
    return Table(head, cells)


def of_stragglers(wall: int, rows: Sequence[Straggler], of: str = "") -> Table:
    """Return which ranks came last, how often, and what that cost."""
    head = [_headed("arrives last", of), "collectives", "share", "cost (another rank waits)"]
    cells = [
        [f"rank {row.rank}", f"{row.last:,} of {row.of:,}", percent(row.last, row.of),
         _share(row.cost, wall)]
        for row in rows
    ]  # fmt: skip
    return Table(head, cells)


def of_phases(wall: int, phases: Sequence[Phase]) -> Table:
    """Return how long each phase took, and where a rank's time went in it on average."""
    head = ["phase", "time", *PART_TITLES.values()]
    cells = []
    for phase in phases:
        mean = _mean(phase.ranks)
        shares = [_share(getattr(mean, part), phase.wall) for part in PART_TITLES]
        cells.append([TITLES.get(phase.phase, phase.phase), _share(phase.wall, wall), *shares])
    return Table(head, cells)


def of_memory(rows: Sequence[RankMemory]) -> Table:
    """Return each rank's memory over the run."""
    head = ["memory of rank", "at start", "at end", "peak", "rise"]
    has_gpus = any(row.gpu_peak is not None for row in rows)
    if has_gpus:
        head.append("peak of its GPU")
    cells = []
    for row in rows:
        sizes = [row.first, row.last, row.peak, row.rise, *([row.gpu_peak] if has_gpus else [])]
        cells.append([str(row.rank), *("–" if each is None else size(each) for each in sizes)])
    return Table(head, cells)


def of_loop(loop: Loop) -> str:
    """Return the speed of the loop, what does not count in it, and other loops."""
    line = f" (line {loop.line})" if loop.line is not None else ""
    found = [f"{loop.title} end with {loop.name}{line}: {_rate(loop.rate)} steps/s"]
    if loop.samples is not None:
        found.append(f"{_rate(loop.samples)} samples/s")
    if loop.apart:
        many = "step" if loop.apart == 1 else "steps"
        found.append(
            f"not counting {loop.apart:,} {many} in which all ranks also did something else"
        )
    if loop.fewest < loop.most:
        found.append(f"ranks did between {loop.fewest:,} and {loop.most:,} steps")
    for other in loop.others:
        line = f" (line {other.line})" if other.line is not None else ""
        took = f"{other.steps:,} steps in {duration(other.time)}"
        found.append(f"another loop, with {other.name}{line}: {took}")
    return " · ".join(found)


def dropped(reasons: dict[str, int]) -> str:
    """Return how many spans were left out and why; "" if none."""
    count = sum(reasons.values())
    if not count:
        return ""
    why = ", ".join(f"{n:,} {DROP_REASONS.get(reason, reason)}" for reason, n in reasons.items())
    return f"{count:,} unsound {'span' if count == 1 else 'spans'} left out: {why}"


def _headed(what: str, of: str) -> str:
    return f"{what}, {of}" if of else what


def _mean(rows: Sequence[RankTimes]) -> RankTimes:
    values = zip(*(vars(row).values() for row in rows), strict=True)
    return RankTimes(*(sum(each) // len(rows) for each in values))


def _rate(rate: float) -> str:
    """Format a rate with three digits, or as a whole number."""
    return f"{rate:,.0f}" if rate >= 99.95 else f"{rate:.3g}"


def _share(time: int, wall: int) -> str:
    return f"{duration(time)} {percent(time, wall):>5}"


def _row(tag: str, cells: Sequence[str]) -> str:
    first, *others = (html.escape(" ".join(cell.split())) for cell in cells)
    left = f'<{tag} style="{_LEFT}">{first}</{tag}>'
    if tag == "td":
        others = [cell.replace(" ", _NO_BREAK_SPACE) for cell in others]
    else:
        others = [cell.replace("-", _NO_BREAK_HYPHEN) for cell in others]
    right = "".join(f'<{tag} style="{_RIGHT}">{cell}</{tag}>' for cell in others)
    return f"<tr>{left}{right}</tr>"


# Keep a number with its unit, and `speed-up`, on one line: by characters, as a page's own styles
# override ours.
_NO_BREAK_SPACE, _NO_BREAK_HYPHEN = "\u00a0", "\u2011"
_TABLE = "border-collapse:collapse;margin:4px 0;font-size:90%"
_LEFT = "text-align:left;padding:1px 8px 1px 2px"
_RIGHT = "text-align:right;padding:1px 8px"
