"""Chrome's events as spans: begin and end events, complete events, and instants.

This is the loop that a million events pass through: the usual event comes first, in few steps.
"""

from __future__ import annotations

from array import array
from collections import Counter
from collections.abc import Hashable
from math import trunc
from typing import Any

from rankroom.analysis.importers.lanes import Lane, Names

Json = dict[str, Any]
Key = tuple[Hashable, Hashable, str]  # process, thread, category as the file has them

MOST_LANES = 100_000  # of one file; beyond, the threads of a process and category share one
MOST_PROCESSES = 4096  # beyond, processes share such a lane
MAX_SHARED_LANES = 10_000  # shared lanes; beyond, categories share one
MAX_OPEN_SPANS = 100_000  # open spans, threads that had any, and names of processes and threads
MAX_OPEN_CHARS = 64 << 20  # characters of arguments of open spans
LONGEST_NAME = 1_000  # characters of what processes, threads and categories are called

_FLOWS = frozenset("stf")
_ASYNC = frozenset("bneSTFpNOD")
# Arguments that differ with each event and say nothing about it.
_NUMBERING = frozenset(
    ("External id", "Ev Idx", "correlation", "Record function id", "Sequence number",
     "Fwd thread id", "Python id", "Python parent id", "Python module id", "cbid",
     "est. achieved occupancy %", "queued", "Trace iteration", "Trace name",
     "Profiler Event Index", "Seq", "In split size", "Out split size", "Input Tensors start",
     "Output Tensors start", "graph node id")
)  # fmt: skip


class Reader:
    """Converts the events of one file to spans, in `lanes`."""

    def __init__(self) -> None:
        self.names = Names()
        self.lanes: dict[Key, Lane] = {}
        self.processes: dict[Hashable, str] = {}
        self.labels: dict[Hashable, str] = {}
        self.threads: dict[tuple[Hashable, Hashable], str] = {}
        self.dropped: Counter[str] = Counter()
        self.repaired: Counter[str] = Counter()
        self.taken = 0  # events
        self._with_lanes: set[Hashable] = set()  # processes with lanes of their own
        self._open_spans = self._open_text = 0
        self._open: dict[tuple[Hashable, Hashable], list[tuple[Json, int]]] = {}
        self._last: dict[tuple[Hashable, Hashable], int] = {}

    def take(self, events: list[Json]) -> None:
        """Add events, in the file's order."""
        lanes, number = self.lanes, self.names.number
        self.taken += len(events)
        for event in events:
            try:
                if event["ph"] == "X":
                    ts = event["ts"]
                    start = trunc(ts)  # unlike int(), it rejects text
                    # Ends are rounded like starts, so that nested spans stay nested.
                    dur = int(ts + event["dur"]) - start
                    lane = lanes[event["pid"], event["tid"], event["cat"]]
                    args = event.get("args")
                    lane.add(number(event["name"], _telling(args) if args else {}), start, dur)
                    continue
            except (KeyError, AttributeError, TypeError, ValueError, OverflowError):
                pass
            self.take_unusual(event)

    def close(self) -> None:
        """End the file: a span still open ends at the last known time of its thread."""
        for where, stack in self._open.items():
            while stack:
                event, begin = stack.pop()
                self.repaired["spans without an end"] += 1
                self._add(event, begin, max(0, self._last.get(where, begin) - begin))

    def join(self, names: list[Json], lanes: dict[Key, Lane]) -> None:
        """Add the spans of another reader, with the names that its numbers stand for."""
        numbers = [
            self.names.number(each["name"], {k: v for k, v in each.items() if k != "name"})
            for each in names
        ]
        for key, lane in lanes.items():
            self.taken += len(lane)
            lane.name = array("i", [numbers[number] for number in lane.name])
            mine = self._lane(key, len(lane))
            if len(mine):
                mine.extend(lane)
            else:
                mine.name, mine.start, mine.dur = lane.name, lane.start, lane.dur

    def drop_lanes(self, category: str) -> None:
        """Drop the spans of this category of the file."""
        self.lanes = {key: lane for key, lane in self.lanes.items() if key[2] != category}

    def take_unusual(self, event: Json) -> None:
        """Add an event that is not a plain complete event."""
        phase = event.get("ph")
        try:
            if phase == "M":
                self._describe(event)
            elif phase == "X":
                start, end = _time(event["ts"]), _time(event["ts"]) + _time(event.get("dur", 0))
                self._add(event, int(start), int(end) - int(start))
            elif phase in ("B", "E"):
                self._begin_or_end(event)
            elif phase in ("i", "I", "R"):
                self._add(event, int(_time(event["ts"])), 0)
            elif phase == "C":
                self.dropped["counters"] += 1
            elif isinstance(phase, str) and phase in _FLOWS:
                self.dropped["flows"] += 1
            elif isinstance(phase, str) and phase in _ASYNC:
                self.dropped["asynchronous events and objects"] += 1
            else:
                self.dropped["not a trace event"] += 1
        except (KeyError, TypeError, AttributeError):
            self.dropped["events that lack a field"] += 1
        except (ValueError, OverflowError):
            self.dropped["times that are not numbers"] += 1

    def _describe(self, event: Json) -> None:
        args = event["args"]
        where = (_plain(event.get("pid")), _plain(event.get("tid")))
        if event["name"] == "process_name":
            _tell(self.processes, where[0], args["name"])
        elif event["name"] == "process_labels":
            _tell(self.labels, where[0], args["labels"])
        elif event["name"] == "thread_name":
            _tell(self.threads, where, args["name"])

    def _begin_or_end(self, event: Json) -> None:
        where = (_plain(event.get("pid")), _plain(event.get("tid")))
        at = int(_time(event["ts"]))
        if where in self._last:
            self._last[where] = max(at, self._last[where])
        elif len(self._last) < MAX_OPEN_SPANS:
            self._last[where] = at
        stack = self._open.get(where, [])
        if event["ph"] == "B":
            text = _length(event)
            if self._open_spans >= MAX_OPEN_SPANS or self._open_text + text > MAX_OPEN_CHARS:
                self.dropped["too many spans open at once"] += 1
                return
            self._open_spans, self._open_text = self._open_spans + 1, self._open_text + text
            self._open.setdefault(where, stack).append((event, at))
            return
        if not stack:
            self.dropped["ends without a beginning"] += 1
            return
        begun, begin = stack.pop()
        self._open_spans, self._open_text = self._open_spans - 1, self._open_text - _length(begun)
        if not stack:
            del self._open[where]
        if event.get("args"):
            begun = {**begun, "args": {**(begun.get("args") or {}), **event["args"]}}
        self._add(begun, begin, at - begin)

    def _add(self, event: Json, start: int, dur: int) -> None:
        args = event.get("args")
        category = event.get("cat")
        key = (
            _plain(event.get("pid")),
            _plain(event.get("tid")),
            category[:LONGEST_NAME] if isinstance(category, str) else "",
        )
        lane = self._lane(key)
        name = event.get("name")
        telling = _telling(args) if isinstance(args, dict) else {}
        number = self.names.number(name if isinstance(name, str) else str(name or "?"), telling)
        lane.add(number, start, dur)

    def _lane(self, key: Key, spans: int = 1) -> Lane:
        lane = self.lanes.get(key)
        if lane is None and len(self.lanes) >= MOST_LANES:
            self.repaired["spans of too many threads, which share a lane"] += spans
            key = self._shared(key)
            lane = self.lanes.get(key)
        if lane is None:
            lane = self.lanes[key] = Lane()
            if len(self._with_lanes) < MOST_PROCESSES:
                self._with_lanes.add(key[0])
        return lane

    def _shared(self, key: Key) -> Key:
        """Return the key of a lane for all threads; too many processes or categories share one."""
        process = key[0]
        if len(self._with_lanes) >= MOST_PROCESSES and process not in self._with_lanes:
            process = None
        return process, None, key[2] if len(self.lanes) < MOST_LANES + MAX_SHARED_LANES else ""


def _tell(names: dict[Any, str], key: Hashable, name: Any) -> None:
    if key in names or len(names) < MAX_OPEN_SPANS:
        names[key] = str(name)[:LONGEST_NAME]


def _length(event: Json) -> int:
    """Return roughly how many characters an event has, as its arguments may have many."""
    args = event.get("args")
    return len(str(event.get("name"))) + (len(str(args)) if args else 0)


def _telling(args: Json) -> Json:
    """Return the arguments that say something about an event."""
    if _NUMBERING.isdisjoint(args):
        return args
    return {key: value for key, value in args.items() if key not in _NUMBERING}


def _time(value: Any) -> float | int:
    """Return a time, which may be written as text. Raises ValueError, TypeError for other types."""
    if isinstance(value, bool) or not isinstance(value, (int, float, str)):
        raise TypeError
    number = float(value) if isinstance(value, str) else value
    if number != number or number in (float("inf"), float("-inf")):
        raise ValueError
    return number


def _plain(value: Any) -> Hashable:
    """Return a process or thread as a key."""
    return value if isinstance(value, (int, float)) or value is None else str(value)[:LONGEST_NAME]
