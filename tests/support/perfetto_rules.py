"""What Perfetto's importer of Chrome JSON requires of a file in order to show all of it.

Restated from the source of its trace_processor (importers/json, slice_tracker, trace_sorter; August
2026). A breach of the rules in `_ending` ends the import. A breach of any other drops or moves an
event, and is counted among the errors that the UI shows.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from typing import Any

DEEPEST = 512
_SURROGATE = re.compile(rb"\\u[dD][89a-fA-F]")
_CONTROL = re.compile(rb"[\x00-\x1f\x7f]")
_STRING = re.compile(rb'"(?:[^"\\]|\\.)*"', re.S)


def breaches(data: bytes) -> list[str]:
    """All rules that the file breaks, each with an example; empty for a valid file."""
    try:
        trace = json.loads(data.decode("utf-8"), parse_constant=_refuse)
    except ValueError as error:
        return [f"no strict JSON in UTF-8: {error}"]
    found = list(_ending(data, trace))
    if not found:
        events = trace["traceEvents"] if isinstance(trace, dict) else trace
        found += _events(events)
    return list(dict.fromkeys(found))


def _refuse(text: str) -> Any:
    raise ValueError(f"{text} is no JSON")


def _ending(data: bytes, trace: Any) -> Iterator[str]:
    """The problems that end the import."""
    if _SURROGATE.search(data):
        yield "a surrogate as an escape"
    if isinstance(trace, dict):
        if not isinstance(trace.get("traceEvents"), list):
            yield "traceEvents is no array"
            return
        head = data[: data.index(b'"traceEvents"')]
        if any(_CONTROL.search(text) for text in _STRING.findall(head)):
            yield "a control character in what stands beside the events"
    elif not isinstance(trace, list):
        yield "neither an object nor an array"


def _events(events: list[Any]) -> Iterator[str]:
    tracks: dict[Any, list[dict[str, Any]]] = {}
    processes: dict[int, int] = {}
    begun: dict[Any, int] = {}
    for event in events:
        if not isinstance(event, dict) or not isinstance(event.get("ph"), str) or not event["ph"]:
            yield f"no phase: {event}"
            continue
        phase, pid, tid = event["ph"][0], event.get("pid"), event.get("tid")
        args = event.get("args")
        yield from _fields(event, phase)
        if phase in "XiBE" and event.get("s", "t") == "t":
            # Perfetto used to look up names of threads and the like by the thread's number alone.
            if processes.setdefault(tid, pid) != pid:
                yield f"thread {tid} in two processes"
            tracks.setdefault((pid, tid), []).append(event)
        elif phase in "be":
            if "id" not in event and "id2" not in event:
                yield f"asynchronous without an id: {event}"
            else:
                key = pid, event.get("cat"), str(event.get("id", event.get("id2")))
                begun[key] = begun.get(key, 0) + (1 if phase == "b" else -1)
        elif phase == "C" and not _has_numbers(args):
            yield f"a counter without numbers: {event}"
        elif phase == "M" and event.get("name") in ("process_name", "thread_name"):
            if not isinstance(args, dict) or not isinstance(args.get("name"), str):
                yield f"a name that is none: {event}"
            elif not args["name"]:
                yield f"an empty name: {event}"
    if any(begun.values()):
        yield "asynchronous events that are not begun and ended alike"
    for where, track in tracks.items():
        yield from _nesting(where, track)


def _fields(event: dict[str, Any], phase: str) -> Iterator[str]:
    for key in ("pid", "tid"):
        value = event.get(key, 0)
        if type(value) is not int or not 0 <= value < 1 << 32:
            yield f"{key} is no number of 32 bits: {event}"
    if phase not in "XBEbeniIRCMstf":
        yield f"a phase that is passed over: {event}"
    if phase != "M":
        ts = event.get("ts")
        if isinstance(ts, bool) or not isinstance(ts, (int, float)):
            yield f"no time: {event}"
        elif ts < 0:
            yield f"a time before 0: {event}"
        elif ts * 1000 >= 1 << 63:
            yield f"a time that does not fit: {event}"
    if phase == "X":
        dur = event.get("dur")
        if isinstance(dur, bool) or not isinstance(dur, (int, float)) or dur < 0:
            yield f"no duration: {event}"
    if phase in "iIR" and event.get("s") not in ("g", "p", "t", None):
        yield f"a moment of no known scope: {event}"
    if not isinstance(event.get("name", ""), str):
        yield f"a name that is no text: {event}"
    if not isinstance(event.get("args", {}), dict):
        yield f"arguments that are no object: {event}"


def _has_numbers(args: Any) -> bool:
    return isinstance(args, dict) and any(
        isinstance(value, (int, float)) and not isinstance(value, bool) for value in args.values()
    )


def _nesting(where: Any, track: list[dict[str, Any]]) -> Iterator[str]:
    """Spans of one thread, in order of time and then of the file, must be nested or disjoint."""
    open_ends: list[tuple[float, bool]] = []
    spans = [event for event in track if event["ph"] == "X" and "dur" in event]
    for event in sorted(spans, key=lambda event: event["ts"]):
        start, end = event["ts"], event["ts"] + event["dur"]
        while open_ends and (
            open_ends[-1][0] < start
            or (open_ends[-1][0] == start and not (open_ends[-1][1] and start == end))
        ):
            open_ends.pop()
        if open_ends and end > open_ends[-1][0]:
            yield f"spans that cross on {where}: {event}"
            continue
        if len(open_ends) >= DEEPEST:
            yield f"spans too deep in one another on {where}"
            continue
        open_ends.append((end, start == end))
