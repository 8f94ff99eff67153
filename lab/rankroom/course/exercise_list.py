"""Which exercises a lesson has, according to its notebook."""

from __future__ import annotations

import json
import re
from functools import cache

from rankroom.course.lessons import Lesson, folder
from rankroom.errors import UsageError

_CHECKED = re.compile(r"^%%check (\S+)", re.MULTILINE)


@cache
def exercises_of(lesson: Lesson) -> tuple[str, ...]:
    """Return the exercises that a lesson checks, in order; none if the notebook cannot be read."""
    try:
        cells = json.loads((folder() / lesson.file).read_text("utf-8"))["cells"]
    except (OSError, ValueError, KeyError, UsageError):  # the last if no lessons are installed
        return ()
    return tuple(
        name
        for cell in cells
        if cell["cell_type"] == "code"
        for name in _CHECKED.findall("".join(cell["source"]))
    )
