"""Which exercises a lesson has, as its notebook tells."""

from __future__ import annotations

import json
import re
from functools import cache

from rankroom.course.lessons import Lesson, folder

_CHECKED = re.compile(r"^%%check (\S+)", re.MULTILINE)


@cache
def exercises_of(lesson: Lesson) -> tuple[str, ...]:
    """The exercises that are checked in a lesson, in its order; none if it cannot be read."""
    try:
        cells = json.loads((folder() / lesson.file).read_text("utf-8"))["cells"]
    except (OSError, ValueError, KeyError):
        return ()
    return tuple(
        name
        for cell in cells
        if cell["cell_type"] == "code"
        for name in _CHECKED.findall("".join(cell["source"]))
    )
