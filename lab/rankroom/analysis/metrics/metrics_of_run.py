"""The metrics of a run: read from its events as they grow, stored in coarse form when it has ended.

Invalid points are dropped and counted, never an error. Memory is bounded: very many points are
merged into buckets.
"""

from __future__ import annotations

import json
import math
import threading
import time
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any

import numpy as np

from rankroom.analysis.metrics.curve_notes import notes_of
from rankroom.analysis.metrics.curves import NOWHERE, Columns, Curve, Floats, wider, word
from rankroom.analysis.timeline import TEN_YEARS_US
from rankroom.record.model import Json, RunInfo, parse_event
from rankroom.record.store import RecordPaths, Store
from rankroom.record.tail import lines_after, only_log_after
from rankroom.system.files import write_atomically

METRICS_FORMAT_VERSION = 2  # version of what metrics.json holds; another version is ignored
MAX_POINTS_IN_MEMORY = 8_000_000  # in memory, for one run
MAX_CURVES = 50_000  # of one run
STORED_BUCKETS = 200_000  # approximate number of buckets in metrics.json: some megabytes
MAX_CURVE_BUCKETS, MIN_CURVE_BUCKETS = 2048, 20  # buckets of one curve
MAX_STORED_NAMES = 20_000  # names of all ranks that are stored, for reading a part of the events
NOTES_PERIOD_FACTOR = 10  # notes are made again after this many times as long as they took
PART_BYTES, MAX_READ_BYTES = (
    256 << 10,
    8 << 20,
)  # bytes: of a part of the events, and read for one reply
_METRICS = b'{"kind":"metrics"'
_EXACT = 1 << 53


class Metrics:
    """All curves of a run, by name and rank. `dropped` counts invalid points by reason."""

    def __init__(self, run: RunInfo) -> None:
        self.curves: dict[str, dict[int, Curve]] = {}
        self.dropped: dict[str, int] = {}
        self.version = 0  # grows with each event
        self.seen = NOWHERE  # extent of the points added since this was last reset
        self._names: dict[int, dict[int, str]] = {rank.rank: {} for rank in run.ranks}
        self._offset = {r.rank: r.clock.offset if r.clock else 0 for r in run.ranks}
        self._count = 0
        self._held = 0  # points and buckets in memory

    @property
    def is_exact(self) -> bool:
        """True if each bucket is a single point."""
        return all(curve.is_exact for _, _, curve in self.all())

    @property
    def held(self) -> int:
        """The number of points and buckets in memory."""
        return self._held

    def all(self) -> Iterator[tuple[str, int, Curve]]:
        """Yield name, rank and curve; names in order of their first appearance."""
        for name, curves in self.curves.items():
            for rank in sorted(curves):
                yield name, rank, curves[rank]

    def take(self, lines: Iterable[bytes]) -> None:
        """Add more lines of the record; lines of other kinds are skipped unparsed."""
        for line in lines:
            if line.startswith(_METRICS) and (event := parse_event(line)) is not None:
                self.add(event)

    def add(self, event: Json) -> None:
        """Add one event of metrics."""
        self.version += 1
        columns = [event[key] for key in ("name", "step", "at", "value")]
        longest = max(map(len, columns))
        rank = event["rank"]
        if rank not in self._names:
            self._drop("rank", longest)
            return
        self._define(self._names[rank], event)
        if min(map(len, columns)) != longest:
            self._drop("length", longest)
        elif longest:
            try:
                name, step, t, value = (np.array(column, np.float64) for column in columns)
                self._add_points(rank, name, step, np.cumsum(t), value)
            except (TypeError, ValueError, OverflowError):
                self._drop("number", longest)

    @property
    def names(self) -> list[Json]:
        """The ranks' tables of names; empty if they are large or have gaps."""
        tables = [
            {"rank": rank, "define": list(names.values())} for rank, names in self._names.items()
        ]
        whole = all(list(names) == list(range(len(names))) for names in self._names.values())
        return tables if whole and sum(map(len, self._names.values())) <= MAX_STORED_NAMES else []

    def restore_names(self, tables: list[Json]) -> None:
        """Restore stored `names`, so that the events that define them need not be read."""
        for table in tables:
            if table["rank"] in self._names:
                self._define(self._names[table["rank"]], table)

    def curve(self, name: str, rank: int) -> Curve | None:
        """Return the curve of this name and rank, new if need be; None if there are too many."""
        ranks = self.curves.setdefault(name, {})
        if rank not in ranks:
            if self._count >= MAX_CURVES:
                if not ranks:
                    del self.curves[name]
                return None
            self._count += 1
            ranks[rank] = Curve()
        return ranks[rank]

    def _add_points(self, rank: int, name: Floats, step: Floats, t: Floats, value: Floats) -> None:
        sound = np.isfinite(step) & (np.abs(step) < _EXACT) & (np.abs(t) <= TEN_YEARS_US)
        if not sound.all():
            self._drop("far", int((~sound).sum()))
            if not sound.any():
                return
            name, step, t, value = (column[sound] for column in (name, step, t, value))
        t = t - self._offset[rank]
        self.seen = wider(self.seen, step, t)
        order = np.argsort(name, kind="stable")
        numbers, firsts = np.unique(name[order], return_index=True)
        ends = np.append(firsts[1:], len(order)).tolist()
        for number, begin, end in zip(numbers.tolist(), firsts.tolist(), ends, strict=True):
            which = order[begin:end]
            named = self._names[rank].get(number)
            if named is None:
                self._drop("name", len(which))
            elif (curve := self.curve(named, rank)) is None:
                self._drop("curves", len(which))
            else:
                curve.add(step[which], t[which], value[which])
                self._held += len(which)
        if self._held > MAX_POINTS_IN_MEMORY:
            self._shrink()

    def _shrink(self) -> None:
        curves = [curve for _, _, curve in self.all()]
        most = max(MIN_CURVE_BUCKETS, MAX_POINTS_IN_MEMORY // 2 // len(curves))
        for curve in curves:
            curve.shrink(most)
        self._held = sum(len(curve.columns().step) for curve in curves)

    def _define(self, names: dict[int, str], event: Json) -> None:
        defined, first = event.get("define"), event.get("from", 0)
        if isinstance(defined, list) and type(first) is int and 0 <= first < _EXACT:
            for number, name in enumerate(defined, first):
                if isinstance(name, str):
                    names[number] = name

    def _drop(self, why: str, count: int) -> None:
        if count:
            self.dropped[why] = self.dropped.get(why, 0) + count


class GrowingMetrics:
    """The metrics of a run; `look` reads what is new, from byte `read` of its events on."""

    def __init__(self, paths: RecordPaths, run: RunInfo) -> None:
        self.read = 0
        self.metrics = Metrics(run)
        self.lock = threading.Lock()  # to be held while the metrics are used
        self._events = paths.events
        self._clocks = _clocks(run)
        self._noted = -1
        self._notes: list[str] = []
        self._next = 0.0  # when the notes are due again

    def is_current(self, run: RunInfo) -> bool:
        """False if the data read is outdated: clocks have changed, or events been replaced."""
        try:
            size = self._events.stat().st_size
        except OSError:
            size = 0
        return size >= self.read and _clocks(run) == self._clocks

    def refresh(self) -> Metrics:
        """Read new lines, and return the metrics of all complete lines so far."""
        for lines, at in lines_after(self._events, self.read):
            self.metrics.take(lines)
            self.read = at
        return self.metrics

    def notes(self, is_live: bool = False) -> list[str]:
        """Return the notes so far; for a live run with very many points, they may lag a bit."""
        begin = time.monotonic()
        is_due = not is_live or begin >= self._next  # a view may not ask again after the end
        if self._noted != self.metrics.version and is_due:
            self._noted = self.metrics.version
            self._notes = _notes(self.metrics)
            self._next = begin + NOTES_PERIOD_FACTOR * (time.monotonic() - begin)
        return self._notes


class StoredMetrics:
    """The metrics stored in metrics.json."""

    def __init__(self, metrics: Metrics, kept: Json) -> None:
        self.metrics = metrics
        self._notes = [str(note) for note in kept["notes"]]
        self._names: list[Json] = kept["names"]
        self._parts: list[Json] = kept["parts"]

    def notes(self, is_live: bool = False) -> list[str]:
        """Return the stored notes."""
        return self._notes

    def part(
        self, events: Path, run: RunInfo, axis: str, low: float, high: float
    ) -> Metrics | None:
        """Return all points from `low` to `high`, and some around; None if it is too much.

        Raises OSError if they cannot be read.
        """
        extent = f"{axis}s"
        parts = [part for part in self._parts if part[extent][0] <= high and part[extent][1] >= low]
        if not self._parts or sum(part["to"] - part["from"] for part in parts) > MAX_READ_BYTES:
            return None
        metrics = Metrics(run)
        metrics.restore_names(self._names)
        with events.open("rb") as file:
            for part in parts:
                file.seek(part["from"])
                metrics.take(file.read(part["to"] - part["from"]).split(b"\n"))
        return metrics


def write_metrics(store: Store, run: RunInfo) -> None:
    """Store the metrics of a run that has just ended, in coarse form if there are many points.

    Raises OSError if they cannot be written.
    """
    paths = store.paths(run.id)
    metrics = Metrics(run)
    parts, read = _read_in_parts(paths.events, metrics)
    curves = list(metrics.all())
    most = min(MAX_CURVE_BUCKETS, max(MIN_CURVE_BUCKETS, STORED_BUCKETS // max(1, len(curves))))
    kept = [_to_json(name, rank, curve, most) for name, rank, curve in curves]
    exact = all(len(each["step"]) == each["points"] for each in kept)
    names = [] if exact else metrics.names
    said = {
        "rules": METRICS_FORMAT_VERSION,
        "read": read,
        "exact": exact,
        "dropped": metrics.dropped,
        "notes": _notes(metrics),
        "names": names,
        "parts": parts if names else [],
        "curves": kept,
    }
    write_atomically(paths.metrics, json.dumps(said, separators=(",", ":")) + "\n")


def _read_in_parts(events: Path, metrics: Metrics) -> tuple[list[Json], int]:
    """Add all events; return where in the file their points are, and how many bytes were read."""
    parts: list[Json] = []
    begin = 0
    for lines, end in lines_after(events, 0):
        begin = end - sum(len(line) + 1 for line in lines)
        group: list[bytes] = []
        size = 0
        for line in lines:
            group.append(line)
            size += len(line) + 1
            if size >= PART_BYTES or begin + size == end:
                metrics.seen = NOWHERE
                metrics.take(group)
                if metrics.seen != NOWHERE:
                    seen = plain(np.array(metrics.seen))
                    where = {"from": begin, "to": begin + size}
                    parts.append({**where, "steps": seen[:2], "times": seen[2:]})
                begin += size
                group, size = [], 0
    return parts, begin


def stored_metrics(paths: RecordPaths, run: RunInfo) -> StoredMetrics | None:
    """Return what metrics.json holds; None unless it covers all events and follows our rules."""
    try:
        kept = json.loads(paths.metrics.read_bytes())
        if kept["rules"] != METRICS_FORMAT_VERSION or not only_log_after(
            paths.events, kept["read"]
        ):
            return None
        metrics = Metrics(run)
        metrics.dropped = dict(kept["dropped"])
        for each in kept["curves"]:
            curve = metrics.curve(each["name"], each["rank"])
            if curve is not None:
                bad = [(point["step"], point["t"], point["value"]) for point in each["bad"]]
                extent = (*each["steps"], *each["times"])
                columns = _columns(each)
                # Earlier versions did not store the last point.
                step, value = each.get("last") or (columns.step[-1], columns.mean[-1])
                last = float(step), float(value)
                curve.restore(columns, each["points"], extent, bad, last)
        return StoredMetrics(metrics, kept)
    except (OSError, ValueError, TypeError, KeyError, IndexError, RecursionError):
        return None


def metrics_of(paths: RecordPaths, run: RunInfo) -> GrowingMetrics | StoredMetrics:
    """Return a run's metrics: as stored, or else as read from its events now."""
    kept = None if run.state == "running" else stored_metrics(paths, run)
    if kept is not None:
        return kept
    growing = GrowingMetrics(paths, run)
    growing.refresh()
    return growing


def _to_json(name: str, rank: int, curve: Curve, most: int) -> Json:
    columns = curve.coarse(most)
    is_points = curve.is_exact and len(columns.step) == curve.points
    last = curve.last if np.isfinite(curve.last) else word(curve.last)
    return {
        "name": name,
        "rank": rank,
        "points": curve.points,
        "steps": plain(np.array(curve.extent[:2])),
        "times": plain(np.array(curve.extent[2:])),
        "last": [curve.last_step, last],
        "bad": [dict(zip(("step", "t", "value"), each, strict=True)) for each in curve.bad],
        "step": plain(columns.step if is_points else placed(columns.step)),
        "t": np.round(columns.t).astype(np.int64).tolist(),
        "mean": plain(columns.mean if is_points else shortened(columns.mean)),
        "low": [] if is_points else plain(columns.low),
        "high": [] if is_points else plain(columns.high),
        "count": [] if is_points else columns.finite.astype(np.int64).tolist(),
    }


def _columns(kept: Json) -> Columns:
    step, t, mean = (np.array(kept[key], np.float64) for key in ("step", "t", "mean"))
    if not kept["count"]:
        return Columns(step, t, mean, mean, mean, np.isfinite(mean).astype(np.float64))
    low, high = (np.array(kept[key], np.float64) for key in ("low", "high"))
    return Columns(step, t, mean, low, high, np.array(kept["count"], np.float64))


def shortened(values: Floats) -> Floats:
    """Round means to nine significant digits."""
    with np.errstate(divide="ignore", invalid="ignore", over="ignore"):
        digits = 8 - np.floor(np.log10(np.abs(values)))
        scale = 10.0 ** np.clip(np.where(np.isfinite(digits), digits, 0), -300, 300)
        short = np.round(values * scale) / scale
    return np.where(np.isfinite(short), short, values)


def placed(places: Floats) -> Floats:
    """Round mean steps or times to about nine digits of their range; whole numbers stay so."""
    width = float(np.ptp(places)) if len(places) else 0.0
    if not width:
        return places
    return np.round(places, min(max(8 - math.floor(math.log10(width)), 0), 15))


def plain(values: Floats) -> list[Any]:
    """Convert for JSON: to ints if all values are whole, and to None where not finite."""
    found: list[Any] = values.tolist()
    if not np.isfinite(values).all():
        return [None if v != v or abs(v) == np.inf else v for v in found]
    if (np.abs(values) < _EXACT).all() and (values == np.floor(values)).all():
        return [int(v) for v in found]
    return found


def _notes(metrics: Metrics) -> list[str]:
    points = metrics.dropped.get("curves", 0)
    more = [MORE_CURVES.format(most=MAX_CURVES, points=points)] if points else []
    return more + notes_of(metrics.curves)


def _clocks(run: RunInfo) -> list[tuple[int, int]]:
    return [(rank.rank, rank.clock.offset if rank.clock else 0) for rank in run.ranks]


MORE_CURVES = (
    "only {most:,} curves are shown; the others, with {points:,} points, are in run.metrics()"
)
