"""The solutions in a lesson's notebook, for a reader who has fallen behind."""

from __future__ import annotations

import ast
import json
import re
from collections.abc import Iterable, Iterator
from dataclasses import dataclass

from rankroom.cluster.base import AnyCluster
from rankroom.course.exercise import find
from rankroom.course.lessons import Lesson, folder
from rankroom.errors import UsageError

_CHECK = re.compile(r"%%check (\S+)")
_SOLUTION = re.compile(r"<summary>Solution</summary>\s*```python\n(.*?)```", re.DOTALL)
SOLUTION_TIMEOUT_S = 60.0  # for one solution, which may import a framework
# Statements that only define names, and take no time.
DEFINING_STATEMENTS = (ast.Import, ast.ImportFrom, ast.FunctionDef, ast.ClassDef)


@dataclass(frozen=True)
class Solution:
    """What ranks run to define an exercise's solution: `preparation`, which is what the cells above
    it import and define, then `source`."""

    exercise: str
    preparation: str
    source: str


def solutions(lesson: Lesson) -> list[Solution]:
    """Return the solutions of a lesson's exercises, in order. Raises UsageError if the notebook
    cannot be read."""
    try:
        cells = json.loads((folder() / lesson.file).read_text("utf-8"))["cells"]
    except (OSError, ValueError, KeyError) as error:
        raise UsageError(f"cannot read lesson {lesson.number}: {error}") from None
    found, prepared, exercise = [], "", ""
    for cell in cells:
        source = "".join(cell["source"])
        if cell["cell_type"] == "code":
            if asked := _CHECK.match(source):
                exercise = asked[1]
            elif source.startswith("%%distributed"):
                prepared += _definitions(source.partition("\n")[2])
        elif exercise and (solved := _SOLUTION.search(source)):
            found.append(Solution(exercise, prepared, solved[1]))
            prepared = exercise = ""
    return found


def solutions_until(lesson: Lesson, exercise: str) -> list[Solution]:
    """Return the solutions up to `exercise`; all of the lesson if it is empty. Raises UsageError
    with the lesson's exercises if it is not one of them."""
    found = solutions(lesson)
    names = [each.exercise for each in found]
    if exercise and exercise not in names:
        there = ", ".join(names) or "none"
        raise UsageError(f"lesson {lesson.name} has no exercise {exercise!r}; it has {there}")
    return found[: names.index(exercise) + 1] if exercise else found


def catch_up(cluster: AnyCluster, solved: Iterable[Solution]) -> Iterator[str]:
    """Run solutions on the ranks, one after the other, and yield a sentence about each. The
    exercises are not recorded as passed."""
    for each in solved:
        if script := find(each.exercise).script:
            yield SOLUTION_IS_SCRIPT.format(name=each.exercise, script=script)
            continue
        run = cluster.run(f"{each.preparation}\n{each.source}")
        try:
            if not run.wait(SOLUTION_TIMEOUT_S):
                run.interrupt()
                run.wait(SOLUTION_TIMEOUT_S)
        except KeyboardInterrupt:  # the stop button: release the ranks, and skip the rest
            run.interrupt()
            run.wait(SOLUTION_TIMEOUT_S)
            raise
        if run.state == "done":
            yield f"{each.exercise}: solved on your ranks"
            continue
        failure = run.info.failure
        why = f"{failure.ename}: {failure.evalue}" if failure else f"the cell is {run.state}"
        yield NOT_SOLVED.format(name=each.exercise, why=why.partition("\n")[0])


def _definitions(source: str) -> str:
    """Return the source of the imports, functions and classes at the top level of a cell."""
    try:
        parts = ast.parse(source).body
    except SyntaxError:  # IPython's own syntax
        return ""
    lines = source.splitlines()
    kept = []
    for each in parts:
        if isinstance(each, DEFINING_STATEMENTS):
            decorators = getattr(each, "decorator_list", [])
            first = min([each.lineno, *(one.lineno for one in decorators)])
            kept += lines[first - 1 : each.end_lineno]
    return "".join(f"{line}\n" for line in kept)


NOT_SOLVED = (
    "{name}: its solution failed ({why}). Run the cells above that it needs, then try again"
)
SOLUTION_IS_SCRIPT = (
    "{name}: its solution is a script, {script}, which is not run on your ranks: copy it from the "
    "notebook"
)
