"""Lessons one after the other, each in a notebook of its own, all on the course's ranks.

test_lessons.py runs each lesson on two fresh ranks, also with wrong answers. These tests use the
lessons' own solutions. Each lesson runs on 2 ranks with every cell run twice in a row, on 3 ranks,
and on 6 or 8; some run on 4 out of order, and on 1 rank those that make sense there. The others
must say at every cell that they need two ranks.
"""

from __future__ import annotations

import importlib
import os
import traceback
from pathlib import Path
from typing import Any

import pytest

from kernel import Kernel
from lesson_runner import Played, read, read_on, tidy
from rankroom.course.lessons import LESSONS

pytestmark = [pytest.mark.cluster, pytest.mark.thorough]

TIMED = (3, 12, 14)  # make claims about time, so they run alone
UNTIMED = [each.number for each in LESSONS if each.number not in TIMED]
# Lessons that train a network: their claims hold on any number of ranks.
TRAINING = [4, 5, 6, 7, 8, 10, 11]
BACKWARDS = [9, 10, 5, 4]
# Its claims are about shares of time, which hold if nothing runs beside it.
NEEDS_IDLE = (11,)
REST = [number for number in UNTIMED if number not in TRAINING]
REFUSED = ("%load_ext", "%%distributed", "%%check", "%%scaling")


def is_alone(ranks: int, order: list[int]) -> bool:
    """Claims about time and more than four ranks need an idle machine."""
    return ranks > 4 or any(number in TIMED for number in order)


def of(ranks: int, order: list[int], name: str) -> Any:
    """Return a parameter."""
    marks = [pytest.mark.alone] if is_alone(ranks, order) else []
    return pytest.param(ranks, order, id=f"{name}-{ranks}", marks=marks)


@pytest.mark.timeout(2400)
@pytest.mark.parametrize(
    ("ranks", "order"),
    [
        of(1, [0, 15, 16, 17], "alone"),
        of(3, UNTIMED, "rest"),
        of(3, list(TIMED), "timed"),
        of(4, BACKWARDS, "backwards"),
        of(4, list(TIMED), "timed"),
        of(6, REST, "rest"),
        of(8, TRAINING, "training"),
        of(8, list(TIMED), "timed"),
    ],
)
def test_lessons_run_one_after_the_other_on_the_same_ranks(
    tmp_path: Path, ranks: int, order: list[int]
):
    assert not complaints(tmp_path, ranks, order)


@pytest.mark.timeout(2400)
@pytest.mark.parametrize(("ranks", "order"), [of(2, UNTIMED, "rest"), of(2, list(TIMED), "timed")])
def test_every_cell_may_be_run_twice(tmp_path: Path, ranks: int, order: list[int]):
    assert not complaints(tmp_path, ranks, order, times=2)


def complaints(
    folder: Path, ranks: int, order: list[int], times: int = 1
) -> list[tuple[str, list[str]]]:
    """Return what is wrong with lessons that are read in this order, by file name."""
    names = [LESSONS[number].file for number in order]
    found = read_on(names, folder / "course", ranks, times, RANKROOM_HOME=str(folder / "home"))
    assert [name for name, _ in found] == names
    claiming = [n for n in TRAINING if is_alone(ranks, order) or n not in NEEDS_IDLE]
    wrong = [
        (name, each.complaints() + (broken_claims(name, each) if int(name[:2]) in claiming else []))
        for name, each in found
    ]
    return [(name, words) for name, words in wrong if words]


def broken_claims(name: str, played: Played) -> list[str]:
    """Return the first claim of a lesson that does not hold, if any."""
    try:
        importlib.import_module(f"answers.lesson_{name[:2]}").claims(played)
    except Exception as error:  # such as a number that is missing in the output
        claim = traceback.extract_tb(error.__traceback__)[-1].line
        return [f"claim: {claim}: {error!r}"]
    return []


def test_lessons_that_need_two_ranks_say_so_on_one(tmp_path: Path):
    home = tmp_path / "home"
    kernel = Kernel(**{**os.environ, "RANKROOM_HOME": str(home)})
    try:
        kernel.run("%load_ext rankroom\n%course 0 --ranks 1")
        for lesson in (each for each in LESSONS if each.ranks > 1):
            needs = f"lesson {lesson.name} needs 2 ranks, and you have 1: `%cluster resize 2`"
            for cell in read(lesson.file).cells:
                if cell.cell_type == "code" and cell.source.startswith(REFUSED):
                    shown = kernel.run(cell.source)
                    assert needs in f"{shown.stdout}{shown.text}{shown.error}", cell.source
    finally:
        kernel.close()
        tidy(str(home))
