"""The record's types in Python: the definitions of record.schema.json as dataclasses.

The schema is the contract (TypeScript types are generated from it); tests keep the two in step.
Events are sent and stored as JSON lines, so hot paths build them as text; these classes are for
readers of a record.
"""

from __future__ import annotations

import dataclasses
import json
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Literal, cast, get_args

VERSION = 1
SCHEMA_FILE = Path(__file__).with_name("record.schema.json")
# In a note: the ranks' spools may still have output that the record lacks. Other versions decide by
# these words, too, whether spools are kept: they must not change.
MISSING_FROM_RECORD = "missing from the record"

RunState = Literal["running", "done", "failed", "interrupted", "lost"]
# Of a run that is known to be over: its record is complete. A lost one may go on, or be completed.
ENDED_STATES: tuple[RunState, ...] = ("done", "failed", "interrupted")
MAX_COMPARED_RUNS = 4  # other runs shown beside one: more curves could not be told apart
RankState = Literal["running", "ok", "error", "interrupted", "released", "lost"]
ENDED_RANK_STATES: tuple[RankState, ...] = ("ok", "error", "interrupted", "released", "lost")
Json = dict[str, Any]


@dataclass
class Clock:
    """The offset of a rank's clock from that of the run's writer, and its error bound, in µs."""

    offset: int
    error: int


@dataclass
class RankInfo:
    """Where one rank runs; `clock` is set only where its host is not the writer's."""

    rank: int
    host: str
    pid: int
    device: str
    local_rank: int = 0
    state: RankState | None = None
    clock: Clock | None = None


@dataclass
class Failure:
    """The first failure of a run: the root cause. `cell_line` counts from 1."""

    rank: int
    ename: str
    evalue: str
    cell_line: int | None = None


@dataclass
class Place:
    """Where some ranks of a stuck run are; `words` describes it without naming the ranks."""

    ranks: list[int]
    state: Literal["asks", "waits", "still", "busy", "ended", "silent"]
    words: str
    what: str | None = None
    code: str | None = None


@dataclass
class Hang:
    """Why a live run is stuck; `since` is in microseconds since the run's start."""

    since: int
    text: str
    places: list[Place] = field(default_factory=list)

    @property
    def is_held(self) -> bool:
        """Whether ranks wait for a user's answer, in which case the run is not at fault."""
        return any(place.state == "asks" for place in self.places)


@dataclass
class Prompt:
    """A question that a rank of a live run asks the user, kept until it is answered.

    `number` distinguishes it from the rank's other prompts; `place` is where the rank asks, such as
    `cell line 5` or `train.py:12`.
    """

    rank: int
    number: int
    kind: Literal["debugger", "input", "password"]
    text: str
    since: int
    place: str = ""


@dataclass
class Owner:
    """The process that writes a record: its pid is valid in the PID space `space`, and its start
    time `began` (ticks since boot) distinguishes it from a later process with the same pid. In
    records of earlier versions `began` is 0 and `space` is empty."""

    host: str
    pid: int
    space: str = ""
    began: int = 0


@dataclass
class Client:
    """The process that submitted a run."""

    host: str
    pid: int


@dataclass
class RunInfo:
    """run.json. `start` and `end` are microseconds since the epoch."""

    id: str
    cluster: str
    size: int
    start: int
    ranks: list[RankInfo] = field(default_factory=list)
    state: RunState = "running"
    end: int | None = None
    title: str = ""
    name: str | None = None
    failure: Failure | None = None
    hang: Hang | None = None
    prompts: list[Prompt] = field(default_factory=list)
    notes: list[str] = field(default_factory=list)
    compare: list[str] = field(default_factory=list)
    has_metrics: bool = False
    lines: int = 0
    owner: Owner | None = None
    client: Client | None = None
    version: int = VERSION

    @property
    def may_lack_output(self) -> bool:
        """Whether a note says that output is, or may be, missing from the record: then the ranks'
        spools, which may still have it, are kept."""
        return any(MISSING_FROM_RECORD in note for note in self.notes)

    def to_json(self) -> Json:
        """Return the object stored in run.json, without optional fields that are empty."""
        # Not dataclasses.asdict: with 64 ranks that adds a millisecond to every cell.
        out: Json = {**vars(self), "notes": list(self.notes)}
        out["ranks"] = [_rank(rank) for rank in self.ranks]
        out["failure"] = {**vars(self.failure)} if self.failure else None
        if self.hang is None:
            del out["hang"]
        else:
            out["hang"] = {**vars(self.hang), "places": [{**vars(p)} for p in self.hang.places]}
        if self.prompts:
            out["prompts"] = [{**vars(prompt)} for prompt in self.prompts]
        else:
            del out["prompts"]
        for key in ("compare", "has_metrics"):
            if not out[key]:
                del out[key]
        for key in ("owner", "client"):
            if (process := getattr(self, key)) is None:
                del out[key]
            else:
                out[key] = {**vars(process)}
        return out

    @classmethod
    def from_json(cls, data: Json) -> RunInfo:
        """The inverse of `to_json`; unknown fields, which a newer writer may add, are ignored.

        Raises ValueError when `data` is not a Run.
        """
        _check(data, _RUN_REQUIRED, "run")
        _check({**_RUN_DEFAULTS, **data}, {k: type(v) for k, v in _RUN_DEFAULTS.items()}, "run")
        if data["state"] not in get_args(RunState):
            raise ValueError(f"a run in a state {data['state']!r}")
        known = {f.name for f in dataclasses.fields(cls)}
        kept = {key: value for key, value in data.items() if key in known}
        for key, kind in (("end", int), ("name", str)):
            if not isinstance(kept.get(key), kind):
                kept[key] = None
        kept["notes"] = [str(note) for note in kept.get("notes", [])]
        compare = kept.get("compare")
        compare = compare[:MAX_COMPARED_RUNS] if isinstance(compare, list) else []
        kept["compare"] = [run_id for run_id in compare if isinstance(run_id, str)]
        kept["ranks"] = [_pick(RankInfo, item) for item in kept.get("ranks", [])]
        for rank in kept["ranks"]:
            rank.clock = _pick(Clock, rank.clock) if rank.clock else None
        if kept.get("failure"):
            kept["failure"] = _pick(Failure, kept["failure"])
        if kept.get("hang"):
            kept["hang"] = _pick(Hang, kept["hang"])
            kept["hang"].places = [_pick(Place, item) for item in kept["hang"].places]
        kept["has_metrics"] = kept.get("has_metrics") is True
        kept["prompts"] = [_pick(Prompt, item) for item in kept.get("prompts") or []]
        if kept.get("owner"):
            kept["owner"] = _pick(Owner, kept["owner"])
        if kept.get("client"):
            kept["client"] = _pick(Client, kept["client"])
        return cls(**kept)


def title_of(source: str) -> str:
    """Return a cell's first line that is neither blank nor a comment, cut to 80 characters."""
    for line in source.splitlines():
        text = line.strip()
        if text and not text.startswith("#"):
            return text[:80]
    return ""


def parse_event(line: bytes) -> Json | None:
    """Return the event on one line of events.jsonl, or None for garbage or an incomplete line.

    Kinds added by a newer writer are returned, too: readers skip kinds that they do not know.
    """
    try:
        event = json.loads(line)
        _check(event, _EVENT_REQUIRED, "event")
        _check(event, _KIND_REQUIRED.get(event["kind"], {}), "event")
        if event["rank"] < 0:
            return None
    except (ValueError, RecursionError):
        return None
    return cast(Json, event)


def event_line(kind: str, rank: int, seq: int, t: int, **fields: Any) -> bytes:
    """Return one event as a line of events.jsonl. `t` is in microseconds since the run's start."""
    head = {"kind": kind, "rank": rank, "seq": seq, "t": t, **fields}
    return _ENCODE(head).encode("utf-8", "backslashreplace") + b"\n"


def spans_line(rank: int, seq: int, t: int, fields: Json, columns: Json) -> bytes:
    """Like `event_line`, but faster, for a spans event, whose long `columns` hold integers only."""
    head = _ENCODE({"kind": "spans", "rank": rank, "seq": seq, "t": t, **fields})
    texts = [f'"{key}":[{_whole_numbers(column)}]' for key, column in columns.items()]
    return f"{head[:-1]},{','.join(texts)}}}\n".encode("utf-8", "backslashreplace")


def _whole_numbers(numbers: Sequence[int]) -> str:
    # Formats all of them in one call, in C: the fastest way measured.
    return ("%d," * len(numbers) % tuple(numbers))[:-1]


# json.dumps() would create a new encoder for each call.
_ENCODE = json.JSONEncoder(ensure_ascii=False, separators=(",", ":")).encode


def _rank(rank: RankInfo) -> Json:
    out = {key: value for key, value in vars(rank).items() if value is not None}
    if rank.clock is not None:
        out["clock"] = {**vars(rank.clock)}
    return out


def _pick(kind: Any, data: Json) -> Any:
    _check(data, _PART_REQUIRED[kind], kind.__name__)
    known = {f.name for f in dataclasses.fields(kind)}
    return kind(**{key: value for key, value in data.items() if key in known})


def _check(data: Any, needs: dict[str, Any], what: str) -> None:
    if not isinstance(data, dict):
        raise ValueError(f"not a {what}")
    for key, kind in needs.items():
        # True and False are ints to Python, not to JSON.
        if not isinstance(data.get(key), kind) or isinstance(data[key], bool):
            raise ValueError(f"{what} without a proper {key!r}")


def _required(name: str) -> dict[str, type]:
    """Return the required fields of one of the schema's definitions, with their types."""
    definition = _SCHEMA[name]
    return {key: _type(definition["properties"][key]) for key in definition["required"]}


def _type(node: Json) -> type:
    if "$ref" in node:
        return _type(_SCHEMA[node["$ref"].rpartition("/")[2]])
    value = node.get("const", node.get("enum", [None])[0])
    return _TYPES[node["type"]] if value is None else type(value)


_SCHEMA = json.loads(SCHEMA_FILE.read_text("utf-8"))["$defs"]
_TYPES = {"integer": int, "string": str, "array": list, "object": dict}
_RUN_REQUIRED = _required("Run")
_RUN_DEFAULTS = {"title": "", "lines": 0, "notes": []}
_PART_REQUIRED: dict[Any, dict[str, type]] = {
    kind: _required(kind.__name__) for kind in (RankInfo, Failure, Clock, Hang, Place, Prompt)
} | {Owner: {"host": str, "pid": int}, Client: {"host": str, "pid": int}}
# Sample events require only the fields that all events have; _KIND_REQUIRED has the others by kind.
_EVENT_REQUIRED = _required("SampleEvent")
_KIND_REQUIRED = {
    _SCHEMA[name]["properties"]["kind"]["const"]: {
        key: kind for key, kind in _required(name).items() if key not in _EVENT_REQUIRED
    }
    for name in (each["$ref"].rpartition("/")[2] for each in _SCHEMA["Event"]["oneOf"])
}
