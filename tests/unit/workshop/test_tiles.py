"""Learners who need help come first, with the reason; and statistics about exercises."""

from datetime import timedelta
from pathlib import Path

import pytest

from rankroom.workshop import tiles
from rankroom.workshop.tile_table import histogram_line, progress_csv, screen, table
from workshops import NOON, plan, seat

AT = NOON.timestamp()
PLAN = plan(Path("/x"), starts=NOON - timedelta(minutes=20), lessons=((1, 15), (2, 20)))


def tile(**status):
    """Return the tile of one learner among others who are at lesson 2."""
    others = [seat(user, AT, lesson=2) for user in ("bob", "cay")]
    found = tiles.tiles([seat("ada", status.pop("heard", AT), **status), *others], PLAN, AT)
    return next(each for each in found if each["user"] == "ada")


def test_those_who_need_help_come_first():
    seats = [
        seat("zoe", AT, lesson=2, state="idle"),
        seat("bob", AT, lesson=1),
        seat("eva", AT - 300, lesson=2, state="stuck"),
        seat("dan", AT, lesson=2, state="failed", since=AT - 10, why="rank 1: ValueError"),
        seat("cay", AT, lesson=2, state="stuck", since=AT - 5),
        seat("ida", AT, lesson=2, state="stuck", since=AT - 50),
        seat("amy", AT, lesson=2, hand=True, hand_since=AT - 9),
        seat("fay", AT, lesson=2, hand=True, hand_since=AT - 90, state="stuck"),
        seat("gus", AT, lesson=2, state="running"),
    ]
    found = tiles.tiles(seats, PLAN, AT)
    assert [(each["user"], each["needs"]) for each in found] == [
        ("fay", "hand"), ("amy", "hand"), ("ida", "stuck"), ("cay", "stuck"), ("dan", "failed"),
        ("eva", "silent"), ("bob", "behind"), ("gus", ""), ("zoe", ""),
    ]  # fmt: skip


def test_learners_of_the_plan_without_a_seat_come_last():
    listed = plan(Path("/x"), learners=("ada", "bob", "cay"))
    found = tiles.tiles([seat("bob", AT)], listed, AT)
    assert [(each["user"], each["status"] is None) for each in found] == [
        ("bob", False), ("ada", True), ("cay", True),
    ]  # fmt: skip


@pytest.mark.parametrize(
    ("status", "said"),
    [
        ({"heard": AT - 180, "lesson": 2}, "not heard from for 3 min 00 s"),
        ({"away_since": AT - 240, "lesson": 2, "state": "stuck"}, "no notebook open for 4 min"),
        ({"state": "stuck", "lesson": 2, "why": "rank 0 waits in allreduce"}, "rank 0 waits in"),
        ({"state": "failed", "lesson": 2, "why": "rank 1: ValueError"}, "rank 1: ValueError"),
        ({"state": "running", "lesson": 2, "run": {"title": "train()"}}, "runs train()"),
        ({"lesson": 1, "state": "idle"}, "behind: others are at lesson 2"),
        ({"shares": False}, "shares nothing"),
        ({"hand": True, "hand_since": AT - 60, "state": "idle", "lesson": 2},
         "raised hand 1 min 00 s ago; idle"),
        ({"state": "ended", "heard": AT - 999}, "ended"),
    ],
)  # fmt: skip
def test_each_tile_gives_the_reason(status, said):
    assert said in tile(**status)["words"]


def test_a_raised_hand_of_a_learner_who_shares_nothing_is_shown():
    assert tile(shares=False, hand=True, hand_since=AT)["needs"] == "hand"


def test_a_raised_hand_of_a_silent_or_ended_seat_is_ignored():
    up = {"hand": True, "hand_since": AT - 60_000}
    assert tile(**up, heard=AT - 50_000)["needs"] == "silent"
    assert tile(**up, state="ended")["needs"] == ""
    assert tile(**up, away_since=AT - 50_000)["needs"] == "hand"  # it may be raised in a terminal


def room(now: float, *lessons: int | None):
    """Return the lesson that the room is at, and who is behind, for learners at these lessons."""
    seats = [seat(f"user{n}", now, lesson=each) for n, each in enumerate(lessons)]
    behind = [t["user"] for t in tiles.tiles(seats, PLAN, now) if t["needs"] == "behind"]
    return tiles.lesson_of_room(seats, PLAN, now), sorted(behind)


def test_the_lesson_of_the_room_is_the_median_but_not_ahead_of_the_plan():
    late, early = AT + 3600, AT - 600
    assert room(AT, 2, 2, 1) == (2, ["user2"])
    assert room(late, 2, 2, 1) == (2, ["user2"])  # after the planned time of all lessons
    assert room(early, 2, 2, 1) == (1, [])  # most are faster than the plan
    assert room(early, 2, 2, None) == (1, ["user2"])


def test_a_learner_at_a_lesson_outside_the_plan_is_ignored():
    assert room(AT, 2, 2, 2, 10) == (2, [])
    assert room(AT, 10, 10, 2) == (2, [])
    assert room(AT, 10, 10) == (None, [])


def test_no_learner_is_behind_after_a_break_or_in_a_slow_room():
    night = AT + 20 * 3600
    for now in (AT, AT + 3600, night):
        assert room(now, 1, 1, 1) == (1, [])
        assert room(now, 1, 2) == (1, [])
        assert room(now, None, None, 1) == (None, [])
        assert room(now) == (None, [])


def test_a_histogram_counts_each_learner_once():
    def of(passed=(), **tries):
        return {"tries": tries, "passed": dict.fromkeys(passed, "2026-05-14")}

    seats = [
        seat("ada", AT, progress=of(["hello"], hello=1)),
        seat("bob", AT, progress=of(["hello"], hello=7)),
        seat("cay", AT, progress=of([], hello=3)),
        seat("dan", AT),
        seat("eva", AT, shares=False, progress=of(["hello"], hello=1)),
    ]
    found = tiles.histogram(seats, "hello")
    assert found == {
        "exercise": "hello", "passed": 2, "tried": 1, "not_tried": 1, "tries": [1, 0, 0, 0, 1],
        "silent": 1,
    }  # fmt: skip
    assert "2 passed (1 at try 1, 1 at try 5 or later), 1 not passed" in histogram_line(found)


def view(*seats):
    return {
        "name": "Test", "now": AT, "lesson": 2, "timer": {"title": "ring.1", "until": AT + 90},
        "is_over": False, "warnings": ["too many files"], "tiles": tiles.tiles(seats, PLAN, AT),
    }  # fmt: skip


def test_a_table_has_a_line_for_each_learner():
    text = table(
        view(
            seat("ada", AT, lesson=2, state="stuck", why="rank 0 waits",
                 ranks={"alive": 1, "of": 2}, exercise={"name": "ring.1", "passed": False}),
            seat("bob", AT, lesson=2),
        )
    )  # fmt: skip
    head, warning, _, ada, bob = text.splitlines()
    assert "2 of 2 learners have joined · lesson 2 · ring.1: 1 min 30 s left" in head
    assert warning == "! too many files"
    assert ada.split() == ["!", "ada", "lesson", "2", "1/2", "ring.1", "✗", "rank", "0", "waits"]
    assert bob.split()[0] == "bob"


def test_a_table_fits_its_terminal():
    seats = [seat(f"user{n}", AT, why="x" * 300, state="stuck") for n in range(40)]
    lines = table(view(*seats), width=60, height=20).splitlines()
    assert len(lines) == 20
    assert max(map(len, lines)) <= 60
    assert lines[-1] == "… and 24 more"


def test_exercises_leave_those_who_need_help_on_the_screen():
    seats = [seat(f"user{n}", AT, lesson=2) for n in range(40)]
    exercises = [tiles.histogram(seats, f"exercise.{n}") for n in range(30)]
    seen = {**view(*seats), "exercises": exercises}
    lines = screen(seen, 30, 20, with_exercises=True).splitlines()
    assert len(lines) == 20 and max(map(len, lines)) <= 30
    assert "user0" in lines[3] and lines[9] == "… and 34 more" and "exercise.8" in lines[-1]
    assert len(screen(seen, 200, 0, with_exercises=True).splitlines()) == 3 + 40 + 1 + 30
    few = {**seen, "exercises": exercises[:2]}
    assert len(screen(few, 200, 20, with_exercises=True).splitlines()) == 20


def test_progress_is_collected_as_csv():
    progress = {"tries": {"hello.1": 2, "hello.2": 4}, "passed": {"hello.1": "2026-05-14"}}
    seats = [seat("ada", AT, lesson=1, progress=progress), seat("=1+1", AT, shares=False)]
    lines = progress_csv(seats, ["hello.1", "hello.2", "ring.1"]).splitlines()
    assert lines == [
        "learner,lesson,passed,tried,quiz before,quiz after,shares,hello.1,hello.2,ring.1",
        "ada,1,1,2,,,yes,2026-05-14,4 tries,",
        "'=1+1,,0,0,,,no,,,",
    ]
