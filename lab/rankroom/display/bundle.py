"""A run as a cell's output: a MIME bundle of bounded size, whatever the run wrote.

JupyterLab shows `application/vnd.rankroom.run+json` live; nbconvert, VS Code and terminals show
the static HTML and text. Together they stay below 64 KiB in the notebook file, even with 64 ranks.
"""

from __future__ import annotations

import json
import time
from collections.abc import Sequence
from typing import Any

from rankroom.display.digest import Digest, digest
from rankroom.display.metric_picture import MetricSummary, metric_summary
from rankroom.display.page import Html, Page, Text, weight
from rankroom.display.summary import Summary, summary
from rankroom.display.text import clean, clip, one_line
from rankroom.display.words import prompt_words, rank_label, whole_log
from rankroom.record import model
from rankroom.record.model import Json, RunInfo
from rankroom.record.store import Store
from rankroom.text.amounts import duration
from rankroom.text.rank_ranges import format_ranks

MIME = "application/vnd.rankroom.run+json"
# 64 KiB, less the size of the running cell's output, which this one replaces.
_MAX_BYTES = 51 << 10
_MAX_RUN_BYTES = 18 << 10
_MAX_TEXT_BYTES = 9 << 10
# Share of the HTML's bytes.
_PICTURE_SHARE = 0.45


def running_bundle(run: RunInfo) -> Json:
    """Return the first output of a cell, before a rank has reported; takes some 50 µs."""
    text, html = Text(1_000), Html(2_500)
    for page in (text, html):
        page.headline(run)
        if words := prompt_words(run):
            page.note(f"{one_line(words, 200)}: reply with `rankroom runs debug {run.id}`")
        for note in run.notes[:5]:
            page.note(one_line(note, 200))
    html.note(f"follow it in a terminal: rankroom runs tail -f {run.id}")
    return {MIME: _run(run)[0], "text/html": html.done(), "text/plain": text.done()}


def bundle(run: RunInfo, store: Store | None = None) -> Json:
    """Return the final output of a cell: the run, as JSON, as HTML and as text.

    The run's own output is read from its record in `store`; of a large one, only both ends.
    """
    file = None if store is None else store.paths(run.id).events
    parts = digest(run, file)
    told = summary(run, file)
    metrics = metric_summary(run, store)
    data, used = _run(run)
    text = Text(_MAX_TEXT_BYTES, told.table, metrics=(metrics.table, ""))
    _fill(text, run, parts, told, metrics)
    plain = text.done()
    room = _MAX_BYTES - used - weight(plain)
    curves = weight(metrics.table) + weight(metrics.picture)
    timeline = told.picture(int(max(0, room - curves) * _PICTURE_SHARE))
    html = Html(room, told.table, timeline, (metrics.table, metrics.picture))
    _fill(html, run, parts, told, metrics)
    return {MIME: data, "text/html": html.done(), "text/plain": plain}


def runs_table(runs: Sequence[RunInfo]) -> str:
    """Return runs as lines of text, one each, under a heading."""
    rows = [("id", "when", "state", "ranks", "time", "lines", "cell")]
    for run in runs:
        when = time.strftime("%Y-%m-%d %H:%M", time.localtime(run.start / 1e6))
        took = "" if run.end is None else duration(run.end - run.start)
        lines = "" if run.state == "running" else f"{run.lines:,}"
        name = f"{one_line(run.name, 30)}: " if run.name else ""
        ranks = format_ranks(r.rank for r in run.ranks) if run.ranks else str(run.size)
        title = name + one_line(run.title, 50)
        rows.append((run.id, when, run.state, clip(ranks, 12), took, lines, title))
    widths = [max(len(row[i]) for row in rows) for i in range(len(rows[0]) - 1)]
    right = (4, 5)
    return "\n".join(
        "  ".join(
            [
                f"{cell:>{w}}" if i in right else f"{cell:<{w}}"
                for i, (cell, w) in enumerate(zip(row, widths, strict=False))
            ]
            + [row[-1]]
        ).rstrip()
        for row in rows
    )


def _fill(page: Page, run: RunInfo, parts: Digest, told: Summary, metrics: MetricSummary) -> None:
    page.headline(run)
    if told.sentence:
        page.finding(told.sentence)
    if run.hang is not None and run.state == "running":
        page.hang(run.hang)
    if parts.errors:
        cause = parts.errors[0]
        # A killed rank has no error of its own: the others' errors are a consequence.
        is_cause = run.failure is None or run.failure.rank == cause["rank"]
        order = " first" if len(parts.errors) > 1 and is_cause else ""
        what = "was interrupted" if run.state == "interrupted" else f"failed{order}"
        page.traceback(f"{rank_label([cause['rank']])} {what}:", cause)
        page.other_errors(parts.errors[1:])
    page.log(parts.head, parts.tail, parts.left_out)
    page.values(parts.displays)
    page.values(parts.results)
    page.metrics()
    page.timeline()
    for note in (metrics.note, told.note):
        if note:
            page.note(note)
    for text in run.notes[:10]:
        page.note(text)
    if page.cut:
        page.note(f"this is a summary; for everything, run `{whole_log(run)}`")


def _run(run: RunInfo) -> tuple[Json, int]:
    """Return run.json within bounds, and its size in a notebook file.

    The view requests the run from the server anyway; this is for before, and without a server.
    """
    data = run.to_json()
    for key, most in (("title", 200), ("name", 60), ("cluster", 60)):
        data[key] = data[key] and _short(data[key], most)
    data.pop("prompts", None)  # a client that could answer them asks the server
    data["notes"] = [_short(str(text), 200) for text in run.notes[:10]]
    if data["failure"]:
        data["failure"]["ename"] = _short(data["failure"]["ename"], 80)
        data["failure"]["evalue"] = _short(data["failure"]["evalue"], 300)
    if hang := data.get("hang"):
        hang["text"] = _short(hang["text"], 300)
        hang["places"] = hang["places"][:16]
        for place in hang["places"]:
            for key in ("words", "what", "code"):
                place[key] = place[key] and _short(place[key], 120)
    for place in [*data["ranks"], *([data["owner"]] if run.owner else [])]:
        place["host"] = _short(place["host"], 64)
    for rank in data["ranks"]:
        rank["device"] = _short(rank["device"], 32)
    used = _weight(data)
    if used > _MAX_RUN_BYTES:
        notes, data["notes"] = data["notes"], []
        ranks, data["ranks"] = data["ranks"], []
        if (
            _weight(data) + _weight(ranks) > _MAX_RUN_BYTES
        ):  # the ranks matter more than their hosts
            ranks = [
                {k: v for k, v in each.items() if k != "clock"} | {"host": ""} for each in ranks
            ]
        room, weight = _MAX_RUN_BYTES - _weight(data), _weight(ranks)
        if weight <= room:
            data["ranks"] = ranks
        elif len(ranks) < run.size:  # an empty list means all; some would mislead
            data["ranks"] = ranks[: max(len(ranks) * room // weight * 9 // 10, 0)]
        if _weight(data) + _weight(notes) <= _MAX_RUN_BYTES:
            data["notes"] = notes
        used = _weight(data)
    return {"version": model.VERSION, "run": data}, used


def _short(text: str, most: int) -> str:
    return text if len(text) <= most and text.isprintable() else clip(clean(text), most)


def _weight(data: Any) -> int:
    text = json.dumps(data, ensure_ascii=False)
    # A notebook file puts each item on a line of its own, indented by about a dozen spaces.
    return len(text.encode()) + 14 * (text.count(",") + text.count("{") + text.count("["))
