"""A check's verdict does not depend on the random numbers that it draws for each try.

The checks that need only one rank are tried here with many seeds.
"""

from __future__ import annotations

import pytest

from lesson_runner import read, right_answers, solutions, wrong_answers
from rankroom.course.exercise import Learner, Wrong, find
from rankroom.course.lessons import LESSONS

SEEDS = 40
ALONE = (
    "hello.1", "hello.3", "horovod.1", "deepspeed.1", "deepspeed.2", "deepspeed.3", "tfd.1",
    "tfd.2", "tfd.3", "large.1", "large.2", "large.3", "scaling.1", "scaling.2", "scaling.3",
    "scaling.4", "feeding.1", "feeding.2", "batch.1", "batch.2", "batch.3", "shared.1",
    "shared.2", "shared.3", "script.1", "script.2", "script.3", "checkpoint.2", "checkpoint.3",
    "precision.1", "precision.2", "precision.3",
)  # fmt: skip


def lesson_of(exercise: str) -> str:
    return next(each.file for each in LESSONS if exercise in solutions(read(each.file)))


def variables(exercise: str, source: str) -> dict[str, object]:
    """Return the variables of a rank that has run the lesson's solutions, then the answer."""
    import torch

    found: dict[str, object] = {"torch": torch, "F": torch.nn.functional}
    for name, solution in solutions(read(lesson_of(exercise))).items():
        if name in ALONE:
            exec(solution, found)
    exec(source, found)
    return found


@pytest.mark.parametrize("exercise", ALONE)
def test_a_solution_passes_with_every_seed(exercise: str):
    found = variables(exercise, solutions(read(lesson_of(exercise)))[exercise])
    for seed in range(SEEDS):
        find(exercise).run(Learner(found, 0, 2, seed))


@pytest.mark.parametrize("exercise", ALONE)
def test_other_right_answers_pass_with_every_seed(exercise: str):
    for source in right_answers(lesson_of(exercise)).get(exercise, []):
        found = variables(exercise, source)
        for seed in range(SEEDS):
            find(exercise).run(Learner(found, 0, 2, seed))


@pytest.mark.parametrize("exercise", ALONE)
def test_wrong_answers_fail_with_every_seed(exercise: str):
    for source, parts in wrong_answers(lesson_of(exercise))[exercise]:
        found = variables(exercise, source)
        for seed in range(SEEDS):
            with pytest.raises(Wrong) as said:
                find(exercise).run(Learner(found, 0, 2, seed))
            assert any(part in str(said.value) for part in parts.split("|"))
