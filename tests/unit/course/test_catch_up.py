"""What ranks get of a lesson when a learner catches up."""

from __future__ import annotations

import ast
import random

import pytest

from rankroom.course import catch_up, progress
from rankroom.course.exercise import Learner, find
from rankroom.course.exercise_list import exercises_of
from rankroom.course.lessons import LESSONS, lesson
from rankroom.errors import UsageError


@pytest.fixture(autouse=True)
def home(tmp_path, monkeypatch):
    monkeypatch.setenv("RANKROOM_HOME", str(tmp_path))


def names_in(source: str) -> set[str]:
    """What a cell defines or sets at its top level."""
    nodes = ast.parse(source).body
    targets = (t for n in nodes if isinstance(n, ast.Assign) for t in n.targets)
    return {n.name for n in nodes if isinstance(n, ast.FunctionDef | ast.ClassDef)} | {
        target.id for target in targets if isinstance(target, ast.Name)
    }


@pytest.mark.parametrize("one", LESSONS, ids=lambda one: one.file)
def test_every_exercise_of_every_lesson_is_solved(one):
    there = exercises_of(one)
    for name in there:
        assert find(name).answer in names_in(catch_up.source_until(one, name)), name
    whole = catch_up.source_until(one, there[-1])
    before = catch_up.source_until(one, there[0])
    assert whole.startswith(before.rstrip())


def test_the_solutions_of_the_first_lesson_hold():
    """Those of its exercises that need no second rank, as a rank would examine them."""
    variables: dict[str, object] = {"rank": 0, "size": 2}
    exec(catch_up.source_until(lesson(1), "hello.3"), variables)
    for name in exercises_of(lesson(1)):
        find(name).run(Learner(variables, 0, 2, seed=random.randrange(1000)))


def test_it_ends_with_the_exercise_and_brings_what_that_builds_on():
    source = catch_up.source_until(lesson(3), "ring.2")
    names = names_in(source)
    # `pass_on` is the lesson's own, from a cell between two exercises.
    assert {"neighbours", "pass_on", "reduce_scatter"} <= names
    assert not {"all_gather", "bytes_sent", "ring_all_reduce"} & names
    assert "import torch.distributed as dist" in source
    assert catch_up.solved_until(lesson(3), "ring.2") == ("ring.1", "ring.2")


def test_nothing_is_run_but_imports_and_definitions():
    cell = (
        "import os\n\n@cached\ndef f():\n    return 1\n\n\nclass C:\n    x = 1\n\n\n"
        "f()\nfor _ in range(9):\n    train()\nmodel = C()\n"
    )
    assert catch_up.definitions(cell) == (
        "import os\n@cached\ndef f():\n    return 1\nclass C:\n    x = 1"
    )
    assert "init_process_group" not in catch_up.source_until(lesson(2), "collectives.4")


def test_up_to_the_furthest_that_was_tried():
    with pytest.raises(UsageError, match=r"no exercise of lesson 03 .* was tried yet"):
        catch_up.furthest(lesson(3))
    for name in ("ring.3", "ring.1", "model.1"):
        progress.note(name, passed=False)
    assert catch_up.furthest(lesson(3)) == "ring.3"


def test_an_exercise_of_another_lesson_is_refused_with_those_there_are():
    with pytest.raises(UsageError, match=r"no exercise 'hello\.1'; it has ring\.1, ring\.2"):
        catch_up.source_until(lesson(3), "hello.1")
