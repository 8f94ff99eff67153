"""A workshop over HTTP: all seats for its teacher; the own seat and the offers for a learner.

The file system tells the two apart: the server's account owns the workshop's folder, or has a seat.
"""

from __future__ import annotations

import asyncio
import contextlib
import os
import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any, Literal, TypeVar

from jupyter_server.utils import to_os_path
from tornado.web import HTTPError

from rankroom.course import copies
from rankroom.errors import RankroomError, UnreadableRecordError, UsageError
from rankroom.record.store import RecordPaths
from rankroom.server import run_routes
from rankroom.server.handler import Handler, allowed
from rankroom.server.metric_routes import MetricCurves
from rankroom.server.profile_routes import Profiles
from rankroom.workshop import workshop_answers
from rankroom.workshop.sharing import WORKSHOP_VARIABLE, Sharing
from rankroom.workshop.workshop_folder import Folder

COPY_INTERVAL_S = 2.0  # between two copies of a live run that learners are shown
MAX_TIMER_MINUTES = 24 * 60.0
T = TypeVar("T")
_following: dict[tuple[str, str], asyncio.Task[None]] = {}  # of live runs, by folder and id
_followed: set[tuple[str, str]] = set()  # runs that were copied to their ends
_copying = threading.Lock()  # two threads would use the same temporary file


class Overview(Handler):
    """The teacher's view; `exercise` is the one whose results are included."""

    @allowed
    async def get(self) -> None:
        folder = of_workshop(self.get_query_argument("folder", ""))
        exercise = self.get_query_argument("exercise", "")
        told = await self.threads.look(
            f"workshop {folder.path} {exercise}",
            lambda: workshop_answers.overview(folder, exercise),
        )
        await go_on_following(self, folder)
        self.finish(told)


class TeacherHandler(Handler):
    """A message of the teacher to all learners, or an offer to one."""

    async def tell(self, act: Callable[[Folder, dict[str, str]], object], said: str) -> None:
        words = self.words()
        folder = of_workshop(words.get("folder", ""))
        await self.threads.run(lambda: act(folder, words))
        self.finish({"message": said})


class Say(TeacherHandler):
    @allowed
    async def post(self) -> None:
        await self.tell(lambda folder, words: folder.say(given(words, "text")), MESSAGE_SENT)


class Cell(TeacherHandler):
    @allowed
    async def post(self) -> None:
        await self.tell(
            lambda folder, words: folder.offer_cell(given(words, "source"), words.get("title", "")),
            OFFERED_TO_ALL,
        )


class Timer(TeacherHandler):
    """Show a timer, or remove it if no minutes are given."""

    @allowed
    async def post(self) -> None:
        said = TIMER if minutes(self.words()) else NO_TIMER
        await self.tell(
            lambda folder, words: folder.timer(minutes(words), words.get("title", "")), said
        )


class Offer(TeacherHandler):
    @allowed
    async def post(self) -> None:
        await self.tell(
            lambda folder, words: folder.request(
                given(words, "user"), offer_of(words), words.get("exercise", "")
            ),
            OFFERED,
        )


class Show(TeacherHandler):
    """Show one of the teacher's runs, and follow it while it is live; without an id, show none."""

    @allowed
    async def post(self) -> None:
        words = self.words()
        folder, run_id = of_workshop(words.get("folder", "")), words.get("run", "")
        if not run_id:
            await self.threads.run(lambda: folder.show_run(None))
            self.finish({"message": NOT_SHOWN})
            return
        run = await asyncio.to_thread(self.store.load, run_id)
        paths = self.store.paths(run_id)
        await self.threads.run(lambda: _alone(folder.show_run, paths))
        if run.state == "running":
            follow(self, folder, run_id)
        self.finish({"message": SHOWN})


def follow(handler: Handler, folder: Folder, run_id: str) -> None:
    """Start copying what is new of the run that is shown, unless that is under way."""
    key = str(folder.path), run_id
    if key not in _following:
        _following[key] = asyncio.create_task(_follow(handler, folder, run_id))
        _following[key].add_done_callback(lambda done: _following.pop(key))


async def go_on_following(handler: Handler, folder: Folder) -> None:
    """Follow the run that is shown if an earlier server has begun to and it has not ended in the
    copy."""
    with contextlib.suppress(RankroomError, OSError):  # such as a copy that is damaged
        run_id = await asyncio.to_thread(folder.shown_run)
        key = str(folder.path), run_id
        if run_id and key not in _following and key not in _followed:
            copy = await asyncio.to_thread(folder.shown().load, run_id)
            if copy.state in ("running", "lost"):
                follow(handler, folder, run_id)


async def _follow(handler: Handler, folder: Folder, run_id: str) -> None:
    """Copy what is new of a run until it is over or another one is shown; then once more, for what
    is computed at its end."""
    paths = handler.store.paths(run_id)
    is_live = is_shown = True
    is_whole, trouble = False, ""
    while is_live and is_shown:
        await asyncio.sleep(COPY_INTERVAL_S)
        try:
            # Read before it is copied, so that the last copy is complete.
            run = await asyncio.to_thread(handler.store.load, run_id)
            is_shown = await asyncio.to_thread(_alone, folder.follow_run, paths)
            is_live = run.state == "running"
            is_whole = run.state != "lost"  # a lost one may turn out to be alive, or be completed
        # The file system's fault, which may pass; UsageError, if the folder cannot be looked at.
        except (UnreadableRecordError, UsageError, OSError) as error:
            if str(error) != trouble:
                trouble = str(error)
                handler.log.warning("%s", error)
        except RankroomError as error:  # the record is gone
            handler.log.warning("%s", error)
            is_live, is_whole = False, True
    if not is_live and is_whole:
        _followed.add((str(folder.path), run_id))
    await asyncio.sleep(COPY_INTERVAL_S)
    with contextlib.suppress(RankroomError, OSError):
        await asyncio.to_thread(_alone, folder.follow_run, paths)


class SeatHandler(Handler):
    """A learner's request about the own seat."""

    @property
    def sharing(self) -> Sharing | None:
        """The learner's side of the workshop; None if this server has no seat."""
        found: Sharing | None = self.settings.get("rankroom_workshop")
        return found

    @property
    def seat(self) -> Sharing:
        """The same as `sharing`. Raises UsageError if this server has no seat."""
        if self.sharing is None:
            raise UsageError(NO_SEAT)
        return self.sharing


class Own(SeatHandler):
    """The learner's view, also for a page that does not know yet whether there is a workshop."""

    @allowed
    async def get(self) -> None:
        sharing = self.sharing
        self.finish(await self.threads.state("own workshop", lambda: workshop_answers.own(sharing)))


class Hand(SeatHandler):
    @allowed
    async def post(self) -> None:
        is_up, seat = flag(self.words(), "is_up"), self.seat
        await self.threads.run(lambda: seat.hand(is_up))
        self.finish({"message": "your hand is up" if is_up else "your hand is down"})


class Share(SeatHandler):
    @allowed
    async def post(self) -> None:
        is_on, seat = flag(self.words(), "is_on"), self.seat
        await self.threads.run(lambda: seat.share(is_on))
        self.finish({"message": SHARED if is_on else NOT_SHARED})


class Answer(Handler):
    """Note that an offer was taken or declined: it is not shown again."""

    @allowed
    async def post(self) -> None:
        offer = given(self.words(), "offer")
        if not offer.isdecimal() or len(offer) > 15:
            raise HTTPError(400, f"offer={offer!r}: give the number of an offer")
        await self.threads.run(lambda: workshop_answers.answer(int(offer)))
        self.finish({"message": "the offer is closed"})


class Reset(Handler):
    """Replace a learner's lesson by a fresh copy; the old one is kept under another name."""

    @allowed
    async def post(self) -> None:
        notebook = given(self.words(), "notebook")
        root = Path(self.settings["server_root_dir"]).expanduser().absolute()
        path = Path(to_os_path(notebook, str(root)))
        if ".." in notebook.split("/") or not path.is_relative_to(root):
            raise UsageError(OUTSIDE.format(notebook=notebook))
        kept = await self.threads.run(lambda: copies.start_over(path))
        self.finish({"message": f"your notebook is kept as {kept.name}"})


def _alone(copy: Callable[[RecordPaths], T], paths: RecordPaths) -> T:
    with _copying:
        return copy(paths)


def of_workshop(named: str) -> Folder:
    """Return the folder with the path `named`, or that of this server's workshop. Raises UsageError
    if there is neither."""
    place = named or os.environ.get(WORKSHOP_VARIABLE, "")
    if not place.startswith("/"):
        raise UsageError(FOLDER_NOT_ABSOLUTE.format(place=place) if place else NO_FOLDER)
    return Folder(place)


def given(words: dict[str, str], key: str) -> str:
    """Return the text under `key`. Raises UsageError if it is empty."""
    text = words.get(key, "")
    if not text.strip():
        raise UsageError(MISSING_FIELD[key])
    return text


def flag(words: dict[str, str], key: str) -> bool:
    """Return whether `key` is yes. Raises UsageError unless it is yes or no."""
    if words.get(key) not in ("yes", "no"):
        raise UsageError(f"{key} must be yes or no")
    return words[key] == "yes"


def offer_of(words: dict[str, str]) -> Literal["catch up", "reset"]:
    """Return what is offered. Raises UsageError, which names the valid offers."""
    what = words.get("what")
    if what == "reset":
        return "reset"
    if what == "catch up":
        return "catch up"
    raise UsageError(f"{what!r} cannot be offered; the offers are 'catch up' and 'reset'")


def minutes(words: dict[str, str]) -> float:
    """Return how many minutes a timer runs, 0 for none. Raises UsageError for a bad number."""
    text = words.get("minutes", "")
    try:
        value = float(text or 0)
    except ValueError:
        value = -1.0
    if not 0 <= value <= MAX_TIMER_MINUTES:
        raise UsageError(f"{text!r} minutes: give a number up to {MAX_TIMER_MINUTES:g}")
    return value


def shown_routes(
    parts: dict[str, Any], folder: Folder
) -> list[tuple[str, type[Handler], dict[str, Any]]]:
    """Return routes to the runs that the teacher shows, for a learner's server."""
    store = folder.shown()
    shown = {**parts, "store": store, "profiles": Profiles(store), "curves": MetricCurves(store)}
    return [
        (path.replace("rankroom/", "rankroom/workshop/", 1), handler, shown)
        for path, handler in run_routes.READ_ONLY_ROUTES
    ]


ROUTES: list[tuple[str, type[Handler]]] = [
    (r"rankroom/workshop", Overview),
    (r"rankroom/workshop/own", Own),
    (r"rankroom/workshop/say", Say),
    (r"rankroom/workshop/cell", Cell),
    (r"rankroom/workshop/timer", Timer),
    (r"rankroom/workshop/offer", Offer),
    (r"rankroom/workshop/show", Show),
    (r"rankroom/workshop/hand", Hand),
    (r"rankroom/workshop/share", Share),
    (r"rankroom/workshop/answer", Answer),
    (r"rankroom/workshop/reset", Reset),
]
NO_SEAT = (
    "this Jupyter server has no seat in a workshop: `rankroom workshop join` starts one that has"
)
NO_FOLDER = "say which workshop: give the folder that `rankroom workshop open` made"
OUTSIDE = "{notebook} is outside this server's root folder"
FOLDER_NOT_ABSOLUTE = (
    "{place} is not an absolute path: give the folder that `rankroom workshop open` made"
)
MISSING_FIELD = {
    "text": "there is no message yet: write one first",
    "source": "there is no cell yet: write one, or take the active cell of a notebook",
    "user": "name the learner to offer it to",
    "offer": "say which offer is meant",
    "notebook": "say which notebook is to be started over",
}
MESSAGE_SENT = "all learners see it within seconds"
OFFERED_TO_ALL = "all learners can insert it within seconds"
TIMER = "all learners see the timer within seconds"
NO_TIMER = "no timer is shown any more"
OFFERED = "the learner sees the offer within seconds"
SHOWN = "all learners can open the run within seconds"
NOT_SHOWN = "no run is shown any more"
SHARED = "the teacher sees your state and progress"
NOT_SHARED = "the teacher sees your name and your hand, and nothing else"
