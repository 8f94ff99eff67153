"""What ranks get of a lesson when a learner catches up."""

from __future__ import annotations

import ast
import random

import pytest

from rankroom.course import solutions
from rankroom.course.exercise import Learner, find
from rankroom.course.exercise_list import exercises_of
from rankroom.course.lessons import LESSONS, Lesson, lesson
from rankroom.errors import UsageError


def source_until(one: Lesson, exercise: str = "") -> str:
    """All that ranks run, one solution after the other."""
    found = solutions.solutions_until(one, exercise)
    return "\n".join(f"{each.preparation}\n{each.source}" for each in found)


def names_in(source: str) -> set[str]:
    """What a cell defines or sets at its top level."""
    nodes = ast.parse(source).body
    targets = (t for n in nodes if isinstance(n, ast.Assign) for t in n.targets)
    return {n.name for n in nodes if isinstance(n, ast.FunctionDef | ast.ClassDef)} | {
        part.id for target in targets for part in ast.walk(target) if isinstance(part, ast.Name)
    }


@pytest.mark.parametrize("one", LESSONS, ids=lambda one: one.file)
def test_every_exercise_of_every_lesson_is_solved(one: Lesson):
    assert [each.exercise for each in solutions.solutions(one)] == [*exercises_of(one)]
    for each in solutions.solutions(one):
        asked = find(each.exercise)
        assert asked.script or asked.answer in names_in(each.source)


def test_the_solutions_of_the_first_lesson_hold():
    """As a rank would examine them."""
    variables: dict[str, object] = {"rank": 0, "size": 2}
    exec(source_until(lesson(1)), variables)
    for name in exercises_of(lesson(1)):
        find(name).run(Learner(variables, 0, 2, seed=random.randrange(1000)))


def test_it_ends_with_the_exercise_and_brings_what_that_builds_on():
    source = source_until(lesson(3), "ring.2")
    # `pass_on` is the lesson's own, from a cell between two exercises.
    assert {"neighbours", "pass_on", "reduce_scatter"} <= names_in(source)
    assert not {"all_gather", "bytes_sent", "ring_all_reduce"} & names_in(source)
    assert "import torch.distributed as dist" in source
    assert {"all_gather", "bytes_sent"} <= names_in(source_until(lesson(3)))


def test_nothing_else_of_a_lesson_is_run_and_decorators_stay():
    assert "init_process_group" not in source_until(lesson(2))
    assert "@tf.function\ndef step(" in solutions._definitions(
        "import tensorflow as tf\n\n\n@tf.function\ndef step(x):\n    return x\n\n\nstep(1)\n"
    )
    assert solutions._definitions("%ranks push x\nimport os\n") == ""


def test_an_exercise_of_another_lesson_is_refused_with_those_there_are():
    with pytest.raises(UsageError, match=r"no exercise 'hello\.1'; it has ring\.1, ring\.2"):
        solutions.solutions_until(lesson(3), "hello.1")
