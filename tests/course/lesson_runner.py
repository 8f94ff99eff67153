"""Runs lessons as a reader would, cell by cell in one kernel.

Each check is tried on the cell as it is, on typical wrong answers, and last on the lesson's own
solution, which later cells build on.
"""

from __future__ import annotations

import contextlib
import importlib
import json
import os
import re
import shutil
import time
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from pathlib import Path

import nbformat
import psutil

from checkout import NOTEBOOKS
from kernel import Kernel, Shown
from rankroom.cluster.lookup import end
from rankroom.record.cluster_file import ClusterPaths

SOLUTION = re.compile(r"<summary>Solution</summary>\s+```python\n(.*?)```", re.DOTALL)
CHECK = re.compile(r"%%check (\S+)\n")
OWN_RANKS = re.compile(r"horovodrun|rankroom run |^%%check capstone\.[45]", re.M)
FRAME = re.compile(r"^(?:File )?(Cell In\[\d+\]|/\S+:\d+)(?:, |\()", re.MULTILINE)
COLOUR = re.compile(r"\x1b\[[0-9;]*m")
UNTOUCHED_S = 300.0  # per cell; none takes that long
GONE_S = 20.0  # for processes to end once they were told to


@dataclass
class Played:
    """The outputs and errors of a lesson's cells, by cell id, and the verdicts on each exercise's
    answers, as (kind, message) with kinds such as `wrong` and `solution`."""

    ranks: int = 2
    shown: dict[str, Shown] = field(default_factory=dict)
    verdicts: dict[str, list[tuple[str, str]]] = field(default_factory=dict)
    errors: dict[str, str] = field(default_factory=dict)

    def text(self, cell: str) -> str:
        """Return everything that a cell printed and displayed."""
        shown = self.shown[cell]
        return f"{shown.stdout}\n{shown.text}"

    def complaints(self) -> list[str]:
        """Return the cells that failed, and the solutions that a check rejected."""
        found = [f"cell {cell}: {error}" for cell, error in self.errors.items()]
        for exercise, said in self.verdicts.items():
            for words in (words for kind, words in said if kind == "solution"):
                if not words.startswith(f"✓ {exercise}"):
                    found.append(f"{exercise}: {words}")
        return found


def read(name: str) -> nbformat.NotebookNode:
    return nbformat.read(NOTEBOOKS / name, as_version=4)


def solutions(notebook: nbformat.NotebookNode) -> dict[str, str]:
    """Return the folded solution of each exercise: the first one after its cell."""
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
    """Return typical wrong answers by exercise, each with a part of the expected message."""
    module = importlib.import_module(f"answers.lesson_{notebook[:2]}")
    return module.WRONG


def right_answers(notebook: str) -> dict[str, list[str]]:
    """Return other right answers by exercise, besides the lesson's own solutions."""
    return getattr(importlib.import_module(f"answers.lesson_{notebook[:2]}"), "RIGHT", {})


def copy(folder: Path) -> None:
    """Copy the course to a folder in which its cells may write."""
    shutil.copytree(NOTEBOOKS, folder, ignore=shutil.ignore_patterns(".ipynb_checkpoints"))


def walk(
    kernel: Kernel,
    name: str,
    played: Played,
    tries: Callable[[str, str], list[tuple[str, str]]],
    times: int = 1,
    is_first: bool = True,
) -> None:
    """Run the cells of a lesson, each `times` in a row. `tries(exercise, cell)` returns the
    answers to check, as (kind, source). Cells that start ranks of their own run once, and only if
    `is_first`."""
    cells = (cell for cell in read(name).cells if cell.cell_type == "code")
    for cell, turn in ((cell, turn) for cell in cells for turn in range(times)):
        if OWN_RANKS.search(cell.source) and (turn or not is_first):
            continue
        match = CHECK.match(cell.source)
        if match is None:
            shown = kernel.run(cell.source, timeout=300)
            played.shown[cell.id] = shown
            if shown.error and "raises-exception" not in cell.metadata.get("tags", []):
                played.errors[cell.id] = shown.error
            continue
        exercise = match[1]
        for kind, source in tries(exercise, cell.source):
            shown = kernel.run(source, timeout=300)
            said = shown.error or next(
                (o["text/plain"] for o in reversed(shown.outputs) if exercise in str(o)), ""
            )
            played.verdicts.setdefault(exercise, []).append((kind, said))


def play(name: str, folder: Path, **env: str) -> Played:
    """Run a lesson on two fresh ranks, with all wrong and right answers; then stop the ranks."""
    copy(folder)
    solved = solutions(read(name))
    wrong = wrong_answers(name)
    right = right_answers(name)

    def tries(exercise: str, cell: str) -> list[tuple[str, str]]:
        said = [("start", cell)]
        said += [("wrong", f"%%check {exercise}\n{code}") for code, _ in wrong[exercise]]
        said += [("right", f"%%check {exercise}\n{code}") for code in right.get(exercise, [])]
        return [*said, ("solution", f"%%check {exercise}\n{solved[exercise]}")]

    played = Played()
    kernel = Kernel(**{**os.environ, **env})  # with PATH, as DeepSpeed calls a compiler
    try:
        kernel.run(f"%cd -q {folder}")
        walk(kernel, name, played, tries)
        kernel.run("%cluster stop", timeout=60)
    finally:
        kernel.close()
        if left := left_behind(env["RANKROOM_HOME"]):
            played.errors["processes"] = f"left behind: {'; '.join(left)}"
        tidy(env["RANKROOM_HOME"])
    return played


def read_on(
    names: list[str], folder: Path, ranks: int, times: int = 1, **env: str
) -> list[tuple[str, Played]]:
    """Run lessons one after the other, each in a notebook of its own, on the same `ranks` ranks,
    which `%course` finds. Exercises get the lessons' solutions; each cell runs `times` in a
    row."""
    copy(folder)
    found = []
    try:
        for name in names:
            played = Played(ranks)
            found.append((name, played))
            kernel = Kernel(**{**os.environ, **env})
            try:
                kernel.run(f"%cd -q {folder}")
                kernel.run(f"%load_ext rankroom\n%course 0 --ranks {ranks}", timeout=300)
                # Cells that start ranks of their own do not depend on the course's number of ranks.
                walk(kernel, name, played, solution_of(name), times, is_first=ranks <= 2)
            finally:
                kernel.close()
            if left := left_behind(env["RANKROOM_HOME"], "course"):
                played.errors["processes"] = f"left behind: {'; '.join(left)}"
    finally:
        tidy(env["RANKROOM_HOME"])
    assert not left_behind(env["RANKROOM_HOME"])
    return found


def untouched(name: str, folder: Path, ranks: int, **env: str) -> list[str]:
    """Run all cells of a lesson on fresh ranks, with no exercise solved. Return the cells that
    failed in a library's code or hung, each with its error."""
    copy(folder)
    home, found = Path(env["RANKROOM_HOME"]), []
    kernel = Kernel(**{**os.environ, **env})
    try:
        kernel.run(f"%cd -q {folder}")
        kernel.run(f"%load_ext rankroom\n%course 0 --ranks {ranks}", timeout=300)
        for cell in (each for each in read(name).cells if each.cell_type == "code"):
            before = set(home.glob("runs/*"))
            try:
                shown = kernel.run(cell.source, timeout=UNTOUCHED_S)
            except TimeoutError as error:
                found.append(f"cell {cell.id}: {str(error).partition(chr(10))[0]}")
                break
            if "raises-exception" in cell.metadata.get("tags", []):
                continue
            # Runs that a shell command or a check starts may be killed on purpose.
            is_run = cell.source.startswith(("%%distributed", "%%scaling"))
            runs = set(home.glob("runs/*")) - before if is_run else set()
            tracebacks = [shown.error, *errors_of(runs)]
            found += [f"cell {cell.id}: {each}" for each in map(from_library, tracebacks) if each]
        kernel.run("%cluster stop", timeout=60)
    finally:
        kernel.close()
        tidy(env["RANKROOM_HOME"])
    return found


def errors_of(runs: Iterable[Path]) -> list[str]:
    """Return the tracebacks of all ranks in these runs."""
    logs = (run / "events.jsonl" for run in runs)
    lines = [line for log in logs if log.exists() for line in log.read_text().splitlines()]
    events = [json.loads(line) for line in lines if '"kind":"error"' in line]
    return ["\n".join(each["traceback"]) for each in events]


def from_library(traceback: str) -> str:
    """Return a traceback's last line and where the error was raised, if in another package such as
    torch; empty if it was raised in a cell, or by Rankroom, whose messages say what to do."""
    text = COLOUR.sub("", traceback)
    frames = FRAME.findall(text)
    said = text.strip().rpartition("\n")[2][:300]
    if not frames or frames[-1].startswith("Cell ") or "/rankroom/" in frames[-1]:
        return ""
    # A check interrupts an answer that hangs, and reports that itself.
    return "" if said.startswith("KeyboardInterrupt") else f"{said} ({frames[-1]})"


def solution_of(name: str) -> Callable[[str, str], list[tuple[str, str]]]:
    """Return a `tries` for `walk` that checks only the lesson's own solutions."""
    solved = solutions(read(name))
    return lambda exercise, _: [("solution", f"%%check {exercise}\n{solved[exercise]}")]


def tidy(home: str) -> None:
    """Stop the clusters of a home: those of a cell that timed out would disturb later tests."""
    for cluster in Path(home).glob("clusters/*"):
        end(ClusterPaths(cluster.name, cluster.parent))


def left_behind(home: str, *but: str) -> list[str]:
    """Return the processes of a home that do not belong to the clusters `but`, each as pid and
    command. Processes that are about to end get GONE_S to do so."""
    until = time.monotonic() + GONE_S
    while (left := _processes(home, *but)) and time.monotonic() < until:
        time.sleep(0.2)
    return left


def _processes(home: str, *but: str) -> list[str]:
    infos = (ClusterPaths(name, Path(home) / "clusters").read() for name in but)
    supervisors = {info.supervisor for info in infos if info}
    found = []
    for process in psutil.process_iter():
        with contextlib.suppress(psutil.Error):
            if process.environ().get("RANKROOM_HOME") == home:
                family = {process.pid, *(each.pid for each in process.parents())}
                if not family & supervisors:
                    found.append(f"{process.pid} {' '.join(process.cmdline())[:200]}")
    return found
