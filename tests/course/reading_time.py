"""How long a lesson takes: the rule that the timetable's minutes are tested against."""

from __future__ import annotations

import re

import nbformat

WORDS, LINES = 180, 24  # read in a minute
EXERCISE, SCRIPT = 3, 12  # minutes for one, and for one that is a whole script
SCRIPT_LINES = 12
FOLDED = re.compile(r"<details>.*?</details>", re.DOTALL)


def minutes(notebook: nbformat.NotebookNode) -> float:
    """Of reading it and solving its exercises; hints are folded, and what goes further is extra."""
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
