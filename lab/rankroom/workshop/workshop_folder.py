"""The workshop's folder on the site: what its teacher writes for all, and the learners' seats.

    workshop.toml       0644   the plan
    teacher/            0755   news.jsonl, the teacher's news; runs/, the records that are shown
    seats/              1733   a file for each learner: anyone may create one, only the teacher
                               can list them, and only its owner or the teacher can remove one

It needs neither root nor a port: the transport is the file system. A file speaks for its owner.
"""

from __future__ import annotations

import contextlib
import errno
import hashlib
import heapq
import json
import os
import stat
import time
from collections import Counter, defaultdict
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal, get_args

from rankroom.errors import NotYoursError, RecordError, UnreadableRecordError, UsageError
from rankroom.record.store import RecordPaths, Store
from rankroom.workshop import workshop_plan
from rankroom.workshop.owned_files import (
    OTHERS_WRITE,
    account,
    make_folder,
    read_owned,
    write_shared,
)
from rankroom.workshop.seat import MOST_TEXT, SEATS, Seat
from rankroom.workshop.workshop_plan import Plan

FOLDER_MODES = {"": 0o755, "teacher": 0o755, SEATS: 0o1733}
MOST_NEWS = 1 << 20  # bytes of all news
LAST_NEWS = 4096  # bytes of these that are reserved for the end of the workshop
MOST_CELL = 20_000  # characters of a message, or of a cell
MOST_SHOWN = 20 << 20  # bytes of the events of a record that is shown
MOST_ENTRIES = 5_000  # names in seats/ that are examined
MOST_TRIED = 8  # files of one account that are read to find its seat
END_WARNING_S = 60.0  # from the announcement that a workshop ends to the end of its ranks
Kind = Literal["open", "message", "cell", "timer", "show", "catch up", "reset", "end"]


@dataclass(frozen=True)
class News:
    """One item of the teacher's news. Times are epoch seconds.

    `text` is a message or a cell's source; `until` is when a timer, or the workshop, ends (0: the
    timer is removed); `run` is the id of the record that is shown (empty: none is any more). `to`
    is a hash of the name of the seat that it is for, which tells others nothing; empty: for all.
    `id` is the offset in the file at which the next item begins.
    """

    kind: Kind
    at: float
    title: str = ""
    text: str = ""
    until: float = 0.0
    run: str = ""
    to: str = ""
    id: int = 0

    @classmethod
    def from_json(cls, data: Any, number: int) -> News:
        """Return the item in a line's data. Raises ValueError, TypeError or KeyError if invalid."""
        if data["kind"] not in get_args(Kind):
            raise ValueError("another kind of news")
        known: dict[str, Any] = {
            **{key: str(data.get(key, "")) for key in ("title", "text", "run", "to")},
            "at": float(data["at"]), "until": float(data.get("until", 0.0)), "id": number,
        }  # fmt: skip
        return cls(data["kind"], **known)

    def is_for(self, seat: str) -> bool:
        """Return whether it is for everybody, or for the seat of this name."""
        return self.to in ("", _address(seat))


class _ShownRuns(Store):
    """The records that the teacher shows: only folders and regular files that the teacher's account
    owns. Anything else is refused; a pipe, for instance, would block its reader."""

    def __init__(self, folder: Folder) -> None:
        super().__init__(folder.path / "teacher")
        self._folder = folder

    def paths(self, run_id: str) -> RecordPaths:
        found = super().paths(run_id)
        owner = self._folder.teacher_uid
        for each in (self._folder.path, self.root, self.runs, found.folder):
            self._demand(each, owner, stat.S_ISDIR)
        files = found.run, found.source, found.events, found.profile, found.overview, found.metrics
        for each in files:
            self._demand(each, owner, stat.S_ISREG)
        return found

    def _demand(self, path: Path, owner: int, is_right: Callable[[int], bool]) -> None:
        with contextlib.suppress(OSError):  # missing or inaccessible: reading it will say so
            about = path.lstat()
            if about.st_uid != owner or not is_right(about.st_mode):
                said = NOT_THE_TEACHERS.format(path=path, teacher=account(owner))
                raise UnreadableRecordError(said)


class Folder:
    """A workshop's folder, as the teacher or a learner uses it."""

    def __init__(self, path: str | os.PathLike[str]) -> None:
        self.path = Path(path).absolute()
        # The uid whose news and plan count, once known: another account may recreate the folder.
        self.known_owner: int | None = None

    # -- for everybody

    @property
    def owner_uid(self) -> int:
        """The uid of the folder's owner. Raises UsageError if there is no such folder."""
        try:
            about = self.path.lstat()
        except OSError as error:
            raise UsageError(NO_FOLDER.format(folder=self.path, error=error.strerror)) from None
        if not stat.S_ISDIR(about.st_mode):
            raise UsageError(NO_FOLDER.format(folder=self.path, error="it is no folder"))
        return about.st_uid

    @property
    def teacher(self) -> str:
        """The name of the teacher's account."""
        return account(self.owner_uid)

    def is_teacher(self) -> bool:
        """Whether this account is the teacher's."""
        return os.getuid() == self.owner_uid

    def plan(self) -> Plan:
        """Return the workshop's plan. Raises UsageError if there is none that the teacher owns."""
        file, owner = self.path / "workshop.toml", self.teacher_uid
        found = read_owned(file, workshop_plan.MAX_PLAN_BYTES)
        if found is None:
            raise UsageError(NO_PLAN.format(folder=self.path))
        if found.uid != owner:
            raise UsageError(
                STRANGE.format(file=file, owner=account(found.uid), teacher=account(owner))
            )
        return workshop_plan.parsed(file, found.text.encode())

    def news(self, after: int = 0) -> list[News]:
        """Return the news after the item with that id, oldest first; none if it cannot be read or
        another account owns the file. Lines that hold no item are skipped."""
        return self.told(after)[1]

    def told(self, after: int) -> tuple[str, list[News]]:
        """Return the start of the file's first line, whose time tells a folder that was created
        again, and the news after the item with that id. The start is empty if the file cannot be
        read."""
        found = read_owned(self._news, MOST_NEWS, after)
        if found is None or found.uid != self.teacher_uid:
            return "", []
        told, place = [], after
        for line in found.text.split("\n")[:-1]:
            place += len(line.encode()) + 1
            with contextlib.suppress(ValueError, TypeError, KeyError, RecursionError):
                told.append(News.from_json(json.loads(line), place))
        return found.head.partition("\n")[0], told

    def is_over(self) -> bool:
        """Return whether the teacher has ended the workshop, or its time is over."""
        told = [each for each in self.news() if each.kind in ("open", "end")]
        if told and told[-1].kind == "end":
            return time.time() >= told[-1].until
        return self.plan().is_over(time.time())

    def shown(self) -> Store:
        """Return the store of the records that the teacher shows. It raises RecordError when asked
        for a record that another account owns."""
        return _ShownRuns(self)

    # -- for the teacher

    def seats(self) -> list[Seat]:
        """Return the seats by user, the newest one of each account. Raises NotYoursError unless
        this account is the teacher's, which alone can list them."""
        self._demand_teacher()
        files: defaultdict[int, list[tuple[float, str]]] = defaultdict(list)
        for name, about in self._entries():
            is_plain = stat.S_ISREG(about.st_mode) and not about.st_mode & OTHERS_WRITE
            if is_plain and not name.startswith("."):
                files[about.st_uid].append((about.st_mtime, name))
        found = [self._newest(uid, named) for uid, named in files.items()]
        return sorted((each for each in found if each is not None), key=lambda seat: seat.user)

    def _newest(self, uid: int, named: list[tuple[float, str]]) -> Seat | None:
        """Return the newest of an account's files that is a seat: others may have moved any file of
        that account there, under any name."""
        for _, name in heapq.nlargest(MOST_TRIED, named):
            seat = Seat.read(self._seats / name)
            if seat is not None and seat.uid == uid:  # else it was replaced meanwhile
                return seat
        return None

    def warnings(self) -> list[str]:
        """Return what keeps the teacher from seeing all learners; empty if nothing does."""
        uids = Counter(about.st_uid for _, about in self._entries())
        if uids.total() < MOST_ENTRIES:
            return []
        [(most, count)] = uids.most_common(1)
        return [CROWDED.format(seats=self._seats, user=account(most), count=count)]

    def say(self, text: str) -> None:
        """Send a message to everybody."""
        self._tell(kind="message", text=_cut(text))

    def offer_cell(self, source: str, title: str = "") -> None:
        """Offer a cell to everybody, which each learner may insert into the notebook and run."""
        self._tell(kind="cell", text=_cut(source), title=title)

    def timer(self, minutes: float, title: str = "") -> None:
        """Show everybody how much time is left for something; 0 minutes remove the timer."""
        until = time.time() + 60 * minutes if minutes > 0 else 0.0
        self._tell(kind="timer", until=until, title=title)

    def show_run(self, record: RecordPaths | None) -> None:
        """Show one of the teacher's runs to everybody; with None, stop showing one. Calling it
        again adds what is new in a live run. Raises RecordError if the record cannot be read or is
        too large."""
        self._demand_teacher()
        if record is None:
            self._tell(kind="show")
            return
        is_new = not (copy := self.shown().paths(record.id)).folder.exists()
        _copy_record(record, copy)
        if is_new or self.shown_run() != record.id:
            run = self.shown().load(record.id)
            title = (run.name or run.title)[:MOST_TEXT]
            self._tell(kind="show", run=record.id, title=title)

    def shown_run(self) -> str:
        """Return the id of the run that is shown now; empty if there is none."""
        told = [each.run for each in self.news() if each.kind == "show"]
        return told[-1] if told else ""

    def follow_run(self, record: RecordPaths) -> bool:
        """Copy what is new in a live run that is shown. Return False if it is no longer shown.
        Raises RecordError; UnreadableRecordError if that cannot be told now."""
        self._demand_teacher()
        began, told = self.told(0)
        if not began:
            raise UnreadableRecordError(NO_NEWS.format(file=self._news))
        if [each.run for each in told if each.kind == "show"][-1:] != [record.id]:
            return False
        _copy_record(record, self.shown().paths(record.id))
        return True

    def request(self, user: str, what: Literal["catch up", "reset"], exercise: str = "") -> None:
        """Offer one learner the solutions up to an exercise (empty: to the last one tried), or a
        fresh notebook and fresh ranks. Raises UsageError with the learners there are if `user` has
        no seat."""
        seats = {seat.user: seat for seat in self.seats()}
        if user not in seats:
            raise UsageError(NO_LEARNER.format(user=user, users=", ".join(seats) or "none yet"))
        self._tell(kind=what, to=_address(seats[user].key), text=exercise)

    def close(self) -> float:
        """Announce the end of the workshop. Return when its ranks and jobs end (epoch s)."""
        until = time.time() + END_WARNING_S
        self._tell(kind="end", until=until)
        return until

    def _tell(self, **news: Any) -> None:
        self._demand_teacher()
        line = json.dumps({"at": time.time(), **news}).encode() + b"\n"
        most = MOST_NEWS if news["kind"] == "end" else MOST_NEWS - LAST_NEWS
        try:
            descriptor = os.open(self._news, os.O_RDWR | os.O_APPEND | os.O_CREAT, 0o644)
            try:
                os.fchmod(descriptor, 0o644)
                size = os.fstat(descriptor).st_size
                if size and os.pread(descriptor, 1, size - 1) != b"\n":
                    line = b"\n" + line  # the previous line was written only in part
                if size + len(line) > most:
                    raise UsageError(FULL.format(folder=self.path))
                if os.write(descriptor, line) < len(line):
                    raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
            finally:
                os.close(descriptor)
        except OSError as error:
            raise UsageError(UNWRITTEN.format(folder=self.path, error=error.strerror)) from None

    @property
    def teacher_uid(self) -> int:
        """The uid of the account whose news, plan and runs count. Raises UsageError."""
        return self.owner_uid if self.known_owner is None else self.known_owner

    def _demand_teacher(self) -> None:
        if not self.is_teacher():
            raise NotYoursError(
                NOT_TEACHER.format(folder=self.path, teacher=self.teacher, you=account(os.getuid()))
            )

    def _entries(self) -> list[tuple[str, os.stat_result]]:
        """Return the names in seats/ with their lstat results, up to MOST_ENTRIES."""
        found = []
        try:
            with os.scandir(self._seats) as entries:
                for each in entries:
                    with contextlib.suppress(OSError):
                        found.append((each.name, each.stat(follow_symlinks=False)))
                    if len(found) == MOST_ENTRIES:
                        break
        except OSError as error:
            raise UsageError(NO_FOLDER.format(folder=self._seats, error=error.strerror)) from None
        return found

    @property
    def _seats(self) -> Path:
        return self.path / SEATS

    @property
    def _news(self) -> Path:
        return self.path / "teacher" / "news.jsonl"


def open_folder(plan: Plan) -> Folder:
    """Create the folder of a workshop with this plan, or open the existing one again.

    Raises UsageError if it cannot be created with the modes that keep learners apart, if learners
    could not enter it, or if others could then read what is in it already.
    """
    folder = Folder(plan.folder)
    demand_reachable(folder.path)
    demand_own(folder.path)
    try:
        for name, mode in FOLDER_MODES.items():
            make_folder(folder.path / name, mode)
        write_shared(folder.path / "workshop.toml", workshop_plan.opened(plan).to_toml())
        folder._tell(kind="open")
    except OSError as error:
        # make_folder's own errors have no errno, and so no strerror.
        why = error.strerror or str(error)
        raise UsageError(UNMADE.format(folder=folder.path, error=why)) from None
    return folder


def demand_reachable(folder: Path) -> None:
    """Raise UsageError if learners could not enter a folder, or others could replace it."""
    for parent in reversed(folder.parents):
        try:
            about = parent.stat()
        except OSError as error:
            raise UsageError(
                NO_PARENT.format(folder=folder, parent=parent, error=error.strerror)
            ) from None
        mode = about.st_mode
        # With an access list, the group's bits are the most that the list can grant.
        if not mode & (stat.S_IXOTH | stat.S_IXGRP):
            raise UsageError(CLOSED.format(folder=folder, parent=parent, mode=mode & 0o7777))
        if mode & stat.S_IWOTH and not mode & stat.S_ISVTX:
            raise UsageError(REPLACEABLE.format(folder=folder, parent=parent))


def demand_own(folder: Path) -> None:
    """Raise UsageError if a folder is not a workshop's and holds files, which opening it would
    expose."""
    try:
        names = {each.name for each in folder.iterdir()}
    except OSError:  # it does not exist yet, or cannot be used, which is reported later
        return
    # The teacher's own plan often has the same name, and may lie among private files.
    is_workshops = {"workshop.toml", "teacher", SEATS} <= names
    if not is_workshops and (others := sorted(names - set(FOLDER_MODES))):
        raise UsageError(OCCUPIED.format(folder=folder, name=others[0]))


def _copy_record(record: RecordPaths, copy: RecordPaths) -> None:
    """Copy a record so that all can read it; append only new events to an earlier copy. Raises
    RecordError."""
    try:
        size = record.events.stat().st_size
        if size > MOST_SHOWN and not copy.folder.exists():
            raise RecordError(LARGE.format(run=record.id, size=size >> 20, most=MOST_SHOWN >> 20))
        make_folder(copy.folder.parent, 0o755)
        make_folder(copy.folder, 0o755)
        is_cut = _copy_events(record.events, copy.events)
        for name in ("source", "profile", "overview", "metrics", "run"):
            file: Path = getattr(record, name)
            if file.exists():
                text = file.read_text("utf-8", "replace")
                text = _noted(text) if is_cut and name == "run" else text
                write_shared(getattr(copy, name), text)
    except OSError as error:
        why = error.strerror or error  # it may be temporary
        raise UnreadableRecordError(f"cannot show the run {record.id}: {why}") from None


def _copy_events(source: Path, copy: Path) -> bool:
    """Append the new events to the copy, up to MOST_SHOWN bytes. Return whether some are left out.
    Raises OSError.

    The console and a command may do so at the same time: they write the same bytes in the same
    places.
    """
    flags = os.O_WRONLY | os.O_CREAT | os.O_NOFOLLOW | os.O_CLOEXEC
    with source.open("rb") as file, os.fdopen(os.open(copy, flags, 0o644), "wb") as to:
        at = file.seek(to.seek(0, os.SEEK_END))
        lines = file.read(max(0, MOST_SHOWN - at))
        if is_cut := bool(file.read(1)):
            lines = lines[: lines.rfind(b"\n") + 1]
        os.fchmod(to.fileno(), 0o644)
        to.write(lines)
        to.flush()
        # A live run of another machine is considered lost if its events are not touched for a
        # minute.
        os.utime(to.fileno())
    return is_cut


def _noted(run: str) -> str:
    """Return the text of a run.json with a note that events are left out."""
    with contextlib.suppress(ValueError, TypeError, AttributeError):
        data = json.loads(run)
        data["notes"] = [*data.get("notes", []), CUT.format(most=MOST_SHOWN >> 20)]
        return json.dumps(data)
    return run


def _cut(text: str) -> str:
    if len(text) > MOST_CELL:
        raise UsageError(f"the text has {len(text)} characters; the limit is {MOST_CELL}")
    return text


def _address(seat: str) -> str:
    return hashlib.sha256(os.fsencode(seat)).hexdigest()  # a learner's file may have any name


NO_FOLDER = "there is no workshop in {folder}: {error}. Ask your teacher which folder it is"
NO_PLAN = "there is no workshop in {folder}: it has no workshop.toml that you may read"
STRANGE = (
    "{file} belongs to {owner}, but the folder to {teacher}: do not use this workshop, and tell "
    "{teacher}"
)
NOT_TEACHER = "the workshop in {folder} is {teacher}'s, who alone sees its learners; you are {you}"
NOT_THE_TEACHERS = "{path} is not shown: it is not a regular file or folder that {teacher} owns"
NO_LEARNER = "{user} has no seat; learners who have one: {users}"
CROWDED = "{seats} holds too many files: {user} has made {count} of them, and others may be missing"
FULL = (
    "the list of messages in {folder} is full: open the workshop in another folder, by `rankroom "
    "workshop open`"
)
UNWRITTEN = "cannot write to the workshop in {folder}: {error}"
UNMADE = (
    "cannot make the workshop's folder {folder}: {error}. Learners are kept apart by the modes of "
    "its folders: choose a file system that supports them, such as the project's or scratch"
)
NO_PARENT = (
    "cannot make the workshop's folder {folder}: {parent}: {error}. Make {parent} first, where "
    "learners can enter it, or choose another place"
)
NO_NEWS = "{file} cannot be read now, which says what is shown"
OCCUPIED = (
    "{folder} is not a workshop's folder and already holds files, such as {name}, which everybody "
    "could then reach. Give a folder that does not exist yet, or an empty one"
)
CLOSED = (
    "learners cannot enter {folder}, as {parent} has the mode {mode:04o}: choose another place, or "
    "`chmod o+x {parent}`"
)
REPLACEABLE = (
    "anybody could put another folder in the place of {folder}, as {parent} may be written to by "
    "all: choose another place"
)
CUT = "only the first {most} MB of this run are shown: later events are left out"
LARGE = "the run {run} is too large to be shown: {size} MB of events, and {most} MB at most"
