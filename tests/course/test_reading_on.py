"""Lessons one after the other, as a learner reads on: each in a notebook of its own, all on the
course's ranks, of which there are other numbers than two."""

from __future__ import annotations

from pathlib import Path

import pytest

from playing import read_on
from rankroom.course.lessons import LESSONS

pytestmark = pytest.mark.cluster

TIMED = (3, 11, 12, 14)  # they claim times, and are walked alone


@pytest.mark.thorough
@pytest.mark.parametrize(
    ("ranks", "order"),
    [
        pytest.param(3, [each.number for each in LESSONS if each.number not in TIMED], id="all-3"),
        pytest.param(4, [9, 10, 5, 4], id="backwards-4"),
    ],
)
def test_lessons_run_one_after_the_other_on_the_same_ranks(
    tmp_path: Path, ranks: int, order: list[int]
):
    names = [LESSONS[number].file for number in order]
    wrong = read_on(names, tmp_path / "course", ranks, RANKROOM_HOME=str(tmp_path / "home"))
    assert wrong == {name: [] for name in names}
