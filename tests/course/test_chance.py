"""A wrong answer is wrong whatever numbers it is tried on: checks draw other ones each time."""

import pytest

from answers.lesson_01 import WRONG
from rankroom.course.exercise import Learner, Wrong, find


@pytest.mark.parametrize(("source", "part"), WRONG["hello.1"])
def test_shares_that_fit_even_numbers_only(source: str, part: str):
    variables: dict[str, object] = {}
    exec(source, variables)
    for seed in range(300):
        with pytest.raises(Wrong, match=part):
            find("hello.1").run(Learner(variables, 0, 2, seed))
