"""The workshop's folder on the site: what its teacher writes for all, and the learners' seats.

    workshop.toml       0644   the plan
    teacher/            0755   news.jsonl, what the teacher tells; runs/, records that are shown
    seats/              1733   a file for each learner: anybody may make one, the teacher alone
                               can list them, and only its owner or the teacher can remove one

Without root, and without a port: the transport is the file system. A file counts for its owner.
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

MODES = {"": 0o755, "teacher": 0o755, SEATS: 0o1733}
MOST_NEWS = 1 << 20  # bytes of all that is told
LAST_NEWS = 4096  # bytes of these that are kept for the end
MOST_CELL = 20_000  # characters of a message, or of a cell
MOST_SHOWN = 20 << 20  # bytes of events of a record that is shown
MOST_ENTRIES = 5_000  # names in seats/ that are looked at
MOST_TRIED = 8  # files of one account that are read to find its seat
WARNING_S = 60.0  # from the word that a workshop ends to the end of its ranks
Kind = Literal["open", "message", "cell", "timer", "show", "catch up", "reset", "end"]


@dataclass(frozen=True)
class News:
    """Something that the teacher tells. Times are epoch seconds.

    `text` is a message or a cell's source; `until` is when a timer, or the workshop, is over (0: no
    timer any more); `run` is the id of a record that is shown (empty: none any more). `to` says
    whose seat it is for, in a way that tells others nothing; empty: for all. `id` is the number to
    ask after for what comes next.
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
        """What a line holds. Raises ValueError, TypeError or KeyError where that is no news."""
        if data["kind"] not in get_args(Kind):
            raise ValueError("another kind of news")
        known: dict[str, Any] = {
            **{key: str(data.get(key, "")) for key in ("title", "text", "run", "to")},
            "at": float(data["at"]), "until": float(data.get("until", 0.0)), "id": number,
        }  # fmt: skip
        return cls(data["kind"], **known)

    def is_for(self, seat: str) -> bool:
        """Whether it is for everybody, or for the seat of this name."""
        return self.to in ("", _address(seat))


class _ShownRuns(Store):
    """The records that the teacher shows: folders and plain files of the teacher's account. Others
    count for nothing; a pipe would keep its reader waiting."""

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
        with contextlib.suppress(OSError):  # it is not there, or is looked for later
            about = path.lstat()
            if about.st_uid != owner or not is_right(about.st_mode):
                said = NOT_THE_TEACHERS.format(path=path, teacher=account(owner))
                raise UnreadableRecordError(said)


class Folder:
    """A workshop's folder, as the teacher or a learner uses it."""

    def __init__(self, path: str | os.PathLike[str]) -> None:
        self.path = Path(path).absolute()
        # Whose news and plan count, once that is known: another account may make the folder again.
        self.known_owner: int | None = None

    # -- for everybody

    @property
    def owner_uid(self) -> int:
        """The teacher's number. Raises UsageError where there is no such folder."""
        try:
            about = self.path.lstat()
        except OSError as error:
            raise UsageError(NO_FOLDER.format(folder=self.path, error=error.strerror)) from None
        if not stat.S_ISDIR(about.st_mode):
            raise UsageError(NO_FOLDER.format(folder=self.path, error="it is no folder"))
        return about.st_uid

    @property
    def teacher(self) -> str:
        """The teacher's account."""
        return account(self.owner_uid)

    def is_teacher(self) -> bool:
        """Whether this account is the teacher's."""
        return os.getuid() == self.owner_uid

    def plan(self) -> Plan:
        """The workshop's plan. Raises UsageError where there is none of the teacher's."""
        file, owner = self.path / "workshop.toml", self.teacher_uid
        found = read_owned(file, workshop_plan.LARGEST)
        if found is None:
            raise UsageError(NO_PLAN.format(folder=self.path))
        if found.uid != owner:
            raise UsageError(
                STRANGE.format(file=file, owner=account(found.uid), teacher=account(owner))
            )
        return workshop_plan.parsed(file, found.text.encode())

    def news(self, after: int = 0) -> list[News]:
        """What the teacher has told after the news with that id, oldest first; nothing where it
        cannot be read. Lines of another account's, or that are none, are passed over."""
        return self.told(after)[1]

    def told(self, after: int) -> tuple[str, list[News]]:
        """The news, and the first line of all of them, by whose time of day a folder that was made
        again is known; "" where it cannot be read."""
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
        """Whether the teacher has ended the workshop, or its time is over."""
        told = [each for each in self.news() if each.kind in ("open", "end")]
        if told and told[-1].kind == "end":
            return time.time() >= told[-1].until
        return self.plan().is_over(time.time())

    def shown(self) -> Store:
        """Where the records are that the teacher shows. Raises RecordError, as it is asked, where
        one is another account's."""
        return _ShownRuns(self)

    # -- for the teacher

    def seats(self) -> list[Seat]:
        """The seats there are, one of each account: its newest. Raises NotYoursError for another
        than the teacher, who alone can list them."""
        self._demand_teacher()
        files: defaultdict[int, list[tuple[float, str]]] = defaultdict(list)
        for name, about in self._entries():
            is_plain = stat.S_ISREG(about.st_mode) and not about.st_mode & OTHERS_WRITE
            if is_plain and not name.startswith("."):
                files[about.st_uid].append((about.st_mtime, name))
        found = [self._newest(uid, named) for uid, named in files.items()]
        return sorted((each for each in found if each is not None), key=lambda seat: seat.user)

    def _newest(self, uid: int, named: list[tuple[float, str]]) -> Seat | None:
        """The newest of an account's files that is a seat: others may have moved any file of it
        there, under any name."""
        for _, name in heapq.nlargest(MOST_TRIED, named):
            seat = Seat.read(self._seats / name)
            if seat is not None and seat.uid == uid:  # or it was replaced meanwhile
                return seat
        return None

    def warnings(self) -> list[str]:
        """What keeps the teacher from seeing everybody; empty if nothing does."""
        uids = Counter(about.st_uid for _, about in self._entries())
        if uids.total() < MOST_ENTRIES:
            return []
        [(most, count)] = uids.most_common(1)
        return [CROWDED.format(seats=self._seats, user=account(most), count=count)]

    def say(self, text: str) -> None:
        """Tell everybody a message."""
        self._tell(kind="message", text=_cut(text))

    def offer_cell(self, source: str, title: str = "") -> None:
        """Offer everybody a cell, which each may put into the notebook and run."""
        self._tell(kind="cell", text=_cut(source), title=title)

    def timer(self, minutes: float, title: str = "") -> None:
        """Show everybody how much time is left for something; 0 takes the timer away."""
        until = time.time() + 60 * minutes if minutes > 0 else 0.0
        self._tell(kind="timer", until=until, title=title)

    def show_run(self, record: RecordPaths | None) -> None:
        """Show everybody one of the teacher's runs, or none any more. Called again, what is new of
        a live run follows. Raises RecordError where it cannot be read, or is too large already."""
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
        """The id of the run that all are shown now; empty if there is none."""
        told = [each.run for each in self.news() if each.kind == "show"]
        return told[-1] if told else ""

    def follow_run(self, record: RecordPaths) -> bool:
        """Copy what is new of a live run that is shown; False if it is not shown any more."""
        self._demand_teacher()
        if self.shown_run() != record.id:
            return False
        _copy_record(record, self.shown().paths(record.id))
        return True

    def request(self, user: str, what: Literal["catch up", "reset"], exercise: str = "") -> None:
        """Offer one learner the solutions up to an exercise (empty: to the last one tried), or a
        fresh notebook and fresh ranks. Raises UsageError with those there are."""
        seats = {seat.user: seat for seat in self.seats()}
        if user not in seats:
            raise UsageError(NO_LEARNER.format(user=user, users=", ".join(seats) or "nobody yet"))
        self._tell(kind=what, to=_address(seats[user].key), text=exercise)

    def close(self) -> float:
        """Tell everybody that the workshop ends; when its ranks and jobs go (epoch s)."""
        until = time.time() + WARNING_S
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
                    line = b"\n" + line  # of the line before, only a part could be written
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
        """The number of the account whose news, plan and runs count. Raises UsageError."""
        return self.owner_uid if self.known_owner is None else self.known_owner

    def _demand_teacher(self) -> None:
        if not self.is_teacher():
            raise NotYoursError(
                NOT_TEACHER.format(folder=self.path, teacher=self.teacher, you=account(os.getuid()))
            )

    def _entries(self) -> list[tuple[str, os.stat_result]]:
        """All that is in seats/, up to so many: the names, and what each is."""
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
    """Make the folder of a workshop, or open the one there is again, with this plan.

    Raises UsageError where it cannot be made with the modes that keep learners apart, where
    learners could not enter it, or where others could then read what is in it already.
    """
    folder = Folder(plan.folder)
    demand_reachable(folder.path)
    demand_own(folder.path)
    try:
        for name, mode in MODES.items():
            make_folder(folder.path / name, mode)
        write_shared(folder.path / "workshop.toml", workshop_plan.opened(plan).to_toml())
        folder._tell(kind="open")
    except OSError as error:
        # What we say of a mode is an error without a number.
        why = error.strerror or str(error)
        raise UsageError(UNMADE.format(folder=folder.path, error=why)) from None
    return folder


def demand_reachable(folder: Path) -> None:
    """Raise UsageError where learners could not enter a folder, or others could replace it."""
    for parent in reversed(folder.parents):
        try:
            about = parent.stat()
        except OSError as error:
            raise UsageError(
                NO_PARENT.format(folder=folder, parent=parent, error=error.strerror)
            ) from None
        mode = about.st_mode
        # Where there are access lists, the group's bits are the most that they give.
        if not mode & (stat.S_IXOTH | stat.S_IXGRP):
            raise UsageError(CLOSED.format(folder=folder, parent=parent, mode=mode & 0o7777))
        if mode & stat.S_IWOTH and not mode & stat.S_ISVTX:
            raise UsageError(REPLACEABLE.format(folder=folder, parent=parent))


def demand_own(folder: Path) -> None:
    """Raise UsageError where a folder holds files and is no workshop's: opened for all, it would
    show them."""
    try:
        names = {each.name for each in folder.iterdir()}
    except OSError:  # there is none yet, or none that can be a workshop's, which is said as such
        return
    if "workshop.toml" not in names and (others := sorted(names - set(MODES))):
        raise UsageError(OCCUPIED.format(folder=folder, name=others[0]))


def _copy_record(record: RecordPaths, copy: RecordPaths) -> None:
    """Copy a record for all to read; of one that was copied before, what is new."""
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
        why = error.strerror or error  # which may pass
        raise UnreadableRecordError(f"cannot show the run {record.id}: {why}") from None


def _copy_events(source: Path, copy: Path) -> bool:
    """Copy the events that are new, up to MOST_SHOWN; whether some are left out. Raises OSError.

    The console and a command may do so at once: they write equal bytes in equal places.
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
        # A live run of another machine whose events are not touched for a minute is taken for lost.
        os.utime(to.fileno())
    return is_cut


def _noted(run: str) -> str:
    """The text of a run.json with the note that events are left out."""
    with contextlib.suppress(ValueError, TypeError, AttributeError):
        data = json.loads(run)
        data["notes"] = [*data.get("notes", []), CUT.format(most=MOST_SHOWN >> 20)]
        return json.dumps(data)
    return run


def _cut(text: str) -> str:
    if len(text) > MOST_CELL:
        raise UsageError(f"that has {len(text)} characters, and {MOST_CELL} can be told at most")
    return text


def _address(seat: str) -> str:
    return hashlib.sha256(os.fsencode(seat)).hexdigest()  # a learner's file may have any name


NO_FOLDER = "there is no workshop in {folder}: {error}. Your teacher says which folder it is"
NO_PLAN = "there is no workshop in {folder}: it has no workshop.toml that you may read"
STRANGE = "{file} belongs to {owner}, and the folder to {teacher}: do not use it, and tell them"
NOT_TEACHER = "the workshop in {folder} is {teacher}'s, who alone sees its learners; you are {you}"
NOT_THE_TEACHERS = "{path} is not what {teacher} shows: it is no folder or file of that account"
NO_LEARNER = "{user} has no seat: there are {users}"
CROWDED = "{seats} holds too many files: {user} has made {count} of them, and others may be missing"
FULL = "all that can be told in {folder} has been told: `rankroom workshop open` another folder"
UNWRITTEN = "cannot write to the workshop in {folder}: {error}"
UNMADE = (
    "cannot make the workshop's folder {folder}: {error}. Learners are kept apart by the modes of "
    "its folders: choose a place of a file system that has them, such as the project's or scratch"
)
NO_PARENT = (
    "cannot make the workshop's folder {folder}: {parent}: {error}. Make {parent} first, where "
    "learners can enter it, or choose another place"
)
OCCUPIED = (
    "{folder} is no workshop's folder and holds files, {name} among them: as one, it would be open "
    "to everybody. Give a folder that does not exist yet, or an empty one"
)
CLOSED = (
    "learners cannot enter {folder}, as {parent} has the mode {mode:04o}: choose another place, or "
    "`chmod o+x {parent}`"
)
REPLACEABLE = (
    "anybody could put another folder in the place of {folder}, as {parent} may be written to by "
    "all: choose another place"
)
CUT = "only the first {most} MB of this run are shown: what it told after that is left out"
LARGE = "the run {run} is too large to be shown: {size} MB of events, and {most} MB at most"
