"""What puts a learner where the others are: a lesson's own solutions, and what they build on.

Nothing is run of a lesson's cells but imports and definitions, so that catching up takes no time,
fails on nothing that a lesson has fail, and can be done twice.
"""

from __future__ import annotations

import ast
import json
import re
from functools import cache

from rankroom.course import progress
from rankroom.course.exercise_list import exercises_of
from rankroom.course.lessons import Lesson, folder
from rankroom.errors import UsageError

_CHECK = re.compile(r"%%check (\S+)\n")
_SOLUTION = re.compile(r"<summary>Solution</summary>\s+```python\n(.*?)```", re.DOTALL)
_DISTRIBUTED = re.compile(r"%%distributed\b.*\n")
_DEFINITIONS = (ast.Import, ast.ImportFrom, ast.FunctionDef, ast.ClassDef)


def source_until(lesson: Lesson, exercise: str) -> str:
    """What ranks run so that they have all definitions of the lesson, from its first cell to the
    solution of `exercise`. Raises UsageError if the lesson has no such exercise."""
    there = exercises_of(lesson)
    if exercise not in there:
        raise UsageError(NONE_SUCH.format(name=exercise, lesson=lesson.name, there=_listed(there)))
    pieces = []
    for name, source in _pieces(lesson):
        pieces.append(source)
        if name == exercise:
            break
    return "\n\n".join(pieces) + "\n"


def solved_until(lesson: Lesson, exercise: str) -> tuple[str, ...]:
    """The exercises of a lesson up to this one."""
    there = exercises_of(lesson)
    return there[: there.index(exercise) + 1]


def furthest(lesson: Lesson) -> str:
    """The last exercise of the lesson that the reader has tried. Raises UsageError without one."""
    tried = progress.read().tries
    there = exercises_of(lesson)
    for name in reversed(there):
        if name in tried:
            return name
    raise UsageError(NOT_BEGUN.format(lesson=lesson.name, there=_listed(there)))


@cache
def _pieces(lesson: Lesson) -> tuple[tuple[str, str], ...]:
    """The lesson in its order: definitions of its distributed cells, under no name, and its
    solutions, each under its exercise's."""
    try:
        cells = json.loads((folder() / lesson.file).read_text("utf-8"))["cells"]
    except (OSError, ValueError, KeyError) as error:
        raise UsageError(UNREADABLE.format(file=lesson.file, error=error)) from None
    found: list[tuple[str, str]] = []
    exercise = ""
    for cell in cells:
        source = "".join(cell["source"])
        if cell["cell_type"] == "code":
            if match := _CHECK.match(source):
                exercise = match[1]
            elif match := _DISTRIBUTED.match(source):
                found.append(("", definitions(source[match.end() :])))
        elif exercise and (match := _SOLUTION.search(source)):
            found.append((exercise, match[1].strip()))
            exercise = ""
    return tuple((name, source) for name, source in found if source)


def definitions(source: str) -> str:
    """The imports, functions and classes at the top level of a cell."""
    lines = source.splitlines()
    parts = []
    for node in ast.parse(source).body:
        if isinstance(node, _DEFINITIONS):
            decorators = getattr(node, "decorator_list", [])
            first = min([node.lineno, *(each.lineno for each in decorators)])
            parts.append("\n".join(lines[first - 1 : node.end_lineno]))
    return "\n".join(parts)


def _listed(names: tuple[str, ...]) -> str:
    return ", ".join(names) or "none"


NONE_SUCH = "lesson {lesson} has no exercise {name!r}; it has {there}"
NOT_BEGUN = (
    "no exercise of lesson {lesson} was tried yet: say up to which one, `--catch-up NAME`; it has "
    "{there}"
)
UNREADABLE = "the notebook {file} of the course cannot be read: {error}"
