"""Read spans of a Horovod that Rankroom did not build from its own timeline, on rank 0 only.

There, a negotiation begins with the first request that rank 0 receives, and ticks tell when each
rank was ready.
"""

from __future__ import annotations

import codecs
import contextlib
import ctypes
import json
import os
import re
import threading
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from rankroom.rank.frameworks.horovod import horovod_calls
from rankroom.rank.world import World
from rankroom.reporting.spans import recorder

MAX_FILE_BYTES = 32 << 20  # bytes; then a new file is begun
# The beginning of an event. Horovod does not escape the tensor names in it, quotes included.
_EVENT_START = '{"'

# horovod.torch's prefix of tensor names.
_TENSOR_PREFIX = re.compile(r"(grouped_)?(allreduce|allgather|broadcast|alltoall|reducescatter)\.")


class TimelineSource:
    """Horovod's timeline in a file in this rank's spool, read while it is being written."""

    def __init__(self, library: str, basics: Any, world: World) -> None:
        self._library = library
        self._basics = basics
        self._rank = world.rank
        self._file = Path(os.environ["RANKROOM_SPOOL"]) / f"timeline-{library}.json"
        self._reader = Reader(world.rank)
        self._at = 0
        self._on = False
        self._users = False
        self._named = ""  # the user's file in HOROVOD_TIMELINE; Horovod writes only one
        self._calls = 0  # number of collectives at the end of the last cell
        self._lock = threading.RLock()

    def begin(self) -> None: ...

    def started(self) -> None:
        """Start the timeline on rank 0, as Horovod has been initialized."""
        with self._lock:
            self._on = False
            named = os.environ.get("HOROVOD_TIMELINE", "")
            self._named = "" if named == "DYNAMIC" else named
            if self._rank == 0 and not self._users and not self._named:
                self._start()

    def users(self, recording: bool) -> None:
        """Give way to the user's own recording, as Horovod writes one file at a time."""
        with self._lock:
            if recording:
                self._read()
                recorder.note(USER_TIMELINE.format(library=f"hvd.{self._library}"))
            self._on = False
            self._users = recording
            if not recording:
                self.started()

    def take(self) -> None:
        """Pass on what Horovod wrote since the last call; it writes some kilobytes at a time."""
        with self._lock:
            self._read()
            if self._at or self._calls != horovod_calls.count(self._library):
                about = {"file": self._named, "library": f"hvd.{self._library}"}
                recorder.note(TIMELINE_VARIABLE_SET.format(**about) if self._named else RANK_0_ONLY)
            if self._at > MAX_FILE_BYTES:
                self._write_again()

    def finish(self) -> None:
        """Close the file of a cell that is over, so that Horovod writes the rest, and read it."""
        with self._lock:
            self.take()
            self._calls = horovod_calls.count(self._library)
            if self._at:  # there were collectives
                self._write_again()

    def _start(self) -> None:
        self._file.unlink(missing_ok=True)
        self._reader, self._at = Reader(self._rank), 0
        path = ctypes.c_char_p(os.fsencode(self._file))
        start = self._basics.MPI_LIB_CTYPES.horovod_start_timeline
        self._on = start(path, ctypes.c_bool(False)) > 0

    def _write_again(self) -> None:
        if self._on and self._basics.is_initialized():
            self._basics.MPI_LIB_CTYPES.horovod_stop_timeline()
            self._read()
            self._start()

    def _read(self) -> None:
        if not self._on:
            return
        with contextlib.suppress(OSError), self._file.open("rb") as file:
            file.seek(self._at)
            data = file.read()
            # The bracket that closes the array is overwritten by the next event.
            data = data.rstrip(b"]")
            self._at += len(data)
            for cat, fields, start, dur in self._reader.feed(data):
                fields["library"] = f"hvd.{self._library}"
                key = ("timeline", cat, *map(str, fields.values()))
                number = recorder.number(key, fields.copy)
                if start + dur >= recorder.began:
                    recorder.extend(cat, [(number, start, dur)], fields["library"])


@dataclass
class _Tensor:
    """The events of one tensor that have begun and not ended, innermost last."""

    name: str
    arrived: int = 0
    negotiated: int = 0
    open: list[tuple[str, int]] = field(default_factory=list)


Found = tuple[str, dict[str, Any], int, int]  # category, name, start, duration


class Reader:
    """Converts a timeline file that is still being written to spans, piece by piece."""

    def __init__(self, rank: int) -> None:
        self._rank = str(rank)
        self._text = ""
        self._zero = 0
        self._tensors: dict[int, _Tensor] = {}
        self._bytes = codecs.getincrementaldecoder("utf-8")("backslashreplace")
        self._decoder = json.JSONDecoder(strict=False)

    def feed(self, data: bytes) -> Iterator[Found]:
        """Yield the spans that end within `data`, the next bytes of the file."""
        self._text += self._bytes.decode(data)
        for event in self._events():
            with contextlib.suppress(KeyError, TypeError, ValueError, IndexError):
                yield from self._event(event)

    def _events(self) -> Iterator[dict[str, Any]]:
        at = 0
        while (begin := self._text.find(_EVENT_START, at)) >= 0:
            try:
                event, at = self._decoder.raw_decode(self._text, begin)
            except ValueError:
                following = self._text.find("\n" + _EVENT_START, begin + 1)
                following = (
                    following if following >= 0 else self._text.find("}," + _EVENT_START, begin)
                )
                if following < 0:
                    at = begin
                    break
                at = following + 1  # a tensor's name breaks the JSON syntax: this event is lost
                continue
            if isinstance(event, dict):
                yield event
        else:
            at = max(at, len(self._text) - 1)
        self._text = self._text[at:]

    def _event(self, event: dict[str, Any]) -> Iterator[Found]:
        phase, pid = event["ph"], event.get("pid", 0)
        if phase == "M":
            args = event["args"]
            if "start_time_since_epoch_in_micros" in args:
                self._zero = int(args["start_time_since_epoch_in_micros"])
            elif event["name"] == "process_name":
                self._tensors[pid] = _Tensor(str(args["name"]))
            return
        if phase not in "BEX":
            return
        tensor, now = self._tensors[pid], self._zero + int(event["ts"])
        if phase == "X":
            if event["name"] == self._rank:
                tensor.arrived = now
            else:
                words = f"rank {event['name']} ready"
                yield "phase", {"name": words, "tensor": _short(tensor.name)}, now, 0
        elif phase == "B":
            tensor.open.append((event["name"], now))
        else:
            yield from self._over(tensor, now, event.get("args", {}))

    def _over(self, tensor: _Tensor, now: int, args: dict[str, Any]) -> Iterator[Found]:
        name, begin = tensor.open.pop()
        known = {"tensor": _short(tensor.name)}
        if name.startswith("NEGOTIATE_"):
            tensor.negotiated = tensor.arrived or begin
            tensor.arrived = 0
            yield "phase", {"name": "NEGOTIATE", **known}, begin, now - begin
        elif tensor.open:
            yield "phase", {"name": name, **known}, begin, now - begin
        else:
            fields: dict[str, Any] = {"name": f"{name.lower()} {known['tensor']}", **known}
            fields["op"] = name.lower()
            fields |= {"dtype": args["dtype"]} if "dtype" in args else {}
            start = tensor.negotiated or begin
            tensor.negotiated = 0
            yield "collective", fields, start, now - start


def _short(name: str) -> str:
    """Return a tensor's name without horovod.torch's prefix, or `#2`, say, if it has none."""
    if prefix := _TENSOR_PREFIX.match(name):
        name = name[prefix.end() :]
    return f"#{name.rpartition('.')[2]}" if name.startswith("noname.") else name


RANK_0_ONLY = (
    "this Horovod is not a current Rankroom build: its collectives are known only from rank 0's "
    "own timeline; `rankroom horovod build` makes one that records every rank"
)
USER_TIMELINE = (
    "hvd.start_timeline() makes Horovod write your own file: until hvd.stop_timeline(), the "
    "collectives of {library} are not in this record"
)
TIMELINE_VARIABLE_SET = (
    "HOROVOD_TIMELINE makes Horovod write {file}: the collectives of {library} are not in this "
    "record"
)
