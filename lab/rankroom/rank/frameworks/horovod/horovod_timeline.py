"""The spans of a Horovod that Rankroom did not build: from its own timeline, on rank 0 alone.

There a negotiation begins when rank 0 hears of it, and ticks say when each rank was ready.
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

LARGE = 32 << 20  # bytes; then the file begins again
# What Horovod writes an event with; a tensor's name stands in it as it is, quotes and all.
_BEGIN = '{"'

# What horovod.torch puts before a tensor's name.
_PREFIX = re.compile(r"(grouped_)?(allreduce|allgather|broadcast|alltoall|reducescatter)\.")


class TimelineSource:
    """Horovod's timeline in a file of this rank's spool, read as far as it is written."""

    def __init__(self, library: str, basics: Any, world: World) -> None:
        self._library = library
        self._basics = basics
        self._rank = world.rank
        self._file = Path(os.environ["RANKROOM_SPOOL"]) / f"timeline-{library}.json"
        self._reader = Reader(world.rank)
        self._at = 0
        self._on = False
        self._users = False
        self._named = ""  # the user's file by Horovod's own variable, of which it writes one only
        self._calls = 0  # of collectives, at the end of the last cell
        self._lock = threading.RLock()

    def begin(self) -> None: ...

    def started(self) -> None:
        """Horovod has been initialised: rank 0's can write."""
        with self._lock:
            self._on = False
            named = os.environ.get("HOROVOD_TIMELINE", "")
            self._named = "" if named == "DYNAMIC" else named
            if self._rank == 0 and not self._users and not self._named:
                self._start()

    def users(self, recording: bool) -> None:
        """The user's own recording goes first, as Horovod writes one file at a time."""
        with self._lock:
            if recording:
                self._read()
                recorder.note(USERS.format(library=f"hvd.{self._library}"))
            self._on = False
            self._users = recording
            if not recording:
                self.started()

    def take(self) -> None:
        """Hand over what Horovod has written since; in pieces of some kilobytes."""
        with self._lock:
            self._read()
            if self._at or self._calls != horovod_calls.count(self._library):
                about = {"file": self._named, "library": f"hvd.{self._library}"}
                recorder.note(NAMED.format(**about) if self._named else NOTE)
            if self._at > LARGE:
                self._write_again()

    def finish(self) -> None:
        """A cell is over: Horovod writes the rest when it closes the file."""
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
            # The bracket that ends the array is overwritten by what comes next.
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
    """What is under way of one tensor: the beginnings of its events, innermost last."""

    name: str
    arrived: int = 0
    negotiated: int = 0
    open: list[tuple[str, int]] = field(default_factory=list)


Found = tuple[str, dict[str, Any], int, int]  # category, name, start, duration


class Reader:
    """Makes spans of a timeline file that is still being written, piece by piece."""

    def __init__(self, rank: int) -> None:
        self._rank = str(rank)
        self._text = ""
        self._zero = 0
        self._tensors: dict[int, _Tensor] = {}
        self._bytes = codecs.getincrementaldecoder("utf-8")("backslashreplace")
        self._decoder = json.JSONDecoder(strict=False)

    def feed(self, data: bytes) -> Iterator[Found]:
        """The spans that are over with `data`, the bytes that follow those before."""
        self._text += self._bytes.decode(data)
        for event in self._events():
            with contextlib.suppress(KeyError, TypeError, ValueError, IndexError):
                yield from self._event(event)

    def _events(self) -> Iterator[dict[str, Any]]:
        at = 0
        while (begin := self._text.find(_BEGIN, at)) >= 0:
            try:
                event, at = self._decoder.raw_decode(self._text, begin)
            except ValueError:
                following = self._text.find("\n" + _BEGIN, begin + 1)
                following = following if following >= 0 else self._text.find("}," + _BEGIN, begin)
                if following < 0:
                    at = begin
                    break
                at = following + 1  # a name that breaks the syntax: this event is lost
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
    """A tensor's name without what horovod.torch puts before it; nameless ones by number."""
    if prefix := _PREFIX.match(name):
        name = name[prefix.end() :]
    return f"#{name.rpartition('.')[2]}" if name.startswith("noname.") else name


NOTE = (
    "this Horovod is none of Rankroom's present builds: its collectives are known from rank 0's "
    "own timeline only; `rankroom horovod build` makes one that records every rank"
)
USERS = (
    "hvd.start_timeline() has Horovod write a file of the user's: until hvd.stop_timeline() the "
    "collectives of {library} are not in this record"
)
NAMED = (
    "HOROVOD_TIMELINE has Horovod write {file}: the collectives of {library} are not in this record"
)
