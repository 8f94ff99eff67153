"""Parses a large file on several cores: its stretches in parallel, joined in their order.

This is only for sound files. If a strict parser rejects anything, or if names exceed their limits,
which must be counted in order, `Unsound` is raised, and one process reads the file again.
"""

from __future__ import annotations

import json
import multiprocessing
import threading
from collections import Counter, deque
from collections.abc import Iterator
from concurrent.futures import Future, ProcessPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from rankroom.analysis.importers.chrome import Key, Reader
from rankroom.analysis.importers.lanes import Lane
from rankroom.analysis.importers.trace_repair import Events, Json
from rankroom.system import control_groups

MIN_FILE_BYTES = 16 << 20  # bytes; from this size, other processes pay off
MAX_PROCESSES = 4  # processes
HEAD_EVENTS = 4  # first events of a stretch, which may describe the whole file


class Unsound(Exception):
    """The file has to be read event by event."""


@dataclass
class Part:
    """The content of one stretch of a file: spans, their names, and events of other kinds."""

    head: list[Json]
    names: list[Json]
    lanes: dict[Key, Lane]
    others: list[Json]
    dropped: Counter[str]


def is_worth(path: Path) -> bool:
    """Whether parsing this file in parallel pays off, and is safe in this process."""
    try:
        large = path.stat().st_size >= MIN_FILE_BYTES
    except OSError:
        return False
    # A forked copy of a process with threads may hang.
    forks = "fork" in multiprocessing.get_all_start_methods() and threading.active_count() == 1
    return large and forks and control_groups.cores() > 1


def read(events: Events, reader: Reader) -> Iterator[list[Json]]:
    """Feed all events to `reader`; yield the first ones of each stretch. Raises Unsound."""
    count = min(control_groups.cores(), MAX_PROCESSES)
    fork = multiprocessing.get_context("fork")
    ahead: deque[Future[Part | None]] = deque()
    with ProcessPoolExecutor(count, fork) as pool:
        for batch in events.stretches():
            if isinstance(batch, str):
                ahead.append(pool.submit(part, batch))
            else:
                yield from (_put(each, reader) for each in ahead)
                ahead.clear()
                reader.take(batch)
                yield batch[:HEAD_EVENTS]
            while len(ahead) > 2 * count:
                yield _put(ahead.popleft(), reader)
        yield from (_put(each, reader) for each in ahead)
    if reader.names.left_out:
        raise Unsound


def part(text: str) -> Part | None:
    """Parse a stretch, in a worker process; return None if it is not sound."""
    try:
        events = json.JSONDecoder(strict=False).decode(f"[{text}]")
    except (ValueError, RecursionError):
        return None
    if not all(map(dict.__instancecheck__, events)):
        return None
    reader = _Spans()
    reader.take(events)
    if reader.names.left_out:
        return None
    return Part(
        events[:HEAD_EVENTS], reader.names.defined, reader.lanes, reader.others, reader.dropped
    )


def _put(coming: Future[Part | None], reader: Reader) -> list[Json]:
    made = coming.result()
    if made is None:
        raise Unsound
    reader.join(made.names, made.lanes)
    reader.dropped.update(made.dropped)
    reader.taken += len(made.others)
    for event in made.others:
        reader.take_unusual(event)
    return made.head


class _Spans(Reader):
    """Takes complete events, and keeps other events, which may concern other stretches."""

    def __init__(self) -> None:
        super().__init__()
        self.others: list[Any] = []

    def take_unusual(self, event: Json) -> None:
        if event.get("ph") == "X":
            super().take_unusual(event)
        else:
            self.others.append(event)
