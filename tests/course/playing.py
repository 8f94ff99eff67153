"""Walks a lesson as a reader would: cell by cell in one kernel, with every check tried on the cell
as it stands, on typical wrong answers, and on the lesson's own solution, which stays."""

from __future__ import annotations

import importlib
import os
import re
import shutil
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path

import nbformat

from checkout import NOTEBOOKS
from kernel import Kernel, Shown
from rankroom.cluster.lookup import end
from rankroom.record.cluster_file import ClusterPaths

SOLUTION = re.compile(r"<summary>Solution</summary>\s+```python\n(.*?)```", re.DOTALL)
CHECK = re.compile(r"%%check (\S+)\n")


@dataclass
class Played:
    """What each cell showed, by its id, and what checks said of each answer."""

    shown: dict[str, Shown] = field(default_factory=dict)
    verdicts: dict[str, list[tuple[str, str]]] = field(default_factory=dict)
    errors: dict[str, str] = field(default_factory=dict)

    def text(self, cell: str) -> str:
        """All that a cell printed and showed."""
        shown = self.shown[cell]
        return f"{shown.stdout}\n{shown.text}"


def read(name: str) -> nbformat.NotebookNode:
    return nbformat.read(NOTEBOOKS / name, as_version=4)


def solutions(notebook: nbformat.NotebookNode) -> dict[str, str]:
    """The folded solution of each exercise: the first one after its cell."""
    found: dict[str, str] = {}
    name = ""
    for cell in notebook.cells:
        if cell.cell_type == "code" and (match := CHECK.match(cell.source)):
            name = match[1]
        elif cell.cell_type == "markdown" and name and (fold := SOLUTION.search(cell.source)):
            found[name] = fold[1]
            name = ""
    return found


def wrong_answers(notebook: str) -> dict[str, list[tuple[str, str]]]:
    """Typical wrong answers, each with a part of what is to be said of it."""
    module = importlib.import_module(f"answers.lesson_{notebook[:2]}")
    return module.WRONG


def right_answers(notebook: str) -> dict[str, list[str]]:
    """Answers that are right, too, beside the lesson's own solution."""
    return getattr(importlib.import_module(f"answers.lesson_{notebook[:2]}"), "RIGHT", {})


def read_on(names: list[str], folder: Path, ranks: int, **env: str) -> dict[str, list[str]]:
    """Walk lessons one after the other, each in a notebook of its own, with the lessons' solutions,
    on the ranks that `%course` finds: `ranks` of them. What went wrong, by lesson."""
    shutil.copytree(NOTEBOOKS, folder, ignore=shutil.ignore_patterns(".ipynb_checkpoints"))
    wrong: dict[str, list[str]] = {}
    try:
        for name in names:
            kernel = Kernel(**{**os.environ, **env})
            try:
                kernel.run(f"%cd -q {folder}")
                kernel.run(f"%load_ext rankroom\n%course 0 --ranks {ranks}", timeout=120)
                wrong[name] = list(_walk(kernel, read(name)))
            finally:
                kernel.close()
    finally:
        for cluster in Path(env["RANKROOM_HOME"]).glob("clusters/*"):
            end(ClusterPaths(cluster.name, cluster.parent))
    return wrong


def _walk(kernel: Kernel, notebook: nbformat.NotebookNode) -> Iterator[str]:
    solved = solutions(notebook)
    for cell in notebook.cells:
        if cell.cell_type != "code":
            continue
        if match := CHECK.match(cell.source):
            shown = kernel.run(f"%%check {match[1]}\n{solved[match[1]]}", timeout=300)
            said = shown.error or str(shown.outputs)
            if f"✓ {match[1]}" not in said:
                yield f"{match[1]}: {said}"
            continue
        shown = kernel.run(cell.source, timeout=300)
        if shown.error and "raises-exception" not in cell.metadata.get("tags", []):
            yield f"cell {cell.id}: {shown.error}"


def play(name: str, folder: Path, **env: str) -> Played:
    """Walk the lesson in a copy of the course to its end; its ranks are stopped then."""
    shutil.copytree(NOTEBOOKS, folder, ignore=shutil.ignore_patterns(".ipynb_checkpoints"))
    notebook = read(name)
    solved = solutions(notebook)
    wrong = wrong_answers(name)
    right = right_answers(name)
    played = Played()
    kernel = Kernel(**{**os.environ, **env})  # DeepSpeed calls a compiler
    try:
        kernel.run(f"%cd -q {folder}")
        for cell in notebook.cells:
            if cell.cell_type != "code":
                continue
            match = CHECK.match(cell.source)
            if match is None:
                shown = kernel.run(cell.source, timeout=300)
                played.shown[cell.id] = shown
                if shown.error and "raises-exception" not in cell.metadata.get("tags", []):
                    played.errors[cell.id] = shown.error
                continue
            exercise = match[1]
            tries = [("start", cell.source)]
            tries += [("wrong", f"%%check {exercise}\n{code}") for code, _ in wrong[exercise]]
            tries += [("right", f"%%check {exercise}\n{code}") for code in right.get(exercise, [])]
            tries += [("solution", f"%%check {exercise}\n{solved[exercise]}")]
            for kind, source in tries:
                shown = kernel.run(source, timeout=300)
                said = shown.error or next(
                    (o["text/plain"] for o in reversed(shown.outputs) if exercise in str(o)), ""
                )
                played.verdicts.setdefault(exercise, []).append((kind, said))
        kernel.run("%cluster stop", timeout=60)
    finally:
        kernel.close()
        # A cell that took too long leaves its ranks, which would disturb all tests after it.
        for cluster in Path(env["RANKROOM_HOME"]).glob("clusters/*"):
            end(ClusterPaths(cluster.name, cluster.parent))
    return played
