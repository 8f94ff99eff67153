"""A notebook's cells as a script that people can read, and the cells of such a script again."""

from __future__ import annotations

import json
import re
import shlex
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from rankroom.errors import UsageError

Notebook = dict[str, Any]
_MARK = re.compile(r"# %% \[(\d+|markdown|added)\]")
# Lines of a cell that have to do with where ranks run: in a job that is where the job runs.
_STARTS = re.compile(r"(?P<indent>\s*)%cluster\s+(?P<word>start|attach)\b(?P<rest>.*)")
_DRY_RUN = re.compile(r"\s--dry-run\b")
_LESSON = re.compile(r"\s*%course\s+\d.*")  # starts ranks where there are none
_NEEDS_RANKS = re.compile(r"%%?(?:distributed|scaling|ranks)\b")
# Cell magics that run a cell as it is.
_WRAPPERS = re.compile(r"%%(?:time|timeit|capture|prun|local)\b")
_CONTINUED = re.compile(r"\s*%cluster\b.*\\")
_LOCAL_OPTIONS = {
    "--name": True,
    "--auto-restart": False,
    "--preload": True,
}  # whether a value follows
_START = "%load_ext rankroom\n%cluster start"


@dataclass(frozen=True)
class Cell:
    """A cell to run: `number` counts the notebook's cells from 1, 0 is one that was added."""

    number: int
    source: str


def read(path: Path) -> Notebook:
    """The notebook. Raises UsageError if it cannot be read as one."""
    try:
        data = json.loads(path.read_text("utf-8"))
        cells = data["cells"]
        sound = data["nbformat"] >= 4 and all(
            {"cell_type", "source"} <= each.keys() for each in cells
        )
    except OSError as error:
        raise UsageError(f"cannot read {path}: {error.strerror or error}") from None
    except (ValueError, KeyError, TypeError, AttributeError):
        sound = False
    if not sound:
        raise UsageError(NO_NOTEBOOK.format(path=path))
    return dict(data)


def script(notebook: Notebook, title: str, granted: bool, ranks: int = 0) -> str:
    """The script of a notebook. With `granted`, ranks are `ranks`, or as many as the job's nodes
    have.

    Raises UsageError for a notebook without code.
    """
    parts = [HEAD.format(title=title)]
    cells = list(_code(notebook))
    if not cells:
        raise UsageError(f"{title} has no cell with code")
    added = _added(cells)
    for number, cell in enumerate(notebook["cells"], 1):
        source = _source(cell)
        if cell["cell_type"] == "markdown" and source:
            commented = "\n".join(map(_commented, source.split("\n")))
            parts.append(f"# %% [markdown]\n{commented}")
        elif cell["cell_type"] == "code" and source.strip():
            if clash := next(filter(_MARK.fullmatch, source.split("\n")), ""):
                raise UsageError(CLASH.format(number=number, line=clash))
            if added and number == added:
                start = adapted(_START, granted, ranks)
                parts.append(f"# %% [added]\n# Nothing before this starts ranks.\n{start}")
            parts.append(f"# %% [{number}]\n{adapted(source, granted, ranks)}")
    return "\n\n".join(parts) + "\n"


def cells_of(text: str) -> list[Cell]:
    """The cells of a script to run, in order."""
    found: list[Cell] = []
    number: int | None = None
    lines: list[str] = []

    def end() -> None:
        if number is not None:
            found.append(Cell(number, "\n".join(lines).strip("\n")))

    for line in text.split("\n"):
        if mark := _MARK.fullmatch(line):
            end()
            named = {"markdown": None, "added": 0}
            number = named[mark[1]] if mark[1] in named else int(mark[1])
            lines = []
        else:
            lines.append(line)
    end()
    return found


def adapted(source: str, granted: bool, ranks: int = 0) -> str:
    """A cell's source for a job: what it says of a site, and of a cluster to attach to, is over."""
    if source.lstrip().startswith("%%") and not _WRAPPERS.match(source.lstrip()):
        return source
    lines = []
    for written, line in _whole(source):
        new = _start(line, granted, ranks)
        lines += written if new == line else [f"# In the notebook: {line.strip()}", new]
    return "\n".join(lines)


def _whole(source: str) -> Iterator[tuple[list[str], str]]:
    """The lines of a cell, a magic's that goes on over several as one: as written, and as it is."""
    rest = source.split("\n")
    while rest:
        written = [rest.pop(0)]
        while rest and _CONTINUED.fullmatch(written[0]) and written[-1].endswith("\\"):
            written.append(rest.pop(0))
        yield written, " ".join([e.removesuffix("\\") for e in written[:-1]] + written[-1:])


def _start(line: str, granted: bool, ranks: int) -> str:
    match = _STARTS.fullmatch(line)
    if match is None:
        return line
    if _DRY_RUN.search(match["rest"]):
        return f"{match['indent']}pass"
    kept = _LOCAL_OPTIONS if granted else _LOCAL_OPTIONS | {"--ranks": True}
    try:
        words = shlex.split(match["rest"]) if match["word"] == "start" else []
    except ValueError:
        return line  # the magic itself says what is wrong
    options = ["--ranks", str(ranks)] if granted and ranks else []
    for index, word in enumerate(words):
        name, is_, value = word.partition("=")
        if name in kept and is_:
            options += [name, value]
        elif name in kept:
            options += [name, *(words[index + 1 : index + 2] if kept[name] else [])]
    new = shlex.join(["%cluster", "start", *options]).replace("'%cluster'", "%cluster")
    same = match["word"] == "start" and options == words
    return line if same else match["indent"] + new


def _added(cells: list[tuple[int, str]]) -> int:
    """The first cell that needs ranks, if none before it starts them; else 0."""
    for number, source in cells:
        lines = [line for _, line in _whole(source)]
        if any(map(_starts_ranks, lines)) or "Cluster.local" in source:
            return 0
        if any(_NEEDS_RANKS.match(line.lstrip()) for line in lines):
            return number
    return 0


def _starts_ranks(line: str) -> bool:
    if _LESSON.fullmatch(line):
        return True
    return _STARTS.fullmatch(line) is not None and not _DRY_RUN.search(line)


def _code(notebook: Notebook) -> Iterator[tuple[int, str]]:
    for number, cell in enumerate(notebook["cells"], 1):
        if cell["cell_type"] == "code" and _source(cell).strip():
            yield number, _source(cell)


def _commented(line: str) -> str:
    commented = f"# {line}".rstrip()
    # One that looks like a mark is moved aside, as text begins no cell.
    return f"#  {line}" if _MARK.fullmatch(commented) else commented


def _source(cell: dict[str, Any]) -> str:
    """A cell's source, with the ends of lines that the script has when it is read."""
    source = cell["source"]
    text = "".join(source) if isinstance(source, list) else str(source)
    return text.replace("\r\n", "\n").replace("\r", "\n")


HEAD = """\
# {title}, as a batch job: its cells in their order, as IPython runs them.
# `rankroom batch` made this file, and the job runs it: what is changed here is what runs.
# %%distributed cells run on the ranks of the job, all others in one kernel."""
NO_NOTEBOOK = "{path} is no notebook (of format 4): open it in JupyterLab and save it there"
CLASH = "cell {number} has a line `{line}`, which marks a cell's beginning in a script: change it"
