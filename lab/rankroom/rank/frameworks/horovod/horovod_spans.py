"""Record Horovod's collectives as spans of this rank: its arrival, the phases, and the end of each.

Rankroom's Horovod records them in memory, in native code, for any framework, in graphs as well;
they are taken from there whenever the rank reports. Any other Horovod only has its timeline.
"""

from __future__ import annotations

import ctypes
import json
import re
import time
from collections.abc import Iterator
from typing import Any, Protocol

from rankroom.rank.frameworks.horovod import process_sets
from rankroom.rank.frameworks.horovod.horovod_timeline import TimelineSource
from rankroom.rank.world import World
from rankroom.reporting.spans import recorder

SPANS_PER_CALL = 4096  # taken per call
NAME_BUFFER_BYTES = 1 << 16  # bytes of names taken per call
MAX_KEPT_NAMES = 100_000  # kept; Horovod forgets its own after half as many, and reuses no number

# horovod.tensorflow's prefix of tensor names in graphs; outside of graphs, the whole name.
_TENSOR_PREFIX = re.compile(r"Horovod(Grouped)?[A-Z][a-z]+(_|$)")


class Source(Protocol):
    """The source of one library's spans."""

    def begin(self) -> None:
        """Prepare for a cell that starts."""

    def take(self) -> None:
        """Pass new spans to the recorder."""

    def finish(self) -> None:
        """End the recording of a cell that is over, so that `take` finds all of it."""

    def started(self) -> None:
        """Called when Horovod has been initialized."""

    def users(self, recording: bool) -> None:
        """Called when the user starts (`recording`) or stops a timeline of their own."""


_sources: dict[str, Source] = {}


def watch(library: str, basics: Any, world: World) -> Source:
    """Record the collectives of a library from its next initialization on; return the source."""
    source = _sources.get(library)
    if source is None:
        compiled = basics.MPI_LIB_CTYPES
        if not _sources and hasattr(compiled, "horovod_report_crashes"):
            compiled.horovod_report_crashes()
        native = hasattr(compiled, "horovod_take_spans")
        make = NativeSource if native else TimelineSource
        source = _sources[library] = make(library, basics, world)
    return source


def begin() -> None:
    """Prepare all libraries for a cell that starts."""
    for source in list(_sources.values()):
        source.begin()


def take() -> None:
    """Pass new spans of all libraries to the recorder; called whenever this rank reports."""
    for source in list(_sources.values()):
        source.take()


def finish() -> None:
    """End the recording of a finished cell; a failure here must not keep the cell from ending."""
    for source in list(_sources.values()):
        try:
            source.finish()
        except Exception as error:
            recorder.note(f"the last spans of Horovod are missing: {error!r}")


def in_flight(library: str) -> tuple[str, float] | None:
    """Return a library's pending collectives, in words, and the age of the oldest in seconds."""
    source = _sources.get(library)
    found = source.in_flight() if isinstance(source, NativeSource) else []
    if not found:
        return None
    since, what = found[0]
    more = f" and {len(found) - 1} more" if len(found) > 1 else ""
    return what + more, time.time() - since / 1e6


class NativeSource:
    """The recorder in Rankroom's Horovod.

    It has a collective before the call that waits for that returns, so there is no need to wait for
    the last ones; and it survives Horovod's shutdown and initialization.
    """

    def __init__(self, library: str, basics: Any, world: World) -> None:
        self._library = f"hvd.{library}"
        self._name = library
        self._world = world
        self._compiled = compiled = basics.MPI_LIB_CTYPES
        for name in ("horovod_take_spans", "horovod_take_span_names", "horovod_take_spans_dropped"):
            getattr(compiled, name).restype = ctypes.c_int64
        compiled.horovod_take_spans.argtypes = [ctypes.c_int, ctypes.c_void_p, ctypes.c_int64]
        compiled.horovod_take_span_names.argtypes = [ctypes.c_void_p, ctypes.c_int64]
        self._spans = (ctypes.c_int64 * (3 * SPANS_PER_CALL))()
        self._numbers_taken = memoryview(self._spans).cast("B").cast("q")
        self._names = ctypes.create_string_buffer(NAME_BUFFER_BYTES)
        self._described: dict[int, str] = {}
        # Of the current run: its start; by native name, the number in its table, and the stream.
        self._began = 0
        self._numbers: dict[int, int] = {}
        self._streams: dict[int, str] = {}
        self.record(True)

    def record(self, on: bool) -> None:
        """Turn recording on or off, also to measure what it costs."""
        self._compiled.horovod_record_spans(int(on))

    def take(self) -> None:
        if self._began != recorder.began:
            self._began = recorder.began
            self._numbers.clear()
            self._streams.clear()
        for kind, cat in enumerate(("collective", "phase")):
            while count := self._compiled.horovod_take_spans(kind, self._spans, SPANS_PER_CALL):
                self._hand_over(cat, count)
        if dropped := self._compiled.horovod_take_spans_dropped():
            recorder.note(DROPPED.format(library=self._library, count=dropped))

    def in_flight(self) -> list[tuple[int, str]]:
        """Return each pending collective, oldest first: its start in epoch µs, and its name."""
        tell = getattr(self._compiled, "horovod_tell_open", None)
        if tell is None:  # built by an earlier Rankroom
            return []
        room = ctypes.create_string_buffer(NAME_BUFFER_BYTES)
        tell.restype = ctypes.c_int64
        tell.argtypes = [ctypes.c_void_p, ctypes.c_int64]
        found = []
        for line in netstrings(ctypes.string_at(room, tell(room, NAME_BUFFER_BYTES))):
            since, operation, _, tensor = line.split(" ", 3)
            if prefix := _TENSOR_PREFIX.match(tensor):
                tensor = tensor[prefix.end() :]
            found.append((int(since), f"hvd.{operation.lower()} {tensor}".rstrip()))
        return sorted(found)

    def begin(self) -> None:
        self.record(True)

    def finish(self) -> None:
        # What threads do between two cells belongs to no cell.
        self.record(False)

    def started(self) -> None: ...

    def users(self, recording: bool) -> None: ...

    def _hand_over(self, cat: str, count: int) -> None:
        columns = self._numbers_taken[: 3 * count].tolist()
        names, starts, durs = columns[::3], columns[1::3], columns[2::3]
        different = set(names)
        # Where shapes change with each step, there is always another name.
        _bound(self._numbers)
        _bound(self._streams)
        if unknown := different - self._numbers.keys():
            self._learn(unknown)  # again, if it was dropped
        numbers, streams, began = self._numbers, self._streams, self._began
        told = list(map(numbers.__getitem__, names))
        found = {streams[name] for name in different}
        if len(found) == 1 and min(starts) >= began:
            # The usual case, without a step in Python for each span.
            recorder.extend_columns(cat, (told, starts, durs), found.pop())
            return
        every = list(zip(names, zip(told, starts, durs, strict=True), strict=True))
        for stream in found:
            recorder.extend(
                cat,
                [
                    span
                    for name, span in every
                    # Without what happened between two cells.
                    if span[1] + span[2] >= began and streams[name] == stream
                ],
                stream,
            )

    def _learn(self, names: set[int]) -> None:
        """Look up what these numbers stand for, and add them to the run's table of names."""
        text = b""
        while count := self._compiled.horovod_take_span_names(self._names, NAME_BUFFER_BYTES):
            text += ctypes.string_at(self._names, count)
        for line in netstrings(text):
            number, _, description = line.partition(" ")
            self._described[int(number)] = description
        _bound(self._described)
        for name in names:
            described = self._described.get(name, "phase ? 1 0 ")
            fields, stream = describe(described, self._library, self._group)
            self._numbers[name] = recorder.number((self._library, name), fields.copy)
            self._streams[name] = stream

    def _group(self, number: int) -> dict[str, Any]:
        """Return the fields that describe a process set other than that of all ranks."""
        ranks = process_sets.members(self._name, number, self._world.size)
        return {"group": f"process set {number}", "ranks": list(ranks)}


def _bound(names: dict[int, Any]) -> None:
    """Keep the newest MAX_KEPT_NAMES entries; up to twice as many, as dropping them takes long."""
    if len(names) > 2 * MAX_KEPT_NAMES:
        for old in list(names)[:-MAX_KEPT_NAMES]:
            del names[old]


def describe(text: str, library: str, group: Any) -> tuple[dict[str, Any], str]:
    """Return the fields of a native name for the record, and the stream that its spans belong to.

    `text` is `collective OP SET BYTES DTYPE SHAPE TENSOR` or `phase ACTIVITY TENSORS SET TENSOR`;
    `group(set)` returns the fields that describe a process set.
    """
    kind, what, rest = text.split(" ", 2)
    fields: dict[str, Any] = {"library": library}
    if kind == "phase":
        count, number, tensor = rest.split(" ", 2)
        fields |= {"name": what}
        if int(count) > 1:
            fields["fused"] = int(count)
    else:
        number, size, dtype, shape, tensor = rest.split(" ", 4)
        fields |= {"op": what.lower()}
        if size != "-":
            fields |= {"bytes": int(size), "dtype": dtype, "shape": json.loads(shape)}
    if prefix := _TENSOR_PREFIX.match(tensor):
        tensor = tensor[prefix.end() :]
    if tensor:
        fields["tensor"] = tensor
    if "op" in fields:
        fields["name"] = f"{fields['op']} {tensor}".rstrip()
    if number != "0":
        fields |= group(int(number))
    return fields, f"{library} {number}"


def netstrings(text: bytes) -> Iterator[str]:
    """Yield the strings of repeated `length:string`, with bytes that are not UTF-8 as \\xNN."""
    at = 0
    while at < len(text):
        colon = text.index(b":", at)
        end = colon + 1 + int(text[at:colon])
        yield text[colon + 1 : end].decode("utf-8", "backslashreplace")
        at = end


DROPPED = "{count} spans of {library} are missing: the rank did not report them in time"
