"""The store of records: one class names every path, one writes a record, one finds and reads them.

A record is a directory `runs/<id>` with run.json, source.py and events.jsonl. Once the run has
ended, there is also a profile.json if anything is known of where its time went, with an
overview.jsonl if there are many spans, and a metrics.json if user code reported metrics. A record
appears complete (it is made under a hidden name, often before the run, then renamed); run.json is
replaced atomically; events are only appended.
"""

from __future__ import annotations

import contextlib
import difflib
import errno
import json
import os
import re
import secrets
import time
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path
from typing import TypeVar

from rankroom import config
from rankroom.errors import RecordError, UnreadableRecordError, UnwrittenError, with_remedy
from rankroom.record import model, retention
from rankroom.record.blank import NEXT_RUN, Blank
from rankroom.record.model import MISSING_FROM_RECORD, RunInfo
from rankroom.record.owner import is_live
from rankroom.record.retention import DAY_S, SIZE_GRACE_S, Pruned
from rankroom.record.tail import READ_LIMIT_BYTES, Chunk, Events, Tail
from rankroom.system import file_lock

# Never a leading dot: that excludes `..` and unfinished records.
_ID_PATTERN = re.compile(r"[0-9A-Za-z_-][0-9A-Za-z._-]{0,127}", re.ASCII)
T = TypeVar("T")


def new_id(start: int) -> str:
    """Return an id that sorts by time: UTC date and time, then microseconds and four random bits in
    hex.

    `start` is in microseconds since the epoch.
    """
    seconds, micros = divmod(start, 1_000_000)
    stamp = time.strftime("%Y%m%d-%H%M%S", time.gmtime(seconds))
    return f"{stamp}-{micros << 4 | secrets.randbits(4):06x}"


class RecordPaths:
    """Every path of one record; computed on access, as most are not needed."""

    def __init__(self, runs: Path, run_id: str) -> None:
        self.id = run_id
        self.folder = runs / run_id

    @property
    def run(self) -> Path:
        return self.folder / "run.json"

    @property
    def next_run(self) -> Path:
        return self.folder / NEXT_RUN

    @property
    def source(self) -> Path:
        return self.folder / "source.py"

    @property
    def events(self) -> Path:
        return self.folder / "events.jsonl"

    @property
    def profile(self) -> Path:
        return self.folder / "profile.json"

    @property
    def overview(self) -> Path:
        return self.folder / "overview.jsonl"

    @property
    def metrics(self) -> Path:
        return self.folder / "metrics.json"


class Writer:
    """The sole writer of a record; lines passed to `append` are in the file when it returns."""

    def __init__(self, paths: RecordPaths, events: int) -> None:
        self.paths = paths
        self._torn = False
        self._fd = events  # a descriptor of paths.events, open for appending

    @classmethod
    def again(cls, paths: RecordPaths) -> Writer:
        """Return a writer that continues an existing record. Raises RecordError."""
        try:
            return cls(paths, os.open(paths.events, os.O_RDWR | os.O_APPEND))
        except OSError as error:
            raise RecordError(
                f"cannot continue the record {paths.events}: {error.strerror}"
            ) from None

    @contextlib.contextmanager
    def alone(self) -> Iterator[bool]:
        """Lock the record against other processes that would continue it; yields whether the lock
        was taken, as not all file systems have locks."""
        is_alone = file_lock.take(self._fd, file_lock.EXCLUSIVE, wait=True) == "taken"
        try:
            yield is_alone
        finally:
            file_lock.release(self._fd)

    def append(self, lines: bytes) -> None:
        """Append whole JSON lines as they are. When the disk refuses some, raises UnwrittenError
        with those that are not in the file."""
        # If an earlier call stopped in the middle of a line, end that line: no other is spoiled.
        data = b"\n" + lines if self._torn else lines
        rest = memoryview(data)
        try:
            if self._fd < 0:  # closed by `finish`
                self._fd = os.open(self.paths.events, os.O_RDWR | os.O_APPEND)
            while rest:
                rest = rest[os.write(self._fd, rest) :]
        except OSError as error:
            done = len(data) - len(rest)
            whole = data.rfind(b"\n", 0, done) + 1
            if done:
                self._torn = done > whole
            if self._torn and data[done : done + 1] == b"\n":
                whole = done + 1  # only its newline is missing, which the next call writes
            kept = max(0, whole - (len(data) - len(lines)))
            raise UnwrittenError(str(_unwritable(self.paths.folder, error)), lines[kept:]) from None
        self._torn = False

    def mend(self) -> None:
        """Make the next `append` begin a new line, even if the previous writer left an incomplete
        one.

        The incomplete line is not cut off: a reader may have read it, and continues after it.
        """
        size = os.fstat(self._fd).st_size
        self._torn = size > 0 and os.pread(self._fd, 1, size - 1) != b"\n"

    def update(self, run: RunInfo) -> None:
        """Replace run.json in one step: a reader sees the old one or the new one."""
        self.replace(_run_json(run))

    def replace(self, raw: bytes) -> None:
        """Replace run.json in one step with the text `raw`."""
        folder = self.paths.folder  # as strings, which are faster: the run's client is waiting
        try:
            _write(f"{folder}/{NEXT_RUN}", raw)
            os.replace(f"{folder}/{NEXT_RUN}", f"{folder}/run.json")  # noqa: PTH105
        except OSError as error:
            with contextlib.suppress(OSError):
                self.paths.next_run.unlink()
            raise _unwritable(self.paths.folder, error) from None

    def finish(self, run: RunInfo) -> None:
        """Close the file and write the run's final state; a later `append` opens the file again."""
        if trouble := self.close():
            run.notes = [*run.notes, MAY_LACK_OUTPUT.format(trouble=trouble)]
        self.update(run)

    def close(self) -> str:
        """Close the file; calling it twice is fine. Returns why data may have been lost, or an
        empty string: file servers may report an exceeded quota or a broken disk only now."""
        fd, self._fd = self._fd, -1
        try:
            if fd >= 0:
                os.close(fd)
        except OSError as error:
            return f"{error.strerror or error}: {self.paths.folder}"
        return ""


class Store:
    """The records under one home (RANKROOM_HOME unless `root` is given)."""

    def __init__(self, root: str | os.PathLike[str] | None = None) -> None:
        self.root = config.home() if root is None else Path(root).absolute()
        self.runs = self.root / "runs"
        self._blank: Blank | None = None

    def paths(self, run_id: str) -> RecordPaths:
        """Return the paths of the record `run_id`, which need not exist. Raises RecordError if it
        is not a valid id."""
        if not _ID_PATTERN.fullmatch(run_id):
            raise RecordError(NOT_AN_ID.format(id=run_id))
        return RecordPaths(self.runs, run_id)

    def create(self, run: RunInfo, source: str) -> Writer:
        """Create the record of `run`. Raises RecordError when it exists or cannot be written."""
        paths = self.paths(run.id)
        text = source.encode("utf-8", "backslashreplace")
        try:
            try:
                # A prepared one may have been removed in the meantime, together with its folder.
                blank, self._blank = self._blank or Blank(self.runs), None
                events = blank.become(paths.folder, _run_json(run), text)
            except OSError as error:
                if error.errno not in (errno.ENOENT, errno.ESTALE):
                    raise
                self._make_home()
                events = Blank(self.runs).become(paths.folder, _run_json(run), text)
            return Writer(paths, events)
        except OSError as error:
            if paths.folder.is_dir():
                raise RecordError(EXISTS.format(path=paths.folder)) from None
            raise _unwritable(self.runs, error) from None

    def prepare(self) -> None:
        """Create the files of the next record now, which makes the next `create` faster."""
        if self._blank is None:
            with contextlib.suppress(OSError):
                self._blank = Blank(self.runs)

    def forget(self) -> None:
        """Remove files that `prepare` made and no record will use."""
        if self._blank is not None:
            self._blank.discard()
            self._blank = None

    def ids(self) -> list[str]:
        """Return the ids of all records, newest first."""
        try:
            with os.scandir(self.runs) as entries:
                names = [e.name for e in entries if _ID_PATTERN.fullmatch(e.name) and _is_folder(e)]
        except FileNotFoundError:
            return []
        except OSError as error:
            raise _unreadable(self.runs, error) from None
        return sorted(names, reverse=True)

    def newest(self, limit: int | None = None) -> list[RunInfo]:
        """Return the newest `limit` runs (default: all), newest first; an unreadable one is
        included as such, in state `lost`."""
        found = []
        for run_id in self.ids()[:limit]:
            try:
                found.append(self.load(run_id))
            except RecordError as error:
                with contextlib.suppress(OSError):  # it has just been pruned
                    made = int(self.paths(run_id).folder.stat().st_mtime * 1e6)
                    found.append(_unreadable_run(run_id, made, str(error)))
        return found

    def load(self, run_id: str) -> RunInfo:
        """Return the run; its state is `lost` when its file says running but its owner is gone.

        Raises RecordError when there is none, it is damaged, or a newer Rankroom wrote it.
        """
        paths = self.paths(run_id)
        run = self._load(paths)
        if run.state == "running" and not is_live(run, paths.events):
            # The owner may have ended the run between the two checks.
            run = self._load(paths)
            if run.state == "running":
                run = replace(run, state="lost")
        return run

    def source(self, run_id: str) -> str:
        """Return the cell's source."""
        paths = self.paths(run_id)
        return self._read(paths, paths.source, lambda path: path.read_bytes()).decode(
            "utf-8", "replace"
        )

    def read(self, run_id: str, after: int = 0, limit: int = READ_LIMIT_BYTES) -> Chunk:
        """Return whole lines of events.jsonl from byte `after` on, about `limit` bytes."""
        return self.tail(run_id, after).read(limit)

    def tail(self, run_id: str, after: int = 0) -> Tail:
        """Return a reader of events.jsonl that starts at byte `after`."""
        return Tail(self.paths(run_id).events, lambda: self.load(run_id), after)

    def events(self, run_id: str) -> Events:
        """Return an iterable over all events of the record; its `dropped` counts invalid lines."""
        paths = self.paths(run_id)
        self._load(paths)
        return Events(paths.events)

    def find(self, text: str) -> str:
        """Return the id that `text` abbreviates; `last` means the newest. Raises RecordError unless
        exactly one record matches."""
        ids = self.ids()
        if text == "last" and ids:
            return ids[0]
        if text in ids:
            return text
        # The end of an id is accepted, too: it is the part that differs between recent runs.
        hits = [i for i in ids if text and (i.startswith(text) or i.endswith(text))]
        if len(hits) == 1:
            return hits[0]
        if hits:
            raise RecordError(AMBIGUOUS_ID.format(text=text, ids=", ".join(hits[:5]), n=len(hits)))
        raise self._missing(text)

    def prune(
        self,
        max_age: float | None = None,
        max_bytes: float | None = None,
        dry_run: bool = False,
        grace: float = SIZE_GRACE_S,
        by_itself: bool = False,
    ) -> list[Pruned]:
        """Remove records older than `max_age` seconds, then the oldest beyond `max_bytes` in all.

        Defaults come from the configuration. A live run is never removed, nor, for size, a record
        written to within `grace` seconds. With `by_itself` (no user asked for it), no record is
        removed for its age if all are too old, nor for size in place of one that cannot be removed.
        Returns the records removed, and those that could not be with an `error`, oldest first.
        """
        max_age = config.keep_days() * DAY_S if max_age is None else max_age
        max_bytes = config.keep_bytes() if max_bytes is None else max_bytes
        ids = self.ids()[::-1]
        return retention.prune(
            self.runs, ids, self._may_be_live, max_age, max_bytes, dry_run, grace, by_itself
        )

    def _may_be_live(self, run_id: str) -> bool:
        paths = self.paths(run_id)
        try:
            run = self._load(paths)
        except UnreadableRecordError:
            return True
        except RecordError:
            return False
        # A run on another host may be silent for a minute, but not for a day.
        return run.state == "running" and is_live(run, paths.events, quiet=DAY_S)

    def _make_home(self) -> None:
        config.make_parents(self.root)
        config.make_own(self.root)
        config.make_own(self.runs)

    def _load(self, paths: RecordPaths) -> RunInfo:
        raw = self._read(paths, paths.run, lambda path: path.read_bytes())
        try:
            data = json.loads(raw)
            version = data.get("version") if isinstance(data, dict) else None
            if isinstance(version, int) and version > model.VERSION:
                raise RecordError(
                    NEWER.format(path=paths.folder, version=version, known=model.VERSION)
                )
            return RunInfo.from_json({**data, "id": paths.id})
        except (ValueError, TypeError, RecursionError) as error:
            raise RecordError(DAMAGED.format(path=paths.run, error=error)) from None

    def _read(
        self, paths: RecordPaths, path: Path, how: Callable[[Path], T], again: bool = True
    ) -> T:
        try:
            return how(path)
        except FileNotFoundError:
            if paths.folder.is_dir():
                raise RecordError(DAMAGED.format(path=path, error="it is missing")) from None
            raise self._missing(paths.id) from None
        except OSError as error:
            if again and error.errno == errno.ESTALE:  # it has just been replaced on another host
                return self._read(paths, path, how, again=False)
            raise _unreadable(path, error) from None

    def _missing(self, text: str) -> RecordError:
        ids = self.ids()
        if near := difflib.get_close_matches(text, ids[:500], 3, 0.5):
            hint = f"similar ids: {', '.join(near)}"
        else:
            hint = f"the newest: {', '.join(ids[:3])}" if ids else "there are no records yet"
        return RecordError(NO_RECORD.format(text=text, runs=self.runs, hint=hint))


def _write(path: str, data: bytes) -> None:
    fd = os.open(path, os.O_WRONLY | os.O_CREAT, 0o600)
    try:
        rest = memoryview(data)
        while rest:
            rest = rest[os.write(fd, rest) :]
        os.ftruncate(fd, len(data))
    finally:
        os.close(fd)


def _run_json(run: RunInfo) -> bytes:
    return json.dumps(run.to_json()).encode() + b"\n"


def _is_folder(entry: os.DirEntry[str]) -> bool:
    with contextlib.suppress(OSError):
        return entry.is_dir(follow_symlinks=False)
    return False


def _unreadable_run(run_id: str, start: int, why: str) -> RunInfo:
    return RunInfo(
        run_id, "", 1, start, state="lost", title="(unreadable record)", notes=[why], end=start
    )


def _unwritable(path: Path, error: OSError) -> RecordError:
    return RecordError(UNWRITABLE.format(path=path, error=with_remedy(error)))


def _unreadable(path: Path, error: OSError) -> RecordError:
    return UnreadableRecordError(UNREADABLE.format(path=path, error=with_remedy(error)))


UNWRITABLE = "cannot write the record in {path}: {error}"
UNREADABLE = "cannot read {path}: {error}"
MAY_LACK_OUTPUT = f"{{trouble}}: what was written last may be {MISSING_FROM_RECORD}"
EXISTS = "a record is already there: {path}; run the cell again to get a new id"
DAMAGED = "the record {path} is damaged: {error}; what it holds stays on disk beside it"
NEWER = (
    "the record {path} was written by a newer Rankroom (record version {version}, this one reads"
    " up to {known}): install a newer wheel with `pip install -U rankroom-….whl` (`make dist` "
    "builds it)"
)
NO_RECORD = "no record {text!r} in {runs}: {hint}; `rankroom runs list` shows all"
NOT_AN_ID = "{id!r} is not a run id: ids look like 20261121-113012-4f2a9c"
AMBIGUOUS_ID = "{text!r} matches {n} records ({ids}): give more of the id"
