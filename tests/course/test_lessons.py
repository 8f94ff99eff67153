"""Every lesson on two ranks: its cells run, its checks tell right from wrong answers, and its
claims hold for the output of its cells."""

from __future__ import annotations

import importlib
import re
import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest

from checkout import ROOT
from lesson_runner import Played, play, wrong_answers
from rankroom.course.lessons import LESSONS, Lesson

pytestmark = pytest.mark.cluster


# These lessons make claims about time, so no other test runs beside them.
TIMED = (3, 11, 12, 14, 20)
LONG = (20,)  # starts scripts on ranks of their own many times
# `make test` runs these, and lessons that the newest commits changed unless they are in LONG;
# `make test-all` runs all.
CANARIES = (0, 4, 7)
NEWEST = 5


def changed() -> set[str]:
    """Return the two digits of each lesson that, or whose answers, changed since HEAD~NEWEST."""
    words = ["git", "-C", str(ROOT), "diff", "--name-only", f"HEAD~{NEWEST}"]
    said = subprocess.run(words, capture_output=True, text=True).stdout
    return set(re.findall(r"^(?:notebooks/|tests/course/answers/lesson_)(\d\d)", said, re.M))


def marks(lesson: Lesson) -> list[pytest.MarkDecorator]:
    found = [pytest.mark.alone] if lesson.number in TIMED else []
    if lesson.number in LONG:
        found.append(pytest.mark.timeout(1800))
    walked = lesson.number in CANARIES or lesson.file[:2] in CHANGED
    if not walked or lesson.number in LONG:
        found.append(pytest.mark.thorough)
    return found


CHANGED = changed()


@pytest.fixture(
    scope="module",
    params=[pytest.param(each, marks=marks(each), id=each.file[:2]) for each in LESSONS],
)
def lesson(
    request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[tuple[str, Played]]:
    file = request.param.file
    home: Path = tmp_path_factory.mktemp(f"lesson{file[:2]}")
    yield file, play(file, home / "course", RANKROOM_HOME=str(home / "home"))


def test_a_lesson_runs_without_errors(lesson: tuple[str, Played]):
    assert not lesson[1].errors


def test_checks_tell_right_from_wrong(lesson: tuple[str, Played]):
    file, played = lesson
    for exercise, expected in wrong_answers(file).items():
        said = played.verdicts[exercise]
        told = {kind: words for kind, words in said if kind != "wrong"}
        for _, words in (each for each in said if each[0] == "right"):
            assert words.startswith(f"✓ {exercise}"), words
        assert told["start"].startswith(f"✗ {exercise}"), told["start"]
        assert told["solution"].startswith(f"✓ {exercise}"), told["solution"]
        wrong = [words for kind, words in said if kind == "wrong"]
        for words, (_, part) in zip(wrong, expected, strict=True):
            assert words.startswith(f"✗ {exercise}"), words
            assert any(each in words for each in part.split("|")), words
    assert set(played.verdicts) == set(wrong_answers(file)), "an exercise without wrong answers"


def test_the_output_of_a_lesson_matches_its_claims(lesson: tuple[str, Played]):
    file, played = lesson
    importlib.import_module(f"answers.lesson_{file[:2]}").claims(played)
