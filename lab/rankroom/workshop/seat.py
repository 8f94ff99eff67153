"""A seat: one small file in the workshop's folder, which a learner writes and the teacher reads.

Its name ends with a number that cannot be guessed, and only the teacher can list the names, so that
learners cannot read each other's. It holds what `SeatStatus` lists, and nothing else leaves the
account.
"""

from __future__ import annotations

import contextlib
import dataclasses
import errno
import functools
import json
import os
import secrets
import time
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, Literal, get_args

from rankroom import config
from rankroom.errors import RankroomError, UsageError, with_remedy
from rankroom.system.files import write_atomically
from rankroom.workshop.owned_files import account, read_owned, write_shared

VERSION = 1
MAX_SEAT_BYTES = 65_536  # bytes of a seat
MOST_TEXT = 300  # characters of each text in it that are shown
SEATS = "seats"
HEARTBEAT_S = 20.0  # a seat is written this often even if nothing has changed
State = Literal["not started", "idle", "running", "stuck", "failed", "ended"]


@dataclass(frozen=True)
class SeatStatus:
    """What a learner shares. Times are epoch seconds.

    `exercise` is the last one tried: name, passed, tries, at. `why` is the explanation of what is
    stuck, or the first line of a failure; `since` is when the state began. `ranks` are alive, of;
    `run` is the newest: id, title, state, since. `progress` has tries and the day of passing, by
    exercise. `away_since` is when the last notebook's page was closed, 0 while one is open. If
    `shares` is false, only the user and the hand are written, and in the end that the seat has
    ended.
    """

    user: str = ""
    at: float = 0.0
    shares: bool = True
    hand: bool = False
    hand_since: float = 0.0
    state: State = "not started"
    why: str = ""
    since: float = 0.0
    lesson: int | None = None
    exercise: dict[str, Any] = field(default_factory=dict)
    progress: dict[str, Any] = field(default_factory=dict)
    ranks: dict[str, int] = field(default_factory=dict)
    run: dict[str, Any] = field(default_factory=dict)
    host: str = ""
    job: str = ""
    ends_at: float = 0.0
    away_since: float = 0.0
    version: int = VERSION

    def to_json(self) -> dict[str, Any]:
        """Return what is written; without sharing, only the user, the hand and the end."""
        data = dataclasses.asdict(self)
        if not self.shares:
            kept = ["user", "at", "shares", "hand", "hand_since", "version"]
            kept += ["state"] if self.state == "ended" else []
            data = {key: data[key] for key in kept}
        return data

    @classmethod
    def from_json(cls, data: Any) -> SeatStatus:
        """Return the status in data that a stranger may have written: each value has its type, each
        text is short and on one line. Raises ValueError if it is no seat."""
        if not isinstance(data, dict) or not isinstance(data.get("version"), int):
            raise ValueError("no seat")
        state: State = data["state"] if data.get("state") in get_args(State) else "idle"
        number = data.get("lesson")
        ranks, run = _dict(data, "ranks"), _dict(data, "run")
        tried, progress = _dict(data, "exercise"), _dict(data, "progress")
        return cls(
            user=_text(data.get("user")),
            at=_number(data.get("at")),
            shares=data.get("shares") is not False,
            hand=data.get("hand") is True,
            hand_since=_number(data.get("hand_since")),
            state=state,
            why=_text(data.get("why")),
            since=_number(data.get("since")),
            lesson=number if type(number) is int and 0 <= number < 1000 else None,
            exercise={
                "name": _text(tried.get("name")), "passed": tried.get("passed") is True,
                "tries": int(_number(tried.get("tries"))), "at": _number(tried.get("at")),
            } if tried else {},
            progress={
                "tries": {_text(k): int(_number(v)) for k, v in _dict(progress, "tries").items()},
                "passed": {_text(k): _text(v) for k, v in _dict(progress, "passed").items()},
            } if progress else {},
            ranks={key: int(_number(ranks.get(key))) for key in ("alive", "of")} if ranks else {},
            run={
                "id": _text(run.get("id")), "title": _text(run.get("title")),
                "state": _text(run.get("state")), "since": _number(run.get("since")),
            } if run else {},
            host=_text(data.get("host")),
            job=_text(data.get("job")),
            ends_at=_number(data.get("ends_at")),
            away_since=_number(data.get("away_since")),
            version=data["version"],
        )  # fmt: skip


@dataclass(frozen=True)
class Seat:
    """A seat as the teacher finds it. `user` is the account that owns the file, whatever is in it;
    `heard` is when it was last written (epoch s); `key` is its file's name, by which the learner is
    addressed."""

    uid: int
    user: str
    heard: float
    key: str
    status: SeatStatus

    @classmethod
    def read(cls, path: Path) -> Seat | None:
        """Return the seat in a file; None if it holds none."""
        found = read_owned(path, MAX_SEAT_BYTES)
        if found is None or found.others_write:
            return None
        try:
            status = _parsed(found.text)
        except (ValueError, RecursionError):
            return None
        return cls(found.uid, account(found.uid), found.written, path.name, status)


class ChoicesNotStoredError(RankroomError):
    """The home cannot store the learner's choices: they hold for this process only."""


class OwnSeat:
    """This account's seat in a workshop, remembered in `workshop.json` in its home.

    That file also holds the learner's choices, made in any notebook, terminal or page: whether the
    hand is up, and whether anything is shared. The learner's server writes the seat; a command in a
    terminal does so, too, as there may be no server.
    """

    def __init__(self, folder: Path, name: str, owner: int) -> None:
        self.folder = folder
        self.name = name
        self.owner = owner  # the teacher's uid when the seat was taken
        self.path = folder / SEATS / name
        self._unstored_choices: dict[str, Any] = {}  # choices that the home has not stored

    def demand_teacher(self) -> None:
        """Raise UsageError if the folder now belongs to another account, which may have created it
        again after the teacher's was gone. If there is no folder, nothing is known, and nothing is
        raised."""
        with contextlib.suppress(OSError):
            if (now := self.folder.lstat().st_uid) != self.owner:
                raise UsageError(OTHER_OWNER.format(folder=self.folder, now=account(now)))

    def write(self, status: SeatStatus) -> None:
        """Replace what is shared. Raises OSError, after which the lesson goes on and the next try
        may succeed; UsageError if an account other than the teacher's would read it."""
        self.demand_teacher()
        choices = self.choices()
        now = replace(
            status, user=account(os.getuid()), at=time.time(), hand=choices.hand_since > 0,
            hand_since=choices.hand_since, shares=choices.shares,
        )  # fmt: skip
        try:
            write_shared(self.path, json.dumps(now.to_json(), ensure_ascii=False))
        except OSError as error:  # is logged: others must not read the seat's name there
            raise OSError(error.errno, error.strerror, str(self.path.parent)) from None

    def choices(self) -> SeatChoices:
        """Return the learner's choices, including those that the home has not stored. Raises as
        `read_choices`."""
        return replace(read_choices(), **self._unstored_choices)

    def hand(self, is_up: bool) -> None:
        """Raise or lower the hand; it is shared even if nothing else is. Raises as `store_choices`,
        and as `read_choices`, which then changes nothing."""
        since = (self.choices().hand_since or time.time()) if is_up else 0.0
        self._set(hand_since=since)

    def share(self, is_on: bool) -> None:
        """Share what `SeatStatus` lists, or only the name and the hand. Raises as `hand`."""
        self._set(shares=is_on)

    def _set(self, **chosen: Any) -> None:
        self.choices()  # raises if they cannot be read
        self._unstored_choices |= chosen
        self.store_choices()

    def store_choices(self) -> None:
        """Store choices that the home has not stored yet. Raises ChoicesNotStoredError if it still
        cannot."""
        if not self._unstored_choices:
            return
        try:
            write_choices(self.choices())
        except OSError as error:
            said = UNKEPT.format(file=own_file(), error=with_remedy(error))
            raise ChoicesNotStoredError(said) from None
        self._unstored_choices = {}

    def write_choices_to_seat(self) -> None:
        """Write the learner's choices into the seat, and leave the rest as it is. Raises UsageError
        if that fails; the teacher may then not see them."""
        self.demand_teacher()
        found = Seat.read(self.path)
        try:
            if found is None:
                raise FileNotFoundError(errno.ENOENT, "there is no seat of yours any more")
            self.write(found.status)
        except OSError as error:
            raise UsageError(UNTOLD.format(folder=self.folder, error=error.strerror)) from None

    def leave(self) -> None:
        """Give the seat up, and remove it from the folder."""
        own_file().unlink(missing_ok=True)  # first: it tells a server not to write the seat again
        self.remove()

    def remove(self) -> None:
        """Remove the seat from the folder; if that fails, it stays."""
        with contextlib.suppress(OSError):
            self.path.unlink(missing_ok=True)


@dataclass(frozen=True)
class SeatChoices:
    """What an account remembers of its workshop: where its seat is, and the learner's choices."""

    folder: str = ""
    seat: str = ""
    owner: int = -1
    hand_since: float = 0.0  # epoch s, 0: the hand is down
    shares: bool = True
    answers: Sequence[int] = ()  # ids of the offers that were accepted or declined
    site: str = ""  # where the job of the seat is, if it has one
    job: str = ""


def own_file() -> Path:
    """Return the file in which the choices are stored."""
    return config.home() / "workshop.json"


def read_choices() -> SeatChoices:
    """Return the stored choices; the defaults if there are none.

    Raises OSError if they cannot be read: one failed read must not give a seat up, nor share what
    was not shared.
    """
    with contextlib.suppress(FileNotFoundError, ValueError, TypeError):
        data = json.loads(own_file().read_text("utf-8"))
        known = {each.name for each in dataclasses.fields(SeatChoices)}
        return SeatChoices(**{key: value for key, value in data.items() if key in known})
    return SeatChoices()


def write_choices(choices: SeatChoices) -> None:
    """Store the choices, for this account only. Raises OSError."""
    config.make_private(own_file().parent)
    write_atomically(own_file(), json.dumps(dataclasses.asdict(choices)))


def take(folder: Path, owner: int) -> OwnSeat:
    """Return this account's seat in a workshop whose folder belongs to the uid `owner`: the one it
    has, or a new one. A hand that is still up from an earlier day is lowered.

    Raises UsageError if no seat can be made, or if the folder now belongs to another account.
    """
    choices = read_choices()
    if choices.folder == str(folder) and choices.seat:
        if choices.owner != owner:
            raise UsageError(OTHER_OWNER.format(folder=folder, now=account(owner)))
    else:
        name = f"{account(os.getuid())}-{secrets.token_hex(16)}"
        kept = choices if choices.folder == str(folder) else SeatChoices(str(folder))
        choices = replace(kept, seat=name, owner=owner)
    seat = OwnSeat(folder, choices.seat, owner)
    choices = replace(choices, hand_since=0.0)
    try:
        if not seat.path.exists():  # the answered offers were made in another folder
            choices = replace(choices, answers=())
        try:
            write_choices(choices)
        except OSError:  # a full home: all of it is stored later
            seat._unstored_choices = dataclasses.asdict(choices)
        seat.write(SeatStatus())
    except OSError as error:
        raise UsageError(NO_SEAT.format(folder=folder, error=error.strerror or error)) from None
    return seat


def mine() -> OwnSeat:
    """Return the seat that this account has taken. Raises UsageError without one."""
    choices = read_choices()
    if not choices.seat and choices.job:
        about = {"folder": choices.folder, "job": choices.job, "site": choices.site}
        raise UsageError(AT_SITE.format(**about))
    if not choices.seat:
        raise UsageError(NONE)
    return OwnSeat(Path(choices.folder), choices.seat, choices.owner)


# A console reads all seats twice a second, few of which have changed. Parsing them again would take
# so long that on a node full of learners' ranks it is interrupted for seconds.
@functools.lru_cache(maxsize=512)
def _parsed(text: str) -> SeatStatus:
    return SeatStatus.from_json(json.loads(text))


def _dict(data: dict[str, Any], key: str) -> dict[str, Any]:
    value = data.get(key)
    return dict(list(value.items())[:200]) if isinstance(value, dict) else {}


def _text(value: Any) -> str:
    # On one line, and without characters that move a terminal's cursor.
    found = value[:MOST_TEXT] if isinstance(value, str) else ""
    if not found.isprintable():
        found = "".join(sign if sign.isprintable() else " " for sign in found)
    return found.strip()


def _number(value: Any) -> float:
    is_one = isinstance(value, int | float) and not isinstance(value, bool)
    return float(value) if is_one and 0 <= value < 1e12 else 0.0


OTHER_OWNER = (
    "{folder} belongs to {now} now, and not to the teacher whose workshop you joined: ask your "
    "teacher. `rankroom workshop leave` forgets the old seat"
)
NO_SEAT = (
    "cannot take a seat in {folder}: {error}. The lesson works without a seat, but the teacher "
    "does not see your progress"
)
NONE = "you have no seat in a workshop: take one with `rankroom workshop join FOLDER`"
AT_SITE = (
    "your seat in {folder} belongs to your job {job} at {site}: once it runs, type this in a "
    "terminal there"
)
UNKEPT = "your choice may be lost, as {file} cannot be written: {error}"
UNTOLD = "your teacher may not see this, as your seat in {folder} cannot be written: {error}"
