"""What the teacher sees: a tile for each learner, those who need help first, and the results of
exercises.

All functions but `overview` are pure: they take seats and a time, and return what is shown.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Sequence
from typing import Any

from rankroom.course.exercise_list import exercises_of
from rankroom.course.lessons import lesson
from rankroom.text.amounts import duration
from rankroom.workshop.seat import HEARTBEAT_S, Seat
from rankroom.workshop.workshop_folder import Folder
from rankroom.workshop.workshop_plan import Plan

SILENT_AFTER_S = 3 * HEARTBEAT_S  # by then a learner has closed the laptop, or lost the server
Json = dict[str, Any]
# Reasons for a learner to come first, in this order; the rest come by name.
NEEDS = ("hand", "stuck", "failed", "silent", "behind", "")


def overview(folder: Folder, now: float) -> Json:
    """Return all that the teacher sees, from the folder. Raises NotYoursError for an account other
    than the teacher's, UsageError if there is no workshop.

    `timer` and `shown` are the latest ones announced: title and until; the id of a run.
    """
    plan, seats = folder.plan(), folder.seats()
    told = {each.kind: each for each in folder.news()}
    timer, shown = told.get("timer"), told.get("show")
    return {
        "folder": str(folder.path),
        "name": plan.name,
        "now": now,
        "lesson": lesson_of_room(seats, plan, now),
        "ends": plan.ends.timestamp() if plan.ends else 0.0,
        "is_over": folder.is_over(),
        "timer": {"title": timer.title, "until": timer.until} if timer and timer.until else None,
        "shown": shown.run if shown else "",
        "tiles": tiles(seats, plan, now),
        "exercises": [histogram(seats, name) for name in exercises(plan)],
        "warnings": folder.warnings(),
    }


def tiles(seats: Sequence[Seat], plan: Plan, now: float) -> list[Json]:
    """Return a tile for each learner, those who need help first, by need and waiting time.

    Each has `user`, `key`, `needs` (one of NEEDS), `words` (one line for people), `heard` (epoch s)
    and `status`, as `SeatStatus`. Learners of the plan without a seat come last, with `status`
    None.
    """
    here = lesson_of_room(seats, plan, now)
    found = [_tile(seat, plan, here, now) for seat in seats]
    found.sort(key=lambda tile: (NEEDS.index(tile["needs"]), tile["waits_since"], tile["user"]))
    there = {tile["user"] for tile in found}
    return found + [_absent(user) for user in sorted(plan.learners) if user not in there]


def lesson_of_room(seats: Iterable[Seat], plan: Plan, now: float) -> int | None:
    """Return the lesson that the median learner is at, or the one that the plan has now if that is
    earlier: a break or a slow class makes no one late. None before the first lesson."""
    due = plan.lesson_at(now)
    found = [_place(seat, plan) for seat in seats if seat.status.shares]
    places = sorted(place for place in found if place is not None)
    if due is None or not places:
        return None
    order = _order(plan)
    here = min(places[(len(places) - 1) // 2], order.index(due))
    return order[here] if here >= 0 else None


def _order(plan: Plan) -> list[int]:
    return [number for number, _ in plan.lessons]


def _place(seat: Seat, plan: Plan) -> int | None:
    """Return which of the plan's lessons a learner is at, from 0; -1 before the first one. None for
    a lesson that is not in the plan, which is neither before nor after the others."""
    order, at = _order(plan), seat.status.lesson
    if at is None:
        return -1
    return order.index(at) if at in order else None


def _is_behind(seat: Seat, plan: Plan, here: int | None) -> bool:
    place = _place(seat, plan)
    return place is not None and here is not None and place < _order(plan).index(here)


def _tile(seat: Seat, plan: Plan, here: int | None, now: float) -> Json:
    status = seat.status
    needs, since = "", 0.0
    if status.state == "ended":
        pass
    elif status.hand and is_heard(seat, now):
        needs, since = "hand", status.hand_since
    elif (gone := _gone_since(seat, now)) > 0:
        needs, since = "silent", gone
    elif status.state in ("stuck", "failed"):
        needs, since = status.state, status.since
    elif status.shares and _is_behind(seat, plan, here):
        needs = "behind"
    return {
        "user": seat.user,
        "key": seat.key,
        "needs": needs,
        "waits_since": since,
        "words": _words(seat, needs, here, now),
        "heard": seat.heard,
        "status": {**vars(status)},  # not dataclasses.asdict, which takes milliseconds
    }


def _absent(user: str) -> Json:
    return {
        "user": user, "key": "", "needs": "", "waits_since": 0.0, "words": "has no seat yet",
        "heard": 0.0, "status": None,
    }  # fmt: skip


def is_heard(seat: Seat, now: float) -> bool:
    """Return whether a seat was written at most SILENT_AFTER_S before `now`, or later than
    `now`."""
    return now - seat.heard <= SILENT_AFTER_S


def _gone_since(seat: Seat, now: float) -> float:
    """Return since when a learner has been away (epoch s), if for more than SILENT_AFTER_S; else
    0."""
    if not is_heard(seat, now):
        return seat.heard
    left = seat.status.away_since
    return left if left and now - left > SILENT_AFTER_S else 0.0


def _words(seat: Seat, needs: str, here: int | None, now: float) -> str:
    status = seat.status
    if needs == "silent":
        gone = _gone_since(seat, now)
        what = "not heard from" if gone == seat.heard else "no notebook open"
        said = f"{what} for {duration(int((now - gone) * 1e6))}"
    elif not status.shares:
        said = "shares nothing"
    elif status.state in ("stuck", "failed"):
        # The explanation of a stuck run begins with that, and for how long.
        said = status.why or status.state
    elif status.state == "running":
        said = status.why or f"runs {status.run.get('title', 'a cell')}"
    else:
        said = status.why or status.state
    if needs == "behind":
        said = f"behind: others are at lesson {here}"
    if status.hand:
        waits = duration(int(max(0.0, now - status.hand_since) * 1e6))
        said = f"raised hand {waits} ago; {said}"
    return said


def histogram(seats: Sequence[Seat], exercise: str) -> Json:
    """Return the results of an exercise: how many `passed`, `tried` it in vain, and have
    `not_tried` it; `tries` counts those who passed by how often they tried (1, 2, … and 5 for
    more); `silent` counts those who share nothing."""
    shared = [seat.status.progress for seat in seats if seat.status.shares]
    tries = [each.get("tries", {}).get(exercise, 0) for each in shared]
    passed = [exercise in each.get("passed", {}) for each in shared]
    in_vain = sum(count > 0 and not done for count, done in zip(tries, passed, strict=True))
    needed = Counter(
        min(5, max(1, count)) for count, done in zip(tries, passed, strict=True) if done
    )
    return {
        "exercise": exercise,
        "passed": sum(passed),
        "tried": in_vain,
        "not_tried": len(shared) - sum(passed) - in_vain,
        "tries": [needed[number] for number in range(1, 6)],
        "silent": len(seats) - len(shared),
    }


def exercises(plan: Plan) -> list[str]:
    """Return the exercises of the plan's lessons, in their order."""
    return [name for number, _ in plan.lessons for name in exercises_of(lesson(number))]
