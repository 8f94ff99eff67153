"""Lessons one after the other, as a learner reads on: each in a notebook of its own, all on the
course's ranks, of which there are other numbers than two.

Fresh ranks, two of them, are those of test_lessons.py, with wrong answers too. Here, with the
lessons' own solutions: on 3 ranks all lessons but those that claim times, on 2 and 8 those that
train, on 4 some of them backwards; and on 1 rank what makes sense there, while the others say at
every cell that they need two.
"""

from __future__ import annotations

import importlib
import os
import traceback
from pathlib import Path

import pytest

from kernel import Kernel
from playing import Played, read, read_on, tidy
from rankroom.course.lessons import LESSONS

pytestmark = [pytest.mark.cluster, pytest.mark.thorough]

TIMED = (3, 12, 14)  # they claim times, and are walked alone
UNTIMED = [each.number for each in LESSONS if each.number not in TIMED]
# The same training again and again: what these lessons claim holds on any number of ranks.
TRAINING = [4, 5, 6, 7, 8, 10, 11]
REFUSED = ("%load_ext", "%%distributed", "%%check", "%%scaling")


@pytest.mark.timeout(1000)
@pytest.mark.alone  # eight ranks leave nothing to others
@pytest.mark.parametrize(
    ("ranks", "order"),
    [
        pytest.param(1, [0, 15, 16], id="alone-1"),
        pytest.param(2, TRAINING, id="training-2"),
        pytest.param(3, UNTIMED, id="all-3"),
        pytest.param(4, [9, 10, 5, 4], id="backwards-4"),
        pytest.param(8, TRAINING, id="training-8"),
    ],
)
def test_lessons_run_one_after_the_other_on_the_same_ranks(
    tmp_path: Path, ranks: int, order: list[int]
):
    names = [LESSONS[number].file for number in order]
    found = read_on(names, tmp_path / "course", ranks, RANKROOM_HOME=str(tmp_path / "home"))
    assert [name for name, _ in found] == names
    wrong = [(name, each.complaints() + broken_claims(name, each)) for name, each in found]
    assert not [(name, words) for name, words in wrong if words]


def broken_claims(name: str, played: Played) -> list[str]:
    """What a lesson that trains claims, and what did not come true."""
    if int(name[:2]) not in TRAINING:
        return []
    try:
        importlib.import_module(f"answers.lesson_{name[:2]}").claims(played)
    except Exception as error:  # such as a number that is nowhere to be found
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
