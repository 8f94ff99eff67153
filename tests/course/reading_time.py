"""How long a lesson takes: the rule that the timetable's minutes are tested against."""

from __future__ import annotations

import re

import nbformat

WORDS, LINES = 180, 24  # read per minute
EXERCISE, SCRIPT = 3, 12  # minutes per exercise, and per exercise that is a whole script
SCRIPT_LINES = 12
FOLDED = re.compile(r"<details>.*?</details>", re.DOTALL)


def minutes(notebook: nbformat.NotebookNode) -> float:
    """Return the minutes for its text and exercises, without folded hints and "Going further"."""
    found = 0.0
    for cell in notebook.cells:
        if cell.id == "stretch":
            continue
        if cell.cell_type == "markdown":
            found += len(FOLDED.sub("", cell.source).split()) / WORDS
            continue
        lines = [line for line in cell.source.splitlines() if line.strip()]
        found += len(lines) / LINES
        if cell.source.startswith("%%check "):
            found += SCRIPT if len(lines) > SCRIPT_LINES else EXERCISE
    return found
