"""The teacher's view as text: a table for a terminal, and a file of all learners' progress."""

from __future__ import annotations

import csv
import io
import time
from collections.abc import Sequence
from typing import Any

from rankroom.course import quiz
from rankroom.course.progress import Progress
from rankroom.text.amounts import duration
from rankroom.workshop.seat import Seat
from rankroom.workshop.tiles import Json

QUIZ = [f"quiz {when}" for when in quiz.WHEN]
MARKS = {"hand": "✋", "stuck": "!", "failed": "✗", "silent": "?", "behind": "↓", "": " "}


def table(view: Json, width: int = 100, height: int = 0) -> str:
    """Return the `tiles.overview` as text, one line per learner; with a `height`, no more lines."""
    tiles = view["tiles"]
    here = [tile for tile in tiles if tile["status"]]
    head = [view["name"], time.strftime("%H:%M:%S", time.localtime(view["now"]))]
    head.append(f"{len(here)} of {len(tiles)} learners have joined")
    if view["lesson"] is not None:
        head.append(f"lesson {view['lesson']}")
    if view["timer"] and (left := view["timer"]["until"] - view["now"]) > 0:
        head.append(f"{view['timer']['title'] or 'timer'}: {duration(int(left * 1e6))} left")
    if view["is_over"]:
        head.append("the workshop is over")
    lines = [" · ".join(head), *(f"! {each}" for each in view["warnings"]), ""]
    lines += [_line(tile) for tile in tiles]
    if 0 < height < len(lines):
        lines = [*lines[: height - 1], f"… and {len(lines) - height + 1} more"]
    return "\n".join(_fit(line, width) for line in lines)


def screen(view: Json, width: int, height: int, with_exercises: bool) -> str:
    """Return the table, and below it the exercises' results, in at most half of `height` lines."""
    more = ["", *map(histogram_line, view["exercises"])] if with_exercises else []
    if height:
        more = more[: height // 2]
    learners = table(view, width, height and height - len(more))
    return "\n".join([learners, *(_fit(line, width) for line in more)])


def _fit(line: str, width: int) -> str:
    return line if len(line) <= width else f"{line[: width - 1]}…"


def _line(tile: Json) -> str:
    status = tile["status"] or {}
    lesson, ranks, tried = status.get("lesson"), status.get("ranks"), status.get("exercise")
    at = "" if lesson is None else f"lesson {lesson}"
    alive = f"{ranks['alive']}/{ranks['of']}" if ranks else ""
    exercise = f"{tried['name']} {'✓' if tried['passed'] else '✗'}" if tried else ""
    who = f"{MARKS[tile['needs']]:<2} {tile['user']:<14}"
    return f"{who} {at:<9} {alive:>5}  {exercise:<17} {tile['words']}".rstrip()


def histogram_line(found: Json) -> str:
    """Return a line on an exercise: how many passed it, tried it in vain, or have not tried it."""
    tries = ", ".join(
        f"{count} at try {number}{' or later' if number == 5 else ''}"
        for number, count in enumerate(found["tries"], 1)
        if count
    )
    return (
        f"{found['exercise']:<16} {found['passed']:>3} passed ({tries or 'none'}), "
        f"{found['tried']} not passed, {found['not_tried']} not tried"
    )


def progress_csv(seats: Sequence[Seat], exercises: Sequence[str]) -> str:
    """Return all learners' progress as CSV, one line each: how many answers of the quiz were right,
    and for each exercise the day it was passed, or how often it was tried in vain."""
    out = io.StringIO()
    write = csv.writer(out, lineterminator="\n").writerow
    write(["learner", "lesson", "passed", "tried", *QUIZ, "shares", *exercises])
    for seat in seats:
        status = seat.status
        made = progress_of(seat)
        passed = {name: day for name, day in made.passed.items() if not quiz.is_quiz(name)}
        tries = {name: count for name, count in made.tries.items() if not quiz.is_quiz(name)}
        scores = [quiz.score(made, when) for when in quiz.WHEN]
        marks = ["" if each is None else each for each in scores]
        lesson: Any = "" if status.lesson is None else status.lesson
        shares = "yes" if status.shares else "no"
        each = [_cell(_of(passed.get(name), tries.get(name, 0))) for name in exercises]
        write([_cell(seat.user), lesson, len(passed), len(tries), *marks, shares, *each])
    return out.getvalue()


def progress_of(seat: Seat) -> Progress:
    """Return a learner's progress, as far as it is shared."""
    shared = seat.status.progress
    return Progress(seat.user, shared.get("tries", {}), shared.get("passed", {}))


def _of(day: str | None, tries: int) -> str:
    return day or {0: "", 1: "1 try"}.get(tries, f"{tries} tries")


def _cell(text: str) -> str:
    # What a learner wrote must not become a formula in the teacher's spreadsheet.
    return f"'{text}" if text[:1] in ("=", "+", "-", "@", "\t") else text
