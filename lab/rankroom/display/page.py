"""The static page of a run, as HTML and as text, each within a given size."""

from __future__ import annotations

import html
import re
from collections.abc import Iterable, Sequence

from rankroom.display.lines import Group
from rankroom.display.text import clean, clip, one_line, overprint, to_html
from rankroom.display.words import counted, error_words, headline, rank_label
from rankroom.record.model import Hang, Json, RunInfo
from rankroom.text.amounts import size
from rankroom.text.rank_ranges import format_ranks

# Limits: characters of a line, lines of a value, and lines of a traceback at either end.
_LINE_CHARS = 300
_MAX_VALUE_LINES = 30
_TRACE_END_LINES = 200
# The share of a page's room that each part may take; figures get what is left.
_TRACE_SHARE, _ERRORS_SHARE, _LOG_SHARE, _VALUES_SHARE = 0.25, 0.08, 0.34, 0.15
_NOTES_BYTES = 1_500
_BASE64 = re.compile(r"[A-Za-z0-9+/=\s]+")


class Page:
    """Order and limits of a page, the same for HTML and text, in `room` bytes of a notebook file.

    `table` and `picture` show the run's timeline, `metrics` are a table and a picture of its
    curves; they are never shortened. `cut` says whether something else was left out.
    """

    def __init__(
        self, room: int, table: str = "", picture: str = "", metrics: tuple[str, str] = ("", "")
    ) -> None:
        self.cut = False
        self._timeline = self._framed(table, picture) if table else ""
        self._metrics = self._framed(*metrics) if metrics[0] else ""
        room -= weight(self._timeline) + weight(self._metrics)
        self._whole = room
        self._room = room
        self._out: list[str] = []

    def done(self) -> str:
        """Return the page."""
        return "".join(self._out)

    def headline(self, run: RunInfo) -> None:
        """Add state, time and cause in one line."""
        raise NotImplementedError

    def note(self, text: str) -> None:
        """Add a remark in one line."""
        self._add([self._quiet(clip(clean(text), _LINE_CHARS))])

    def finding(self, text: str) -> None:
        """Add the sentence on what held the ranks up."""
        self._add([self._row("", text)])

    def timeline(self) -> None:
        """Add where each rank's time went, as a table and as a picture."""
        if self._timeline:
            self._out.append(self._timeline)

    def metrics(self) -> None:
        """Add what the ranks reported: the last values as a table, curves as a picture."""
        if self._metrics:
            self._out.append(self._metrics)

    def hang(self, hang: Hang) -> None:
        """Add why a live run is stuck, in one line."""
        self._add([self._strong(f"! {one_line(hang.text, _LINE_CHARS)}")])

    def traceback(self, title: str, error: Json) -> None:
        """Add the traceback that explains the failure: whole, unless it is huge."""
        lines = [line for part in error["traceback"] for line in str(part).split("\n")]
        if not lines:
            lines = [error_words(error["ename"], error["evalue"], _LINE_CHARS)]
        first, last = lines[:_TRACE_END_LINES], lines[_TRACE_END_LINES:][-_TRACE_END_LINES:]
        rows, rest = [self._row("", line) for line in first], [self._row("", t) for t in last]
        cut = len(lines) - len(first) - len(last)
        if not rest:  # the place where it was raised is at the end
            middle = len(rows) // 3
            rows, rest = rows[:middle], rows[middle:]
        kept, after = _ends(rows, rest, int(self._whole * _TRACE_SHARE))
        cut += len(rows) + len(rest) - len(kept) - len(after)
        gap = [self._quiet(f"… {counted(cut, 'more line')} of this traceback …")] if cut else []
        self.cut = self.cut or bool(cut)
        self._add([self._strong(title)])
        self._add([*kept, *gap, *after])

    def other_errors(self, errors: Sequence[Json]) -> None:
        """Add the ranks that failed after the first, one line for each kind of failure."""
        same: dict[str, list[int]] = {}
        for error in errors:
            if released := error.get("released"):
                text = f"released from {one_line(str(released), 120)}"
            else:
                text = error_words(error["ename"], error["evalue"], 120)
            same.setdefault(text, []).append(error["rank"])
        rows = [self._row("", f"{rank_label(set(ranks))}: {text}") for text, ranks in same.items()]
        kept, _ = _ends(rows, [], int(self._whole * _ERRORS_SHARE))
        if len(kept) < len(rows):
            self.cut = True
            kept.append(self._quiet(f"… and {counted(len(rows) - len(kept), 'more failure')}"))
        self._add(kept)

    def log(self, head: Sequence[Group], tail: Sequence[Group], left_out: int | None) -> None:
        """Add both ends of the log, and how many lines between them are left out."""
        if not tail and head and left_out == 0:
            third = len(head) // 3
            head, tail = head[:third], head[third:]
        labels = {id(g): clip(format_ranks(g.ranks), 14) for g in (*head, *tail)}
        width = max(map(len, labels.values()), default=0)

        def row(group: Group) -> str:
            sign = "┃" if group.stream == "stderr" else "│"
            return self._row(f"{labels[id(group)]:<{width}} {sign} ", group.text)

        first, last = _ends(
            [row(g) for g in head], [row(g) for g in tail], int(self._whole * _LOG_SHARE)
        )
        dropped = [*head[len(first) :], *tail[: len(tail) - len(last)]]
        if left_out is not None:
            left_out += sum(group.lines for group in dropped)
        gap = []
        if left_out != 0:
            self.cut = True
            count = "more" if left_out is None else f"{left_out:,}"
            gap = [self._quiet(f"… {count} {'line' if left_out == 1 else 'lines'} left out …")]
        self._add([*first, *gap, *last])

    def values(self, events: Iterable[Json]) -> None:
        """Add rich outputs and the last expressions' values, equal ones once."""
        same: dict[tuple[str, str], list[int]] = {}
        for event in events:
            data = event["data"]
            plain = str(data.get("text/plain") or f"<{', '.join(map(str, data))}>")
            png = data.get("image/png")
            key = png if isinstance(png, str) else "", plain
            same.setdefault(key, []).append(event["rank"])
        share = int(self._whole * _VALUES_SHARE)
        for place, ((png, plain), ranks) in enumerate(same.items()):
            name = rank_label(set(ranks))  # a rank may show the same twice
            if png and self._figure(name, png, self._room - share - _NOTES_BYTES):
                continue
            lines = plain.split("\n", _MAX_VALUE_LINES + 1)
            rows = [self._row("", overprint(line)) for line in lines[:_MAX_VALUE_LINES]]
            if len(rows) == 1:
                rows = [self._row(f"{name}: ", overprint(lines[0]))]
            else:
                rows.insert(0, self._row(f"{name}:", ""))
            kept, _ = _ends(rows, [], share)
            if not kept:
                self.cut = True
                left = counted(len(same) - place, "more value")
                self._add([self._quiet(f"… and {left} left out")])
                return
            if len(kept) < len(rows) or len(lines) > _MAX_VALUE_LINES:
                self.cut = True
                kept.append(self._quiet(f"… more of the value on {name} left out"))
            share -= sum(map(weight, kept))
            self._add(kept)

    def _add(self, rows: list[str]) -> None:
        """Add the rows if they fit, as they do while each part keeps to its share."""
        cost = sum(map(weight, rows))
        if rows and cost <= self._room:
            self._room -= cost
            self._out.append(self._block(rows))
        elif rows:
            self.cut = True

    def _framed(self, table: str, picture: str) -> str:
        raise NotImplementedError

    def _block(self, rows: list[str]) -> str:
        raise NotImplementedError

    def _row(self, before: str, text: str) -> str:
        raise NotImplementedError

    def _strong(self, text: str) -> str:
        raise NotImplementedError

    def _quiet(self, text: str) -> str:
        raise NotImplementedError

    def _figure(self, name: str, png: str, room: int) -> bool:
        """Add the figure if it takes less than `room` bytes; return whether it did."""
        raise NotImplementedError


class Text(Page):
    """A page for terminals, and for viewers that cannot show HTML."""

    def headline(self, run: RunInfo) -> None:
        self._add([self._strong(f"● {headline(run)}")])

    def done(self) -> str:
        return super().done().rstrip("\n")

    def _framed(self, table: str, picture: str) -> str:
        return f"\n{table}\n"

    def _block(self, rows: list[str]) -> str:
        return "".join(rows)

    def _row(self, before: str, text: str) -> str:
        return f"{before}{clip(clean(text), _LINE_CHARS)}\n"

    _strong = _quiet = lambda self, text: self._row("", text)

    def _figure(self, name: str, png: str, room: int) -> bool:
        return False


class Html(Page):
    """A page for nbconvert, VS Code and viewers without the extension: no scripts, no classes, no
    color that needs a light or a dark background."""

    def __init__(
        self, room: int, table: str = "", picture: str = "", metrics: tuple[str, str] = ("", "")
    ) -> None:
        super().__init__(room, table, picture, metrics)
        self._out.append('<div style="line-height:1.4">')
        self._room -= weight(self._out[-1])

    def done(self) -> str:
        return super().done() + "</div>"

    def headline(self, run: RunInfo) -> None:
        dot = f'<span style="color:{_DOTS.get(run.state, _GREY)}">●</span>'
        self._out.append(f"<div>{dot} {html.escape(headline(run))}</div>")
        self._room -= weight(self._out[-1])

    def _framed(self, table: str, picture: str) -> str:
        return f"<pre style='{_TABLE}'>{html.escape(table)}</pre>{picture}"

    def _block(self, rows: list[str]) -> str:
        if rows[0].startswith("<div"):
            return "".join(rows)
        return f"<pre style={_PRE}>{''.join(rows)}</pre>"

    def _row(self, before: str, text: str) -> str:
        shown = to_html(text, _LINE_CHARS)
        if before:
            return f"<b style=color:{_GREY}>{html.escape(before)}</b>{shown}\n"
        return f"{shown}\n"

    def _strong(self, text: str) -> str:
        return f"<b>{html.escape(clean(text))}</b>\n"

    def _quiet(self, text: str) -> str:
        return f"<i style=color:{_GREY}>{html.escape(clean(text))}</i>\n"

    def _figure(self, name: str, png: str, room: int) -> bool:
        if len(png) > room - 200 or not _BASE64.fullmatch(png):
            if png:
                self.cut = True
                self.note(f"{name}: a figure of {size(len(png) * 3 / 4)}; open it in JupyterLab")
            return False
        data = "".join(png.split())
        image = f'<img alt="" style="max-width:100%" src="data:image/png;base64,{data}">'
        self._add([f"<div>{html.escape(name)}<br>{image}</div>"])
        return True


def weight(text: str) -> int:
    """Return the bytes of `text` in a notebook file, in which each line is a string of its own."""
    return (
        len(text.encode("utf-8", "replace"))
        + text.count('"')
        + text.count("\\")
        + 16 * text.count("\n")
    )


def _ends(head: list[str], tail: list[str], room: int) -> tuple[list[str], list[str]]:
    """Return the first rows of `head` and the last of `tail` that fit: a third, then two thirds."""
    first, left = _fitting(head, room // 3 if tail else room)
    room += left - (room // 3 if tail else room)
    last, room = _fitting(tail[::-1], room)
    more, _ = _fitting(head[len(first) :], room)
    return first + more, last[::-1]


def _fitting(rows: list[str], room: int) -> tuple[list[str], int]:
    for count, row in enumerate(rows):
        cost = weight(row)
        if cost > room:
            return rows[:count], room
        room -= cost
    return rows, room


_GREY = "#8a939c"
_MONO = "font-family:monospace;padding:0"  # nbconvert's own style of <pre> differs
_PRE = f"{_MONO};white-space:pre-wrap;word-break:break-word;margin:2px;font-size:90%"
_TABLE = f"{_MONO};white-space:pre;overflow-x:auto;margin:6px 2px;font-size:85%"
_DOTS = {
    "running": "#2b7de9",
    "done": "#2f9e44",
    "failed": "#cf3a3a",
    "interrupted": "#c98a2b",
    "lost": _GREY,
}
