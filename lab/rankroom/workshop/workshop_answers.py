"""What a teacher's console and a learner's panel show of a workshop, as JSON.

workshop_answers.schema.json describes each field. Files are read here: do not call this on an event
loop.
"""

from __future__ import annotations

import dataclasses
import os
import shlex
import time
from collections import Counter
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from rankroom.course import quiz
from rankroom.course.exercise_list import exercises_of
from rankroom.course.lessons import LESSONS, Lesson
from rankroom.workshop import tiles
from rankroom.workshop.owned_files import account
from rankroom.workshop.seat import Seat, SeatStatus, read_choices, write_choices
from rankroom.workshop.sharing import Sharing
from rankroom.workshop.workshop_folder import Folder, News

SCHEMA_FILE = Path(__file__).with_name("workshop_answers.schema.json")
MOST_MESSAGES = 50  # the newest are shown
OFFERS = ("catch up", "reset")
Json = dict[str, Any]
_TITLES = {each.number: each.name for each in LESSONS}


def overview(folder: Folder, exercise: str = "") -> Json:
    """Return a workshop as its teacher sees it, with the results of an exercise: if none is named,
    of the one that most learners are at. Raises UsageError if there is no workshop, NotYoursError
    for other accounts."""
    seats, now = folder.seats(), time.time()
    plan, news = folder.plan(), folder.news()
    found, here = tiles.tiles(seats, plan, now), tiles.lesson_of_room(seats, plan, now)
    seated = [tile for tile in found if tile["status"] is not None]
    exercises = tiles.exercises(plan)
    exercise = exercise or _most_at(seats) or next(iter(exercises), "")
    return {
        "folder": str(folder.path),
        "name": plan.name,
        "join": f"rankroom workshop join {shlex.quote(str(folder.path))}",
        "now": now,
        "ends": plan.ends.timestamp() if plan.ends else 0.0,
        "is_over": folder.is_over(),
        "absent": [tile["user"] for tile in found if tile["status"] is None],
        "is_open": not plan.learners,
        "warnings": folder.warnings(),
        "lesson_now": _TITLES.get(-1 if here is None else here, ""),
        "tiles": [_tile(tile, news, now) for tile in seated],
        "exercises": exercises,
        "results": tiles.histogram(seats, exercise),
        "timer": _timer(news),
        "messages": _messages(news),
    }


def own(sharing: Sharing | None) -> Json:
    """Return the workshop that this server has a seat in, as its learner sees it; empty values
    without one."""
    if sharing is None:
        return {
            "role": "", "folder": "", "name": "", "teacher": "", "now": time.time(), "ends": 0.0,
            "is_over": False, "trouble": "", "shared": None, "timer": None, "messages": [],
            "offers": [],
        }  # fmt: skip
    view, news = sharing.view(), sharing.news
    choices, plan = sharing.choices(), sharing.plan
    status = dataclasses.replace(
        sharing.status, shares=choices.shares, hand=choices.hand_since > 0,
        hand_since=choices.hand_since,
    )  # fmt: skip
    return {
        "role": "learner",
        "folder": view["folder"],
        "name": view["name"],
        "teacher": (plan.teacher if plan else "") or view["teacher"],
        "now": time.time(),
        "ends": sharing.ends_at,
        "is_over": sharing.is_over,
        "trouble": sharing.trouble,
        "shared": _shared(account(os.getuid()), status) if plan and sharing.has_seat else None,
        "timer": _timer(news),
        "messages": _messages(news),
        "offers": _offers(news, status, choices.answers),
    }


def answer(offer: int) -> None:
    """Record that an offer was accepted or declined: it is not shown again. Raises OSError."""
    choices = read_choices()
    write_choices(dataclasses.replace(choices, answers=sorted({*choices.answers, offer})))


def _tile(tile: Json, news: Sequence[News], now: float) -> Json:
    status = SeatStatus(**tile["status"])
    silent = now - tile["heard"]
    is_silent = silent > tiles.SILENT_AFTER_S and status.state != "ended"
    away = status.away_since
    offers = [each for each in news if each.kind in OFFERS and each.to and each.is_for(tile["key"])]
    return {
        "key": tile["key"],
        "need": tile["needs"],
        "silent_s": silent if is_silent else 0.0,
        "away_s": now - away if away and not is_silent and tile["needs"] == "silent" else 0.0,
        "offered": {"what": offers[-1].kind, "at": offers[-1].at} if offers else None,
        "shared": _shared(tile["user"], status),
    }


def _shared(user: str, status: SeatStatus) -> Json:
    tried, run = status.exercise, status.run
    return {
        "user": user,
        "shares": status.shares,
        "hand_since": status.hand_since if status.hand else 0.0,
        "lesson": status.lesson,
        "lesson_title": _TITLES.get(-1 if status.lesson is None else status.lesson, ""),
        "exercise": {key: tried[key] for key in ("name", "passed", "tries")} if tried else None,
        "passed": sum(not quiz.is_quiz(name) for name in status.progress.get("passed", {})),
        "state": status.state,
        "why": status.why,
        "ranks": status.ranks or None,
        "run": {key: run[key] for key in ("title", "state", "since")} if run else None,
        "host": status.host,
        "job": status.job,
        "ends_at": status.ends_at,
    }


def _told(lesson: Lesson | None) -> Json | None:
    if lesson is None:
        return None
    return {"number": lesson.number, "title": lesson.name, "file": lesson.file}


def _timer(news: Sequence[News]) -> Json | None:
    for each in reversed(news):
        if each.kind == "timer":
            return {"title": each.title, "until": each.until} if each.until else None
    return None


def _messages(news: Sequence[News]) -> list[Json]:
    """Return the messages to all, newest first; of runs, only the one that is shown."""
    shows = [each.id for each in news if each.kind == "show"]
    found: list[Json] = []
    for each in reversed(news):
        # In a folder that was created again, other items have the same ids.
        common = {"id": f"{each.id} {each.at}", "at": each.at}
        if each.kind == "message":
            found.append({**common, "kind": "text", "text": each.text})
        elif each.kind == "cell":
            found.append({**common, "kind": "cell", "text": each.title, "source": each.text})
        elif each.kind == "show" and each.run and each.id == shows[-1]:
            text = each.title or each.run
            found.append({**common, "kind": "run", "text": text, "run": each.run})
        if len(found) == MOST_MESSAGES:
            break
    return found


def _offers(news: Sequence[News], status: SeatStatus, answers: Sequence[int]) -> list[Json]:
    """Return the newest offer of each kind to a seat, unless it was answered."""
    newest = {each.kind: each for each in news if each.kind in OFFERS}
    return [
        {"id": str(each.id), "at": each.at, "what": each.kind, **_target(each, status)}
        for each in newest.values()
        if each.id not in answers
    ]


def _target(offer: News, status: SeatStatus) -> Json:
    """Return the lesson and exercise that an offer is about: the teacher's choice, else the
    learner's."""
    exercise = offer.text or str(status.exercise.get("name", ""))
    own = next((each for each in LESSONS if each.number == status.lesson), None)
    there = next((each for each in LESSONS if exercise in exercises_of(each)), None)
    is_elsewhere = there != own and own is not None and not offer.text  # tried in an earlier lesson
    if offer.kind == "reset" or there is None or is_elsewhere:
        return {"lesson": _told(own), "exercise": ""}
    return {"lesson": _told(there), "exercise": exercise}


def _most_at(seats: Sequence[Seat]) -> str:
    """Return the exercise that most learners tried last; empty before the first try."""
    tried = [each.status.exercise for each in seats if each.status.shares]
    counted = Counter(str(each["name"]) for each in tried if each.get("name"))
    return max(counted, key=lambda name: (counted[name], name), default="")
