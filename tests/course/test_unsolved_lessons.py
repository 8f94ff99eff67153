"""Every lesson with "Run All" and no exercise solved, as if somebody only wanted to look.

Later cells must say that they build on an exercise, and neither hang nor fail within a library.
"""

from __future__ import annotations

from pathlib import Path

import pytest

from lesson_runner import from_library, untouched
from rankroom.course.lessons import LESSONS


@pytest.mark.cluster
@pytest.mark.thorough
@pytest.mark.timeout(900)
@pytest.mark.parametrize("file", [each.file for each in LESSONS], ids=lambda file: file[:2])
def test_run_all_with_unsolved_exercises_says_what_is_missing(file: str, tmp_path: Path):
    home = str(tmp_path / "home")
    assert not untouched(file, tmp_path / "course", 2, RANKROOM_HOME=home)


def test_library_errors_are_distinguished_from_cell_errors():
    in_cell = "Cell In[9], line 4\n      1 following\nValueError: the ranks are 0 to 1"
    assert not from_library(in_cell)
    deeper = (
        f"{in_cell}\n\nFile /env/site-packages/torch/c10d.py:2652, in isend(tensor)\nValueError: no"
    )
    assert from_library(deeper) == "ValueError: no (/env/site-packages/torch/c10d.py:2652)"
    ours = f"{deeper}\n\nFile /env/site-packages/rankroom/rank/world.py:3, in refuse(what)\nX: no"
    assert not from_library(ours)
