"""Walks a lesson as a reader would: cell by cell in one kernel, with every check tried on the cell
as it stands, on typical wrong answers, and on the lesson's own solution, which stays."""

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
UNTOUCHED_S = 300.0  # for a cell: longer than any takes
GONE_S = 20.0  # for processes to end that have been told to


@dataclass
class Played:
    """What each cell showed, by its id, and what checks said of each answer: a kind, such as
    `solution`, and the verdict."""

    ranks: int = 2
    shown: dict[str, Shown] = field(default_factory=dict)
    verdicts: dict[str, list[tuple[str, str]]] = field(default_factory=dict)
    errors: dict[str, str] = field(default_factory=dict)

    def text(self, cell: str) -> str:
        """All that a cell printed and showed."""
        shown = self.shown[cell]
        return f"{shown.stdout}\n{shown.text}"

    def complaints(self) -> list[str]:
        """Cells that failed, and solutions that are not right."""
        found = [f"cell {cell}: {error}" for cell, error in self.errors.items()]
        for exercise, said in self.verdicts.items():
            for words in (words for kind, words in said if kind == "solution"):
                if not words.startswith(f"✓ {exercise}"):
                    found.append(f"{exercise}: {words}")
        return found


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


def copy(folder: Path) -> None:
    """The course, where its cells may write beside it."""
    shutil.copytree(NOTEBOOKS, folder, ignore=shutil.ignore_patterns(".ipynb_checkpoints"))


def walk(
    kernel: Kernel,
    name: str,
    played: Played,
    tries: Callable[[str, str], list[tuple[str, str]]],
    times: int = 1,
    is_first: bool = True,
) -> None:
    """Run the cells of a lesson, each `times` in a row; `tries(exercise, cell)` says what is
    checked, and its kind. What starts ranks of its own is run once, and where this `is_first`."""
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
    """Walk the lesson on two fresh ranks, with all answers that there are; then stop the ranks."""
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
    kernel = Kernel(**{**os.environ, **env})  # DeepSpeed calls a compiler
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
    """Walk lessons one after the other, each in a notebook of its own, with the lessons' solutions,
    on the ranks that `%course` finds: `ranks` of them. Each cell is run `times` in a row."""
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
                # How many ranks the course has is nothing to those that a cell starts itself.
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
    """Run all cells of a lesson as they come, with exercises that are not solved, on fresh ranks;
    the cells that ended in a library's own code, hung, or lost ranks: each with its error."""
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
            # Runs of a shell, and those that a check starts, are killed on purpose.
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
    """The tracebacks of all ranks in these runs."""
    logs = (run / "events.jsonl" for run in runs)
    lines = [line for log in logs if log.exists() for line in log.read_text().splitlines()]
    events = [json.loads(line) for line in lines if '"kind":"error"' in line]
    return ["\n".join(each["traceback"]) for each in events]


def from_library(traceback: str) -> str:
    """Where an error was raised, and its last line, if that was in another package's own code, such
    as torch's; empty if it was in a cell, or by Rankroom, which says what to do."""
    text = COLOUR.sub("", traceback)
    frames = FRAME.findall(text)
    said = text.strip().rpartition("\n")[2][:300]
    if not frames or frames[-1].startswith("Cell ") or "/rankroom/" in frames[-1]:
        return ""
    # A check interrupts an answer that hangs, and says so.
    return "" if said.startswith("KeyboardInterrupt") else f"{said} ({frames[-1]})"


def solution_of(name: str) -> Callable[[str, str], list[tuple[str, str]]]:
    """What to check if it is nothing but the lesson's own solutions."""
    solved = solutions(read(name))
    return lambda exercise, _: [("solution", f"%%check {exercise}\n{solved[exercise]}")]


def tidy(home: str) -> None:
    """End the clusters of a home: those of a cell that took too long disturb all tests after it."""
    for cluster in Path(home).glob("clusters/*"):
        end(ClusterPaths(cluster.name, cluster.parent))


def left_behind(home: str, *but: str) -> list[str]:
    """The processes of a home that do not belong to the clusters `but`, once those that are about
    to end have had their time: the number and command of each."""
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
