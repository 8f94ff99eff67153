"""The spans of a record, in columns: what each rank did, and when, on one clock.

Invalid spans are dropped and counted, never an error; docs/profile-rules.md has the rules.
"""

from __future__ import annotations

from array import array
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field
from itertools import accumulate
from pathlib import Path
from typing import Any, TypeGuard

import numpy as np
import numpy.typing as npt

from rankroom.record.model import Json, RunInfo, parse_event

TEN_YEARS_US = 315_576_000_000_000  # no time of a run may be farther from its start
_FIRST_INEXACT = 1 << 53  # from here on, JavaScript's numbers skip integers
NO_NAME = -1  # stands for a number that no table of names can have
_UNKNOWN: Json = {"name": "?"}
# How `event_line` begins the lines that matter here; a line without _KIND has to be parsed.
_KIND = b'{"kind":"'
_READ_KINDS = tuple(b'{"kind":"' + kind for kind in (b"spans", b"status", b"mark", b"sample"))
_CAT, _DEFINE = b'"cat":"', b'"define"'


Column = npt.NDArray[np.int64]


def _column() -> array[int]:
    return array("q")


@dataclass
class Lane:
    """The spans of one category of one rank, in the order of the record; times in µs."""

    name: array[int] = field(default_factory=_column)
    start: array[int] = field(default_factory=_column)
    end: array[int] = field(default_factory=_column)

    def __len__(self) -> int:
        return len(self.start)

    def columns(self) -> tuple[Column, Column, Column]:
        """Return copies of the names, starts and ends, sorted by start."""
        name, start, end = (np.array(each, np.int64) for each in (self.name, self.start, self.end))
        if (start[1:] < start[:-1]).any():
            order = np.argsort(start, kind="stable")
            name, start, end = name[order], start[order], end[order]
        return name, start, end


class Timeline:
    """All spans of a run. `dropped` counts the invalid ones by reason."""

    def __init__(self, run: RunInfo) -> None:
        self.ranks = sorted({rank.rank for rank in run.ranks})
        # Ranks on which the cell did not end normally.
        self.failed = {rank.rank for rank in run.ranks if rank.state not in (None, "running", "ok")}
        self.lanes: dict[int, dict[str, Lane]] = {rank: {} for rank in self.ranks}
        self.begun: dict[int, int] = {}
        self.ended: dict[int, int] = {}
        # Ranks that died in an elastic run: since when they are absent, and their past absences.
        self._left: dict[int, int] = {}
        self._away: dict[int, list[tuple[int, int]]] = {}
        # When each rank was notified of a regrouping of such a run, and the regrouping's number.
        self.regrouped: dict[int, list[tuple[int, int]]] = {}
        # Time, memory and GPU memory of each sample, one after the other, in bytes; -1 where the
        # latter is unknown. A long run of many ranks has millions.
        self.samples: dict[int, array[int]] = {rank: array("q") for rank in self.ranks}
        self.latest = -TEN_YEARS_US  # the latest time at which a rank reported spans
        self.dropped: dict[str, int] = {}
        self.version = 0  # grows with each `spans` or `status` event
        self._names: dict[int, dict[int, Json]] = {rank: {} for rank in self.ranks}
        self._offset = dict.fromkeys(self.ranks, 0)
        for rank in run.ranks:
            if rank.clock is not None and abs(rank.clock.offset) <= TEN_YEARS_US:
                self._offset[rank.rank] = rank.clock.offset
        # By how many µs each rank's times may differ from those of ranks on other hosts.
        self.doubt = _doubts(run)

    @classmethod
    def of(cls, run: RunInfo, lines: Iterable[bytes], only: str = "") -> Timeline:
        """Return the timeline of a record's lines; lines of logs and the like are skipped unparsed.

        With `only`, so are lines with spans of other categories, unless they define names.
        """
        timeline = cls(run)
        timeline.take(_only(lines, only) if only else lines)
        return timeline

    @classmethod
    def read(cls, run: RunInfo, events: Path, only: str = "") -> Timeline:
        """Read the timeline of an events.jsonl; return an empty one if there is no such file."""
        try:
            with events.open("rb") as file:
                return cls.of(run, file, only)
        except FileNotFoundError:
            return cls(run)

    def take(self, lines: Iterable[bytes]) -> None:
        """Add more lines of the record."""
        for line in lines:
            if line.startswith(_KIND) and not line.startswith(_READ_KINDS):
                continue
            if (event := parse_event(line)) is not None:
                self.add(event)

    def add(self, event: Json) -> None:
        """Add one event of the record."""
        rank, kind = event["rank"], event["kind"]
        self.version += kind in ("spans", "status")
        if kind == "spans":
            if rank in self.lanes:
                self._add_spans(rank, event)
            else:
                columns = event["name"], event["start"], event["dur"]
                self._drop("rank", max(map(len, columns)))
        elif kind == "status" and rank in self.lanes and abs(event["t"]) <= TEN_YEARS_US:
            if event["state"] == "running":
                t = event["t"] - self._offset[rank]
                self.begun.setdefault(rank, t)
            else:
                # A lost rank cannot report this itself: the record's writer does, on its own clock.
                lost = event["state"] == "lost"
                self.ended[rank] = t = event["t"] - (0 if lost else self._offset[rank])
            if rank in self._left:
                self._away.setdefault(rank, []).append((self._left.pop(rank), t))
        elif kind == "mark" and rank in self.lanes and abs(event["t"]) <= TEN_YEARS_US:
            self._add_mark(rank, event)
        elif kind == "sample" and rank in self.lanes and abs(event["t"]) <= TEN_YEARS_US:
            memory, gpu = event.get("memory"), event.get("gpu_memory")
            if _is_size(memory):
                t = event["t"] - self._offset[rank]
                self.samples[rank].extend((t, int(memory), int(gpu) if _is_size(gpu) else -1))

    def _add_mark(self, rank: int, event: Json) -> None:
        match event:
            case {"name": "away", "t": t}:
                self._left[rank] = t  # set by the record's writer, on its own clock
            case {"name": "regrouped", "t": t, "args": {"meeting": int(meeting)}}:
                self.regrouped.setdefault(rank, []).append((t - self._offset[rank], meeting))

    def absences(self, rank: int) -> list[tuple[int, int]]:
        """Return from when to when the rank was absent; it may be so still."""
        still = [(self._left[rank], self.wall[1])] if rank in self._left else []
        return self._away.get(rank, []) + still

    def named(self, rank: int, number: int) -> Json:
        """Return the name and arguments that a number in a lane's column of names stands for."""
        return self._names[rank].get(number, _UNKNOWN)

    def lane(self, rank: int, cat: str) -> Lane:
        """Return the spans of a category; an empty lane if there are none."""
        return self.lanes[rank].get(cat) or Lane()

    @property
    def count(self) -> int:
        """The number of spans."""
        return sum(len(lane) for lanes in self.lanes.values() for lane in lanes.values())

    @property
    def wall(self) -> tuple[int, int]:
        """When the cell began on the first rank and ended on the last, as far as is known yet."""
        if not self.begun:
            return self._extent()
        begin = min(self.begun.values())
        ends = [begin, *self.ended.values()]
        if self.begun.keys() - self.ended.keys():
            ends += [self.latest, *self.begun.values()]
            if self.count:
                ends.append(self._extent()[1])
        return begin, max(ends)

    def _extent(self) -> tuple[int, int]:
        """Return the earliest start and the latest end of all spans."""
        lanes = [lane for lanes in self.lanes.values() for lane in lanes.values() if lane.start]
        if not lanes:
            return 0, 0
        return min(min(lane.start) for lane in lanes), max(max(lane.end) for lane in lanes)

    def active(self, rank: int, wall: tuple[int, int]) -> tuple[int, int]:
        """Return when the rank began and ended the cell, within `wall`; no time if it did not."""
        begin, end = wall
        if self.begun:
            begin, end = self.begun.get(rank, end), self.ended.get(rank, end)
        return begin, max(begin, end)

    def _add_spans(self, rank: int, event: Json) -> None:
        if abs(event["t"]) <= TEN_YEARS_US:
            self.latest = max(self.latest, event["t"] - self._offset[rank])
        self._define(rank, event)
        names, starts, durs = event["name"], event["start"], event["dur"]
        if not len(names) == len(starts) == len(durs):
            self._drop("length", max(len(names), len(starts), len(durs)))
            return
        if not names:
            return
        if set(map(type, (*names, *starts, *durs))) == {int}:
            places = list(accumulate(starts))
            longest = max(durs)
            if (
                min(durs) >= 0
                and min(names) >= 0
                and max(names) < _FIRST_INEXACT
                and min(places) >= -TEN_YEARS_US
                and max(places) + longest <= TEN_YEARS_US
            ):
                self._append(rank, event["cat"], names, places, durs)
                return
        sound = list(self._sound(names, starts, durs))
        if sound:
            columns = [[span[i] for span in sound] for i in range(3)]
            self._append(rank, event["cat"], *columns)

    def _append(
        self, rank: int, cat: str, names: list[int], places: list[int], durs: list[int]
    ) -> None:
        lane = self.lanes[rank].setdefault(cat, Lane())
        if offset := self._offset[rank]:
            places = [place - offset for place in places]
        lane.name.extend(names)
        lane.start.extend(places)
        lane.end.extend([place + dur for place, dur in zip(places, durs, strict=True)])

    def _sound(self, names: list[Any], starts: list[Any], durs: list[Any]) -> Iterator[list[int]]:
        """Yield name number, start and duration of the valid spans; count the others."""
        place = 0
        for at, (number, start, dur) in enumerate(zip(names, starts, durs, strict=True)):
            if not whole(start):
                self._drop("number", len(starts) - at)  # the positions of the rest are unknown
                return
            place += int(start)
            if abs(start) >= _FIRST_INEXACT or abs(place) >= _FIRST_INEXACT:
                self._drop("far", len(starts) - at)
                return
            if not whole(dur):
                self._drop("number", 1)
            elif dur < 0:
                self._drop("negative", 1)
            elif abs(place) > TEN_YEARS_US or place + int(dur) > TEN_YEARS_US:
                self._drop("far", 1)
            elif not whole(number):
                self._drop("name", 1)
            else:
                known = 0 <= number < _FIRST_INEXACT
                yield [int(number) if known else NO_NAME, place, int(dur)]

    def _define(self, rank: int, event: Json) -> None:
        defined, first = event.get("define"), event.get("from", 0)
        if isinstance(defined, list) and whole(first) and 0 <= first < _FIRST_INEXACT:
            for number, named in enumerate(defined, int(first)):
                if isinstance(named, dict) and isinstance(named.get("name"), str):
                    self._names[rank][number] = named

    def _drop(self, why: str, count: int) -> None:
        if count:
            self.dropped[why] = self.dropped.get(why, 0) + count


def _doubts(run: RunInfo) -> dict[int, int]:
    errors: dict[str, int] = {}
    for rank in run.ranks:
        errors[rank.host] = max(errors.get(rank.host, 0), rank.clock.error if rank.clock else 0)
    if len(errors) < 2:
        return {rank.rank: 0 for rank in run.ranks}
    most, next_most = sorted(errors.values(), reverse=True)[:2]
    doubts = {host: own + (next_most if own == most else most) for host, own in errors.items()}
    return {rank.rank: doubts[rank.host] for rank in run.ranks}


def _only(lines: Iterable[bytes], cat: str) -> Iterator[bytes]:
    """Select, without parsing, the lines that may have spans of a category or define names."""
    wanted = _CAT + cat.encode() + b'"'
    return (line for line in lines if wanted in line or _DEFINE in line or _CAT not in line)


def _is_size(value: Any) -> TypeGuard[float]:
    return whole(value) and 0 <= value < _FIRST_INEXACT


def whole(value: Any) -> TypeGuard[float]:
    """True for a number without a fractional part."""
    # Other languages do not distinguish 4000.0 from 4000; True is an int only in Python.
    if isinstance(value, float):
        return value.is_integer()
    return isinstance(value, int) and not isinstance(value, bool)
