"""What ranks run of a lesson when a learner catches up."""

from __future__ import annotations

import ast
import builtins
import random
import symtable
from collections.abc import Iterator
from types import SimpleNamespace
from typing import Any

import pytest

from rankroom.course import solutions
from rankroom.course.exercise import Learner, find
from rankroom.course.exercise_list import exercises_of
from rankroom.course.lessons import LESSONS, Lesson, lesson
from rankroom.errors import UsageError
from rankroom.rank.world import PREDEFINED_NAMES
from rankroom.record.model import Failure
from record_makers import make_run


def source_until(one: Lesson, exercise: str = "") -> str:
    """All that ranks run, one solution after the other."""
    found = solutions.solutions_until(one, exercise)
    return "\n".join(f"{each.preparation}\n{each.source}" for each in found)


def names_in(source: str) -> set[str]:
    """The names that a cell defines or sets at its top level."""
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


@pytest.mark.parametrize("one", LESSONS, ids=lambda one: one.file)
def test_solutions_find_the_names_they_use(one: Lesson):
    """For a solution, including those in its functions; for its preparation, without these."""
    there = {*dir(builtins), *PREDEFINED_NAMES}
    for each in solutions.solutions(one):
        there |= bound(f"{each.preparation}\n{each.source}")
        assert used(each.preparation, in_functions=False) <= there
        assert used(each.source, in_functions=True) <= there


def bound(source: str) -> set[str]:
    names = symtable.symtable(source, "cell", "exec").get_symbols()
    return {n.get_name() for n in names if n.is_assigned() or n.is_imported() or n.is_namespace()}


def used(source: str, in_functions: bool) -> set[str]:
    """The global names that are read, `in_functions` also those read when functions are called."""

    def of(table: symtable.SymbolTable) -> Iterator[str]:
        is_module = table.get_type() == "module"
        for name in table.get_symbols():
            if name.is_referenced() and (is_module or name.is_global()):
                yield name.get_name()
        for child in table.get_children():
            if in_functions or child.get_type() != "function":
                yield from of(child)

    return {*of(symtable.symtable(source, "cell", "exec"))}


def test_the_solutions_of_lesson_1_pass_their_checks():
    """As a rank would examine them."""
    variables: dict[str, object] = {"rank": 0, "size": 2}
    exec(source_until(lesson(1)), variables)
    for name in exercises_of(lesson(1)):
        find(name).run(Learner(variables, 0, 2, seed=random.randrange(1000)))


def test_catching_up_includes_prerequisites_and_ends_at_the_exercise():
    source = source_until(lesson(3), "ring.2")
    # `pass_on` is defined in a cell of the lesson between two exercises.
    assert {"neighbours", "pass_on", "reduce_scatter"} <= names_in(source)
    assert not {"all_gather", "bytes_sent", "ring_all_reduce"} & names_in(source)
    assert "import torch.distributed as dist" in source
    assert {"all_gather", "bytes_sent"} <= names_in(source_until(lesson(3)))


def test_catching_up_runs_only_definitions_and_keeps_decorators():
    assert "init_process_group" not in source_until(lesson(2))
    assert "@tf.function\ndef step(" in solutions._definitions(
        "import tensorflow as tf\n\n\n@tf.function\ndef step(x):\n    return x\n\n\nstep(1)\n"
    )
    assert solutions._definitions("%ranks push x\nimport os\n") == ""


def test_the_outcome_of_each_solution_is_reported_in_a_sentence():
    """Including a solution that is a script, and one that needs cells which have not run."""
    good = SimpleNamespace(state="done", wait=lambda seconds: True, info=make_run(2, state="done"))
    failure = Failure(0, "NameError", "name 'images' is not defined\n(hint)")
    info = make_run(2, state="failed", failure=failure)
    bad = SimpleNamespace(state="failed", wait=lambda seconds: True, info=info)
    runs = iter([good, bad, good, good])
    cluster: Any = SimpleNamespace(run=lambda source: next(runs))
    said = [*solutions.catch_up(cluster, solutions.solutions(lesson(20)))]
    assert said == [
        "capstone.1: solved on your ranks",
        "capstone.2: its solution failed (NameError: name 'images' is not defined). Run the cells "
        "above that it needs, then try again",
        "capstone.3: solved on your ranks",
        "capstone.4: its solution is a script, capstone.py, which is not run on your ranks: copy "
        "it from the notebook",
        "capstone.5: solved on your ranks",
    ]


def test_an_interrupt_ends_the_solution_on_the_ranks_too():
    asked: list[str] = []

    def wait(seconds: float) -> bool:
        asked.append("wait")
        if len(asked) == 1:
            raise KeyboardInterrupt
        return True

    run = SimpleNamespace(wait=wait, interrupt=lambda: asked.append("interrupt"))
    cluster: Any = SimpleNamespace(run=lambda source: run)
    with pytest.raises(KeyboardInterrupt):
        next(solutions.catch_up(cluster, solutions.solutions(lesson(3))))
    assert asked == ["wait", "interrupt", "wait"]


def test_an_exercise_of_another_lesson_is_refused_with_the_valid_ones():
    with pytest.raises(UsageError, match=r"no exercise 'hello\.1'; it has ring\.1, ring\.2"):
        solutions.solutions_until(lesson(3), "hello.1")
