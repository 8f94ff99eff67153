"""A workshop's plan: the TOML file that its teacher writes, and that learners read in its folder.

A learner's commands take only numbers and single words from it, never a line of shell.
"""

from __future__ import annotations

import dataclasses
import functools
import json
import re
import sys
import time
from collections.abc import Callable
from dataclasses import dataclass, replace
from datetime import datetime
from pathlib import Path
from typing import Any, Literal, get_args

from rankroom import __version__
from rankroom.course.lessons import lesson
from rankroom.errors import RankroomError, UsageError
from rankroom.scheduler import site as sites
from rankroom.scheduler.site import ProfileText, Scheduler, Site

Way = Literal["ssh", "node", "hub"]
MAX_PLAN_BYTES = 65_536  # bytes of a plan
SEATS_OPEN_BEFORE_START_S = 3600.0  # how long before the start seats may be taken
_NAME = re.compile(r"[\w .,()+-]{1,60}")
_FOLDER_NAME = re.compile(r"[^\w.-]+", re.ASCII)
_PRELOAD = re.compile(r"[\w.,]*", re.ASCII)
_ACCOUNT = re.compile(r"[A-Za-z0-9_][\w.@+-]*\$?", re.ASCII)
_ADDRESS = re.compile(r"https?://[^\s'\"`<>]+")
_JOB = {  # what a plan requests, and its name in a site's job
    "reservation": "reservation", "partition": "partition", "account": "account", "qos": "qos",
    "ranks": "ranks_per_node", "gpus": "gpus_per_node", "cpus": "cpus_per_task",
    "memory": "memory_per_node", "time": "time",
}  # fmt: skip
_PERSONAL = ("account", "qos", "reservation")  # of these, what other accounts may lack


@dataclass(frozen=True)
class Plan:
    """A workshop: who takes part, where, how they join, and what each seat gets.

    `lessons` are (number, minutes); `starts` and `ends` have a time zone, None if open. `ranks`,
    `gpus` and `memory` are per learner, `cpus` per rank; 0 means the site's own value.
    """

    name: str = ""
    teacher: str = ""  # for people; the folder's owner says who it is
    folder: str = ""  # absolute, on a file system that login and compute nodes share
    way: Way = "ssh"
    hub: str = ""  # the address of JupyterHub, for the way "hub"
    site: str = ""
    scheduler: str = ""  # empty: the site's
    login: str = ""  # empty: the site's
    reservation: str = ""
    partition: str = ""
    account: str = ""
    qos: str = ""
    learners: tuple[str, ...] = ()  # accounts; empty: anyone who knows the folder
    ranks: int = 2
    gpus: int = 0
    cpus: int = 0
    memory: str = ""
    time: str = "02:00:00"
    preload: str = ""
    lessons: tuple[tuple[int, int], ...] = ()
    starts: datetime | None = None
    ends: datetime | None = None
    version: str = ""  # of Rankroom when the workshop was opened

    @property
    def copies(self) -> str:
        """The name of the folder that a learner's notebooks are copied to, in the home."""
        return _FOLDER_NAME.sub("-", self.name).strip("-.") or "workshop"

    @property
    def first_notebook(self) -> str:
        """The path from a learner's home to the notebook that is opened first."""
        number = self.lessons[0][0] if self.lessons else 0
        return f"{self.copies}/{lesson(number).file}"

    def lesson_at(self, now: float) -> int | None:
        """Return the lesson reached by now if there are no breaks, by the minutes of each; after
        all of them the last one, None before the start."""
        if self.starts is None or now < self.starts.timestamp():
            return None
        left = (now - self.starts.timestamp()) / 60
        for number, minutes in self.lessons:
            left -= minutes
            if left < 0:
                return number
        return self.lessons[-1][0] if self.lessons else None

    def is_over(self, now: float) -> bool:
        """Return whether its end has passed."""
        return self.ends is not None and now >= self.ends.timestamp()

    def is_early(self, now: float) -> bool:
        """Return whether it is too early for seats, and for the reservation, which begins with
        them."""
        return self.starts is not None and now < self.starts.timestamp() - SEATS_OPEN_BEFORE_START_S

    def demand_begun(self, now: float) -> None:
        """Raise UsageError while it is too early for a learner to take a seat."""
        if self.starts is not None and self.is_early(now):
            day = self.starts.strftime("%A %d %B, %H:%M")
            raise UsageError(NOT_OPEN_YET.format(name=self.name, day=day))

    def seconds(self, now: float) -> int:
        """Return the time limit (s) of a job that begins now: no longer than the workshop."""
        longest = sites.parse_time(self.time)
        return longest if self.ends is None else min(longest, int(self.ends.timestamp() - now))

    def of_site(self, now: float | None = None) -> Site:
        """Return the site with the resources that a job requests if it begins now. If it is too
        early for seats, as in the teacher's trial the day before, no reservation is requested.
        Raises UsageError as `sites.load`.

        A site without a profile of this account is described by the plan alone; its jobs then run
        the Python of this process.
        """
        asked: dict[str, Any] = {there: getattr(self, here) or None for here, there in _JOB.items()}
        if now is not None:
            asked["time"] = sites.clock(max(60, self.seconds(now)))
            if self.is_early(now):
                asked["reservation"] = ""
        found = self._site()
        return found.asking(nodes=1, **asked).preloading(self.preload)

    def _site(self) -> Site:
        if self.site in sites.files():
            return sites.load(self.site)
        known: Any = {"scheduler": self.scheduler or "slurm", "login": self.login}
        return Site(self.site, **known, environment=sites.Environment(python=sys.executable))

    def to_toml(self) -> str:
        """Return the plan as TOML, without empty fields."""
        lines = []
        for each in dataclasses.fields(self):
            value = getattr(self, each.name)
            if isinstance(value, datetime):
                lines.append(f"{each.name} = {value.isoformat(timespec='seconds')}")
            elif value:  # texts, numbers and lists of them look the same in JSON
                lines.append(f"{each.name} = {json.dumps(value, ensure_ascii=False)}")
        return "\n".join(lines) + "\n"


def read(path: Path) -> Plan:
    """Return the plan in a file. Raises UsageError with the line of a mistake, and what is valid
    there."""
    try:
        text = path.read_bytes()[: MAX_PLAN_BYTES + 1]
    except OSError as error:
        raise UsageError(f"cannot read the workshop's plan {path}: {error.strerror}") from None
    return parsed(path, text)


@functools.lru_cache(maxsize=16)  # consoles read it twice a second
def parsed(path: Path, raw: bytes) -> Plan:
    """Return the plan in the bytes that were read from `path`. Raises UsageError as `read`."""
    if len(raw) > MAX_PLAN_BYTES:
        raise UsageError(
            f"{path} is not a workshop's plan: it is larger than {MAX_PLAN_BYTES} bytes"
        )
    try:
        text = ProfileText(path, raw.decode("utf-8"))
    except UnicodeDecodeError as error:
        raise UsageError(f"{path} is not UTF-8: {error.reason}") from None
    data = text.data
    own: dict[str, Any] = {}
    if "lessons" in data:
        own["lessons"] = _lessons(data.pop("lessons"), text)
    for key in ("starts", "ends"):
        if key in data:
            own[key] = _moment(key, data.pop(key), text)
    if extra := next((key for key, value in data.items() if isinstance(value, dict)), None):
        raise text.wrong(extra, "is a table, and a plan has none: write its keys at the top")
    known = text.values(data, Plan(), "a workshop's plan")
    plan = Plan(**known, **own)
    _check(plan, lambda key, what: text.wrong(key, what))
    return plan


def _lessons(given: Any, text: ProfileText) -> tuple[tuple[int, int], ...]:
    found: list[tuple[int, int]] = []
    for each in given if isinstance(given, list) else [None]:
        pair: list[Any] = each if isinstance(each, list) and len(each) == 2 else [each, 0]
        if not all(type(number) is int and number >= 0 for number in pair):
            raise text.wrong("lessons", "is a list of numbers, or of [number, minutes] pairs")
        try:
            one = lesson(pair[0])
        except UsageError as error:
            raise text.wrong("lessons", f"cannot be: {error}") from None
        found.append((one.number, pair[1] or one.minutes))
    return tuple(found)


def _moment(key: str, value: Any, text: ProfileText) -> datetime:
    if not isinstance(value, datetime):
        raise text.wrong(key, "is a date with a time: 2026-05-14T09:00:00+02:00")
    return value if value.tzinfo else value.astimezone()  # this machine's time zone


def _check(plan: Plan, wrong: Callable[[str, str], UsageError]) -> None:
    for key, value, choices in (
        ("way", plan.way, get_args(Way)),
        ("scheduler", plan.scheduler, ("", *get_args(Scheduler))),
    ):
        if value not in choices:
            raise wrong(key, f"is one of {', '.join(filter(None, choices))}, not {value!r}")
    if not _NAME.fullmatch(plan.name.strip()):
        raise wrong("name", f"is missing, or {BAD_NAME}")
    if not _NAME.fullmatch(plan.teacher or "-"):
        raise wrong("teacher", BAD_NAME)
    if not plan.folder.startswith("/") or "\n" in plan.folder or ".." in Path(plan.folder).parts:
        raise wrong("folder", "is an absolute path on a file system that all nodes share")
    if plan.way == "hub" and not _ADDRESS.fullmatch(plan.hub):
        raise wrong("hub", 'is the address of JupyterHub, as way is "hub": https://hub.site.org')
    if plan.way == "ssh" and not plan.site:
        raise wrong("site", f'is missing, as way is "ssh": one of {", ".join(sites.files())}')
    if bad := next((each for each in plan.learners if not _ACCOUNT.fullmatch(each)), None):
        raise wrong("learners", f"is a list of accounts, and {bad!r} is not an account name")
    if not _PRELOAD.fullmatch(plan.preload):
        raise wrong("preload", 'names modules: "torch,horovod.torch"')
    for key, least in (("ranks", 1), ("gpus", 0), ("cpus", 0)):
        if getattr(plan, key) < least:
            raise wrong(key, f"must be at least {least}")
    if plan.starts and plan.ends and plan.ends <= plan.starts:
        raise wrong("ends", "is not after starts")
    try:  # the rules for a site's job hold for a plan's as well
        job = {there: getattr(plan, here) or None for here, there in _JOB.items()}
        Site("plan", login=plan.login).asking(**job)
    except RankroomError as error:
        words = str(error).removeprefix("plan: ").partition(" ")
        called = {there: here for here, there in _JOB.items()}.get(words[0], words[0])
        raise wrong(called, words[2]) from None


def opened(plan: Plan) -> Plan:
    """Return the plan to put into the folder: with what only the teacher's profile knows, except
    for the account, QoS and reservation of the teacher's own jobs."""
    profile = sites.load(plan.site) if plan.site in sites.files() else None
    if profile is not None:
        login = plan.login or profile.login
        plan = replace(plan, scheduler=plan.scheduler or profile.scheduler, login=login)
    if profile is not None and plan.way == "ssh":
        known: Any = {
            here: getattr(profile.job, there)
            for here, there in _JOB.items()
            if here not in _PERSONAL and not getattr(plan, here)
        }
        plan = replace(plan, **known)
    return replace(plan, version=__version__)


BAD_NAME = (
    "has other characters than letters, digits, spaces and _ . , ( ) + -, or more than 60 of them"
)
NOT_OPEN_YET = "{name} begins on {day}: seats can be taken from an hour before"
TEMPLATE = """\
# A workshop. `rankroom workshop check FILE` tries it, `rankroom workshop open FILE` begins it.
name = "Distributed training"
teacher = "Your Name"
# Made by `open`: on a file system that login and compute nodes share, where learners may enter.
folder = "{folder}"

# How learners come in: "ssh" (each starts a job of their own on a site), "node" (all are on one
# large machine), or "hub" (JupyterHub, whose address is `hub`).
way = "ssh"
site = "{site}"
# hub = "https://jupyter.your.site"

# The accounts that may take a seat. Without this line: everybody who knows the folder.
# learners = ["alice", "bob"]

# What each learner's job requests; what is left out is taken from the site's profile, except for
# account, qos and reservation: yours are not theirs.
ranks = 2
# gpus = 2
# cpus = 4               # for each rank
# memory = "16G"
time = "09:00:00"        # a day, and the hour before it; a job ends at `ends` anyway
# reservation = "workshop"
# partition = "gpu"
# account = "course"
# qos = "training"
# preload = "torch,horovod.torch"

# The lessons in order, each with its minutes; breaks need not be among them.
lessons = [[0, 5], [1, 15], [2, 20], [3, 20], [4, 20]]
starts = {day}T09:00:00
ends = {day}T17:00:00
"""


def template(now: float | None = None) -> str:
    """Return a plan to start from, dated today."""
    own = sorted(p.stem for p in sites.own_folder().glob("*.toml")) or ["mysite"]
    day = time.strftime("%Y-%m-%d", time.localtime(now))
    return TEMPLATE.format(folder=f"/scratch/workshops/{day}", site=own[0], day=day)
