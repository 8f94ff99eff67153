"""A record on the site, as it is sent here: what is new of it, in an order that never misleads.

Its state is sent after all events that were there when it was read: who reads "done" in the copy
has every line.
"""

from __future__ import annotations

import hashlib
import json
import os
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from rankroom.far.frames import Head
from rankroom.record.store import RecordPaths

CHUNK = 1 << 18
MARKED = 4096  # bytes before a place that tell whether two files are the same up to it


@dataclass(frozen=True)
class Place:
    """How much of an events.jsonl somebody has, and the digest of the last bytes of that."""

    at: int = 0
    mark: str = ""

    @classmethod
    def of(cls, file: Path) -> Place:
        """The end of a file."""
        try:
            size = file.stat().st_size
        except OSError:
            size = 0
        return cls(size, _mark(file, size))


class Followed:
    """One record, to one reader who has `have` of its events; None if they have nothing of it."""

    def __init__(self, paths: RecordPaths, have: Place | None) -> None:
        self._paths = paths
        self._begun = have is not None
        self._have = have or Place()
        self._sent = b""  # the run.json that was sent last
        self.done = False

    def news(self, most: int = CHUNK) -> Iterator[tuple[Head, bytes]]:
        """What is new, in messages of about `most` bytes, up to what is there now.

        Raises OSError where the record cannot be read.
        """
        said = {"say": "record", "run": self._paths.id}
        run = self._paths.run.read_bytes()
        if not self._begun:
            source = self._paths.source.read_bytes()
            yield {**said, "file": "source", "run.json": run.decode()}, source
            self._begun = True
        elif self._have.at and _mark(self._paths.events, self._have.at) != self._have.mark:
            # Another file than the one they have, or not as long any more.
            yield {**said, "file": "events", "anew": True}, b""
            self._have = Place()
        at = self._have.at
        with self._paths.events.open("rb") as file:
            end = os.fstat(file.fileno()).st_size
            if end < at:
                yield {**said, "file": "events", "anew": True}, b""
                at = 0
            file.seek(at)
            while at < end and (data := file.read(min(most, end - at))):
                yield {**said, "file": "events", "at": at}, data
                at += len(data)
        self._have = Place(at, _mark(self._paths.events, at))
        if run != self._sent:
            self._sent = run
            yield {**said, "file": "run"}, run
        self.done = json.loads(run).get("state") != "running"


def _mark(file: Path, at: int) -> str:
    """The digest of the bytes before `at`; empty where there are not as many."""
    if not at:
        return ""
    try:
        with file.open("rb") as opened:
            if os.fstat(opened.fileno()).st_size < at:
                return ""
            opened.seek(max(0, at - MARKED))
            return hashlib.sha256(opened.read(min(at, MARKED))).hexdigest()[:16]
    except OSError:
        return ""
