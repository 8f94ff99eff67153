"""A profile as tables: headings and cells in words, aligned as text or as HTML."""

from __future__ import annotations

import html
from collections.abc import Sequence
from typing import NamedTuple

from rankroom.analysis.profile.diagnosis import percent
from rankroom.analysis.profile.rows import Kind, RankTimes, Straggler
from rankroom.text.amounts import duration, size

# What the times of a rank are called, in the order in which they are shown.
PARTS = {
    "compute": "computing",
    "data": "data loading",
    "waiting": "waiting for others",
    "exposed": "exposed communication",
    "idle": "idle",
}
# Why spans were left out.
WHY = {
    "length": "in columns of unequal length",
    "negative": "with negative durations",
    "number": "with times that are no whole numbers",
    "far": "farther than ten years away",
    "name": "without a name",
    "rank": "of ranks that the run does not have",
}


class Table(NamedTuple):
    """Headings and cells; the first column is left-aligned, the others right."""

    head: Sequence[str]
    rows: Sequence[Sequence[str]]

    def text(self) -> str:
        """Aligned by spaces, under a line."""
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
        """Without classes or colours, for light and for dark."""
        rows = [_row("th", self.head), *(_row("td", row) for row in self.rows)]
        return f'<table style="{_TABLE}">{"".join(rows)}</table>'


def of_ranks(wall: int, rows: Sequence[RankTimes], most: int | None = None) -> Table:
    """Time and share of each rank; of more than `most` only their mean and the extremes."""
    shown: list[tuple[str, RankTimes]] = [(str(row.rank), row) for row in rows]
    if most is not None and len(rows) > most:
        ordered = sorted(rows, key=lambda row: (row.waiting, row.rank))
        kept = sorted({row.rank for row in (*ordered[: most // 2], *ordered[-(most // 2 - 1) :])})
        mean = RankTimes(
            *(sum(vals) // len(rows) for vals in zip(*map(_values, rows), strict=True))
        )
        shown = [("mean", mean), *((str(row.rank), row) for row in rows if row.rank in kept)]
    head = ["rank", *PARTS.values(), "communication in all"]
    names = [*PARTS, "communication"]
    cells = [[label, *(_share(getattr(row, n), wall) for n in names)] for label, row in shown]
    return Table(head, cells)


def of_kinds(wall: int, rows: Sequence[Kind]) -> Table:
    """The flat profile of collectives."""
    head = ["collective", "calls", "bytes", "time", "waiting", "transfer", "bandwidth"]
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


def of_stragglers(wall: int, rows: Sequence[Straggler]) -> Table:
    """Who came last, how often, and what that cost."""
    head = ["arrives last", "collectives", "share", "costs"]
    cells = [
        [f"rank {row.rank}", f"{row.last:,} of {row.of:,}", percent(row.last, row.of),
         _share(row.cost, wall)]
        for row in rows
    ]  # fmt: skip
    return Table(head, cells)


def dropped(reasons: dict[str, int]) -> str:
    """How many spans were left out and why; "" if none."""
    count = sum(reasons.values())
    if not count:
        return ""
    why = ", ".join(f"{n:,} {WHY.get(reason, reason)}" for reason, n in reasons.items())
    return f"{count:,} unsound {'span' if count == 1 else 'spans'} left out: {why}"


def _values(row: RankTimes) -> list[int]:
    return list(vars(row).values())


def _share(time: int, wall: int) -> str:
    return f"{duration(time)} {percent(time, wall):>5}"


def _row(tag: str, cells: Sequence[str]) -> str:
    first, *others = (html.escape(" ".join(cell.split())) for cell in cells)
    left = f'<{tag} style="{_LEFT}">{first}</{tag}>'
    if tag == "td":
        others = [cell.replace(" ", _STAYS) for cell in others]
    else:
        others = [cell.replace("-", _STAYS_HYPHEN) for cell in others]
    right = "".join(f'<{tag} style="{_RIGHT}">{cell}</{tag}>' for cell in others)
    return f"<tr>{left}{right}</tr>"


# A number and its unit stay together, and `speed-up`; pages' own styles are stronger than ours.
_STAYS, _STAYS_HYPHEN = "\u00a0", "\u2011"
_TABLE = "border-collapse:collapse;margin:4px 0;font-size:90%"
_LEFT = "text-align:left;padding:1px 8px 1px 2px"
_RIGHT = "text-align:right;padding:1px 8px"
