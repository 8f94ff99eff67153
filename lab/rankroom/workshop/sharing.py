"""A seat's server: writes the seat, reads the teacher's news, and ends with the workshop.

One task of the Jupyter server whose environment names a workshop (RANKROOM_WORKSHOP); all files are
read and written in a thread. A failure here never disturbs a lesson: it is reported in one line.
"""

from __future__ import annotations

import asyncio
import contextlib
import errno
import os
import threading
import time
from collections.abc import Callable
from dataclasses import asdict, replace
from typing import Any

import psutil

from rankroom import config
from rankroom.cluster import actions, liveness, lookup
from rankroom.config import user_home
from rankroom.course.copies import copy_to
from rankroom.errors import RankroomError, UsageError, file_error
from rankroom.record.cluster_file import ClusterInfo
from rankroom.workshop import seat as seats
from rankroom.workshop.owned_files import account
from rankroom.workshop.seat import (
    HEARTBEAT_S,
    ChoicesNotStoredError,
    OwnSeat,
    SeatChoices,
    SeatStatus,
)
from rankroom.workshop.seat_status import StatusReader
from rankroom.workshop.workshop_folder import END_WARNING_S, Folder, News
from rankroom.workshop.workshop_plan import Plan

WORKSHOP_VARIABLE = "RANKROOM_WORKSHOP"  # names the workshop's folder for a learner's server
ROUND_INTERVAL_S = 0.5
MIN_WRITE_INTERVAL_S = 2.0  # the shortest time between two writes of a seat
MAX_NEWS_KEPT = 200  # items of news that are kept for pages


class Sharing:
    """The learner's side of a workshop. `news` holds the items for this seat; `trouble` says in one
    line why the teacher does not see the seat, or what else fails, else empty; `ends_at` is when
    its ranks and server end (epoch s), 0 while unknown. `stop` ends the server, `tell` logs a line,
    and `pages` counts the notebooks that are open in a browser."""

    def __init__(
        self,
        folder: str | os.PathLike[str],
        stop: Callable[[], None] = lambda: None,
        tell: Callable[[str], None] = lambda text: None,
        pages: Callable[[], int] = lambda: 1,
    ) -> None:
        self.folder = Folder(folder)
        self.plan: Plan | None = None
        self.news: list[News] = []
        self.status = SeatStatus()
        self.trouble = ""
        self.ends_at = 0.0
        self._lock = threading.Lock()
        self._seat: OwnSeat | None = None
        self._has_left = False  # whether the learner has given the seat up
        self._stop, self._tell, self._pages = stop, tell, pages
        self._away_since = 0.0
        self._reader = StatusReader(time.time())
        self._uncopied = ""  # why the notebooks are not in the home; empty if they are
        self._unkept = ""  # why choices cannot be stored in the home; empty if they can
        self._keep_again = 0.0  # when storing them is tried next (monotonic s)
        self._copied = ""  # the folder that the notebooks were copied to
        self._copy_again = 0.0  # when to look for that folder next (monotonic s)
        self._is_reopened = False  # whether it was opened again, and its plan not read yet
        self._heard = 0  # the id of the last item of news that was read
        self._began = ""  # how the first line of the news begins
        self._told: tuple[Any, ...] = ()  # what was written into the seat
        self._written = 0.0  # when the seat was last written (monotonic s)
        self._tried = 0.0  # when taking a seat was last tried (monotonic s)

    async def run(self) -> None:
        """Share until the workshop ends; then end this server's ranks, and the server."""
        while not self.is_over:
            await asyncio.to_thread(self.look)
            await asyncio.sleep(self._pause())
        try:
            await asyncio.to_thread(self.end)
        finally:
            self._stop()

    def _pause(self) -> float:
        """Return the seconds to the next round: one falls on the moment from which the seat may be
        written again, as the teacher waits for what has changed since."""
        until_write = self._written + MIN_WRITE_INTERVAL_S - time.monotonic()
        return min(ROUND_INTERVAL_S, until_write) if until_write > 0 else ROUND_INTERVAL_S

    @property
    def is_over(self) -> bool:
        return 0 < self.ends_at <= time.time()

    @property
    def has_seat(self) -> bool:
        """Whether this server has a seat, by which the teacher sees the learner."""
        return self._seat is not None

    def view(self) -> dict[str, Any]:
        """Return what a learner's page shows: what is shared, by whom and to whom, and the news."""
        choices = self.choices()
        return {
            "folder": str(self.folder.path),
            "name": self.plan.name if self.plan else "",
            "teacher": account(self._seat.owner) if self._seat else "",
            "shares": choices.shares,
            "hand_since": choices.hand_since,
            "status": asdict(self.status),
            "trouble": self.trouble,
            "ends_at": self.ends_at,
            "news": [asdict(each) for each in self.news],
        }

    def choices(self) -> SeatChoices:
        """Return the learner's choices. Raises OSError if they cannot be read."""
        return self._seat.choices() if self._seat else seats.read_choices()

    def hand(self, is_up: bool) -> None:
        """Raise or lower the hand, and start a round at once."""
        self._set(lambda seat: seat.hand(is_up))

    def share(self, is_on: bool) -> None:
        """Start or stop sharing."""
        self._set(lambda seat: seat.share(is_on))

    def _set(self, choose: Callable[[OwnSeat], None]) -> None:
        seat = self._demand_seat()
        with self._lock, contextlib.suppress(ChoicesNotStoredError):  # look() reports it
            choose(seat)
        self._keep_again = 0.0
        self.look()

    def look(self) -> None:
        """Do one round: read what is new, and write the seat if it has changed or is due."""
        try:
            with self._lock:  # a page's request may start a round of its own
                if self._seat is None:
                    self._begin()
                self._copy()
                self._end_as_planned()
                self._listen()
                self._write()
        except Exception as error:  # whatever a damaged file causes, the next round may succeed
            plain = file_error(error) if isinstance(error, OSError) else error
            self._complain(str(plain or error) or type(error).__name__)

    def end(self) -> None:
        """End the clusters that were started in this workshop, and mark the seat as ended."""
        end_clusters(self.folder)
        if self._seat is not None:
            with contextlib.suppress(RankroomError, OSError):
                self._seat.hand(False)
            with contextlib.suppress(RankroomError, OSError):
                self.status = replace(self._reader.read(), state="ended", why="", ranks={})
                self._seat.write(self.status)

    def _begin(self) -> None:
        """Take the seat; after a failure, try again once HEARTBEAT_S have passed."""
        if self._has_left or (self._tried and time.monotonic() - self._tried < HEARTBEAT_S):
            return
        self._tried = time.monotonic()
        self.plan = plan = self.folder.plan()
        if self.folder.is_over():  # a job that was pending for too long
            self.ends_at = time.time()
        demand_place(plan, account(os.getuid()), self.folder)
        taken = seats.take(self.folder.path, self.folder.owner_uid)
        self._seat, self._written = taken, time.monotonic()
        self.folder.known_owner = taken.owner

    def _copy(self) -> None:
        """Copy the notebooks of the whole course, as lessons lead to one another. If the home is
        full or the folder is gone, this is tried again after HEARTBEAT_S; a notebook that the
        learner has removed stays removed."""
        if self._seat is None or self.plan is None or time.monotonic() < self._copy_again:
            return
        self._copy_again = time.monotonic() + HEARTBEAT_S
        into = user_home() / self.plan.copies
        if self._copied == str(into) and into.exists():
            return
        try:
            copy_to(into, of_learner=True)
            self._uncopied, self._copied = "", str(into)
        except UsageError as error:
            self._uncopied = str(error)
        self._complain(self._uncopied or self._unkept)

    def _end_as_planned(self) -> None:
        if self._is_reopened:
            return
        end = self.plan.ends.timestamp() if self._seat and self.plan and self.plan.ends else 0.0
        if end and not self.ends_at and end - time.time() < END_WARNING_S:
            self.ends_at = end

    def _listen(self) -> None:
        if self._seat is None or self.plan is None:
            return
        self._seat.demand_teacher()
        began, told = self.folder.told(self._heard)
        if began and began != self._began:
            if self._began:  # the folder was created again, and its ids begin again
                with contextlib.suppress(OSError):  # the home may be full
                    seats.write_choices(replace(seats.read_choices(), answers=()))
                self._heard, self.news, told = 0, [], self.folder.news()
                self._told = ()  # the seat must be written again
            self._began = began
        if said := [each for each in told if each.kind in ("open", "end")]:
            # Only the last one counts: an end that was revoked must not take effect in between.
            self.ends_at = said[-1].until if said[-1].kind == "end" else 0.0
            self._is_reopened |= any(each.kind == "open" for each in said)
        for each in told:
            if each.is_for(self._seat.name):
                self.news = [*self.news, each][-MAX_NEWS_KEPT:]
            self._heard = each.id
        if self._is_reopened:  # perhaps with another plan; if it cannot be read, it is tried again
            self.plan = self.folder.plan()
            self._is_reopened, self._copy_again = False, 0.0

    def _write(self) -> None:
        if self._seat is None:
            return
        self._away_since = 0.0 if self._pages() else self._away_since or time.time()
        self.status = replace(self._reader.read(), away_since=self._away_since)
        choices = self._seat.choices()
        if choices.seat != self._seat.name:
            if not seats.own_file().parent.is_dir():  # the home is away for a while
                raise FileNotFoundError(errno.ENOENT, "no such folder now", str(config.home()))
            self._seat.remove()  # it may have been written again since the learner left
            self._seat, self._has_left = None, True
            self._complain(LEFT.format(folder=self.folder.path))
            return
        self._keep(self._seat)
        now = (self.status, choices.hand_since, choices.shares)
        since = time.monotonic() - self._written
        if since < MIN_WRITE_INTERVAL_S or (now == self._told and since < HEARTBEAT_S):
            return
        self._written = time.monotonic()  # even if it fails: a full disk is not retried at once
        self._seat.write(self.status)
        self._told, self._written = now, time.monotonic()
        self._complain(self._uncopied or self._unkept)

    def _keep(self, seat: OwnSeat) -> None:
        """Store the learner's choices in the home; after a failure, try again after HEARTBEAT_S."""
        if time.monotonic() < self._keep_again:
            return
        self._unkept = ""
        try:
            seat.store_choices()
        except ChoicesNotStoredError as error:
            self._unkept, self._keep_again = str(error), time.monotonic() + HEARTBEAT_S
            self._complain(self._uncopied or self._unkept)

    def _demand_seat(self) -> OwnSeat:
        if self._seat is None:
            raise UsageError(self.trouble or seats.NONE)
        return self._seat

    def _complain(self, trouble: str) -> None:
        """Set `trouble`, and log it if it is new; empty: nothing is wrong."""
        if trouble and trouble != self.trouble:
            self._tell(f"workshop: {trouble}")
        self.trouble = trouble


def end_clusters(folder: Folder) -> None:
    """End this account's clusters on this machine that were started in a workshop."""
    for info in lookup.running_clusters():
        if _has_begun(folder, info):
            with contextlib.suppress(RankroomError, OSError):
                actions.stop(info.name)


def _has_begun(folder: Folder, info: ClusterInfo) -> bool:
    """Return whether a cluster was started in this workshop, according to the environment of its
    supervisor. Clusters of other notebooks on this machine, or in other jobs, were not."""
    with contextlib.suppress(psutil.Error):
        if liveness.here(info.host, info):
            begun_in = psutil.Process(info.supervisor).environ().get(WORKSHOP_VARIABLE, "")
            return bool(begun_in) and Folder(begun_in).path == folder.path
    return False


def seat_ranks() -> int:
    """Return how many ranks this process's workshop gives a seat; 0 outside a workshop, or if its
    plan cannot be read."""
    plan = _plan_of_process()
    return plan.ranks if plan else 0


def seat_lessons() -> list[int]:
    """Return the lessons that this process's workshop teaches; none without a plan."""
    plan = _plan_of_process()
    return [number for number, _ in plan.lessons] if plan else []


def _plan_of_process() -> Plan | None:
    if folder := os.environ.get(WORKSHOP_VARIABLE):
        with contextlib.suppress(RankroomError):
            return Folder(folder).plan()
    return None


def demand_place(plan: Plan, user: str, folder: Folder) -> None:
    """Raise UsageError if the plan has no place for this account, now or at all."""
    if plan.learners and user not in plan.learners and not folder.is_teacher():
        raise UsageError(NOT_LISTED.format(user=user, name=plan.name, teacher=folder.teacher))
    if folder.is_over():
        raise UsageError(OVER.format(name=plan.name))


NOT_LISTED = (
    "{user} is not in the list of learners of {name}: ask {teacher} to add you to `learners`, and "
    "to run `rankroom workshop open` again"
)
LEFT = (
    "you no longer have a seat in {folder}, and nothing is shared. Join again to take one (at a "
    "hub, first stop your server: File, Hub Control Panel)"
)
OVER = "the workshop {name} is over: you keep its notebooks, and everything else in your home"
