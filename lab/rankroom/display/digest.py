"""What a summary shows of a run: of a long log only both ends, as the user is waiting for it.

Rich outputs and errors between them are found as well, unless the record is very large.
"""

from __future__ import annotations

from collections import Counter, deque
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field
from pathlib import Path

from rankroom.display.lines import Group, Line, collapse, lines_of
from rankroom.record.model import ENDED_STATES, Json, RunInfo, parse_event
from rankroom.record.tail import Events, line_near_end

HEAD_LINES = 30
TAIL_LINES = 70
# Bytes of the log that are read at either end.
END_BYTES = 256 << 10
# An events.jsonl of more bytes is only read at either end.
MAX_SEARCHED_BYTES = 32 << 20
# Bytes of a single event, which may be longer than END_BYTES: a log event holds up to 1 MiB of
# text.
_MAX_EVENT_BYTES = 8 << 20
# Characters of one event's text that are used at either end.
_MAX_TEXT_CHARS = 64 << 10
# Up to this many lines, all lines of all ranks are collapsed; beyond, only those at both ends.
_MAX_COLLAPSED_LINES = 2_000
# As `event_line` writes them.
_SHOWN = (b'{"kind":"error"', b'{"kind":"display"')
_NOT_SHOWN = (b'{"kind":"spans"', b'{"kind":"metrics"', b'{"kind":"status"')


@dataclass
class Digest:
    """What is shown of a run; `left_out` counts log lines (None: some, unknown how many)."""

    errors: list[Json] = field(default_factory=list)
    displays: list[Json] = field(default_factory=list)
    results: list[Json] = field(default_factory=list)
    head: list[Group] = field(default_factory=list)
    tail: list[Group] = field(default_factory=list)
    left_out: int | None = 0


def digest(run: RunInfo, events_file: Path | None) -> Digest:
    """Return the digest of a run, from its events if there are any."""
    out = Digest()
    first: list[Json] = []
    last: list[Json] = []
    others: list[Json] = []
    gap = False
    if events_file is not None:
        first, last, others, gap = _parts(events_file)
    out.errors = errors_of(run, others)
    shown = displays_of(others)
    out.results = sorted((e for e in shown if e.get("result") is True), key=lambda e: e["rank"])
    out.displays = [e for e in shown if e.get("result") is not True]
    _add_log(out, run, first, last, gap)
    return out


def errors_of(run: RunInfo, events: Iterable[Json]) -> list[Json]:
    """Return the first error of each rank: the root cause first, then the others by time."""
    found: dict[int, Json] = {}
    for event in events:
        if event["kind"] == "error":
            found.setdefault(event["rank"], event)
    cause = run.failure.rank if run.failure else None
    ahead = {rank.rank: rank.clock.offset for rank in run.ranks if rank.clock}  # clocks of hosts

    def order(event: Json) -> tuple[bool, int, int]:
        rank = event["rank"]
        return rank != cause, event["t"] - ahead.get(rank, 0), rank

    return sorted(found.values(), key=order)


def displays_of(events: Iterable[Json]) -> list[Json]:
    """Return the rich outputs after all updates and clearings."""
    shown: list[Json] = []
    pending: set[int] = set()
    for event in events:
        if event["kind"] != "display":
            continue
        rank, clear = event["rank"], event.get("clear")
        if clear == "next":
            pending.add(rank)
        name, update = event.get("display_id"), event.get("update")
        # A pending clear waits for the next output; an update of an earlier one does not count.
        if clear == "now" or (rank in pending and event["data"] and not update):
            pending.discard(rank)
            shown = [e for e in shown if e["rank"] != rank]
        if not event["data"]:
            continue
        if update:
            shown = [
                {**e, "data": event["data"]}
                if e["rank"] == rank and e.get("display_id") == name is not None
                else e
                for e in shown
            ]
        else:
            shown.append(event)
    return shown


def _add_log(out: Digest, run: RunInfo, first: list[Json], last: list[Json], gap: bool) -> None:
    head = list(lines_of(_clipped(first, 0 if gap else None)))
    total = run.lines if gap else len(head)
    most = max(Counter(line.rank for line in head).values(), default=0)
    # If no rank has more lines than this, its first and its last lines are all of its lines.
    if not gap and (total <= _MAX_COLLAPSED_LINES or most <= HEAD_LINES + TAIL_LINES):
        groups = list(collapse(head))
        cut = len(groups) > HEAD_LINES + TAIL_LINES
        out.head = groups[:HEAD_LINES] if cut else groups
        out.tail = groups[-TAIL_LINES:] if cut else []
    else:
        tail = list(lines_of(_clipped(last, 1))) if gap else head
        out.head = list(collapse(_first_of_each(head)))[:HEAD_LINES]
        out.tail = list(collapse(_last_of_each(tail)))[-TAIL_LINES:]
    shown = sum(group.lines for group in (*out.head, *out.tail))
    is_known = run.state in ENDED_STATES and total >= shown > 0
    out.left_out = None if gap and total <= shown and not is_known else total - shown


def _first_of_each(lines: Iterable[Line]) -> Iterator[Line]:
    # A rank's n-th line is in the n-th group or a later one, so later lines are not shown.
    count: dict[int, int] = {}
    for line in lines:
        count[line.rank] = count.get(line.rank, 0) + 1
        if count[line.rank] <= HEAD_LINES:
            yield line


def _last_of_each(lines: Iterable[Line]) -> list[Line]:
    kept: dict[int, deque[tuple[int, Line]]] = {}
    for place, line in enumerate(lines):
        kept.setdefault(line.rank, deque(maxlen=TAIL_LINES)).append((place, line))
    return [line for _, line in sorted(item for lines in kept.values() for item in lines)]


def _clipped(events: Iterable[Json], end: int | None) -> Iterator[Json]:
    """Yield the events, long texts cut to whole lines at their start (`end` 0) or end (1)."""
    for event in events:
        if end is None or event["kind"] != "log" or len(event["text"]) <= _MAX_TEXT_CHARS:
            yield event
        elif end == 0:
            text = event["text"][:_MAX_TEXT_CHARS]
            yield {**event, "text": text[: text.rfind("\n") + 1] or text}
        else:
            text = event["text"][-_MAX_TEXT_CHARS:]
            yield {**event, "text": text[max(text.find("\n"), 0) :]}


def _parts(path: Path) -> tuple[list[Json], list[Json], list[Json], bool]:
    """Return log events at the start and at the end of the file, errors and rich outputs, and
    whether log events in between are missing: as many bytes at either end, however many spans are
    among them."""
    try:
        size = path.stat().st_size
        if size > MAX_SEARCHED_BYTES:
            first, last = _both_ends(path)
            return first, last, [*first, *last], True
        with path.open("rb") as file:
            return _searched(file)
    except FileNotFoundError:
        return [], [], [], False
    except OSError:  # unreadable at the moment: what it has is left out, not absent
        return [], [], [], True


def _searched(file: Iterable[bytes]) -> tuple[list[Json], list[Json], list[Json], bool]:
    head: list[bytes] = []
    tail: deque[bytes] = deque()
    others: list[bytes] = []
    at_head = at_tail = 0
    gap = False
    for line in file:
        if line.startswith(_NOT_SHOWN) or len(line) > _MAX_EVENT_BYTES:
            continue
        if line.startswith(_SHOWN):
            others.append(line)
        elif at_head < END_BYTES:
            head.append(line)
            at_head += len(line)
        else:
            tail.append(line)
            at_tail += len(line)
            while at_tail - len(tail[0]) >= END_BYTES:
                at_tail -= len(tail.popleft())
                gap = True
    first, last, found = ([e for e in map(parse_event, part) if e] for part in (head, tail, others))
    return (first, last, found, True) if gap else ([*first, *last], [], found, False)


def _both_ends(path: Path) -> tuple[list[Json], list[Json]]:
    """Return what is shown of a very large file. Raises OSError."""
    head = Events(path, 0, END_BYTES, longest=_MAX_EVENT_BYTES, passed=_NOT_SHOWN)
    first = list(head)
    start = max(line_near_end(path, END_BYTES, 8 * END_BYTES, _MAX_EVENT_BYTES), head.at)
    return first, list(Events(path, start, longest=_MAX_EVENT_BYTES, passed=_NOT_SHOWN))
