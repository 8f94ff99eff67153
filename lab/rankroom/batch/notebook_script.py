"""Converts a notebook's cells to a readable script, and such a script back to cells."""

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
# Lines of a cell that say where ranks run: in a job, they run where the job does.
_CLUSTER_LINE = re.compile(r"(?P<indent>\s*)%cluster\s+(?P<word>start|attach)\b(?P<rest>.*)")
_DRY_RUN = re.compile(r"\s--dry-run\b")
_COURSE_LINE = re.compile(r"\s*%course\s+\d.*")  # starts ranks if there are none
_NEEDS_RANKS = re.compile(r"%%?(?:distributed|scaling|ranks)\b")
# Cell magics that run their cell unchanged.
_WRAPPER_MAGICS = re.compile(r"%%(?:time|timeit|capture|prun|local)\b")
_CONTINUED = re.compile(r"\s*%cluster\b.*\\")
_LOCAL_OPTIONS = {
    "--name": True,
    "--auto-restart": False,
    "--preload": True,
}  # whether a value follows
_START = "%load_ext rankroom\n%cluster start"


@dataclass(frozen=True)
class Cell:
    """A cell to run: `number` is its position in the notebook from 1, or 0 if it was added."""

    number: int
    source: str


def read(path: Path) -> Notebook:
    """Read a notebook. Raises UsageError if the file cannot be read, or is not a notebook."""
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
    """Return the script of a notebook. If the ranks are `granted` by a scheduler, there are `ranks`
    of them, or as many as the job's nodes provide.

    Raises UsageError for a notebook without code, or with a line that looks like a cell mark.
    """
    # A file's name need not be UTF-8, which the script is read as.
    parts = [HEAD.format(title=title.encode("utf-8", "replace").decode())]
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
    """Return the cells of a script that are to be run, in order."""
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
    """Return a cell's source for use in a job: `%cluster start` and `attach` lines are replaced by
    a start without a site, and dry runs by `pass`; the original line becomes a comment."""
    if source.lstrip().startswith("%%") and not _WRAPPER_MAGICS.match(source.lstrip()):
        return source
    lines = []
    for written, line in _whole(source):
        new = _start(line, granted, ranks)
        lines += written if new == line else [f"# In the notebook: {line.strip()}", new]
    return "\n".join(lines)


def _whole(source: str) -> Iterator[tuple[list[str], str]]:
    """Yield the lines of a cell: each as written, and as one logical line. A `%cluster` magic may
    be continued over several written lines."""
    rest = source.split("\n")
    while rest:
        written = [rest.pop(0)]
        while rest and _CONTINUED.fullmatch(written[0]) and written[-1].endswith("\\"):
            written.append(rest.pop(0))
        yield written, " ".join([e.removesuffix("\\") for e in written[:-1]] + written[-1:])


def _start(line: str, granted: bool, ranks: int) -> str:
    match = _CLUSTER_LINE.fullmatch(line)
    if match is None:
        return line
    if _DRY_RUN.search(match["rest"]):
        return f"{match['indent']}pass"
    kept = _LOCAL_OPTIONS if granted else _LOCAL_OPTIONS | {"--ranks": True}
    try:
        words = shlex.split(match["rest"]) if match["word"] == "start" else []
    except ValueError:
        return line  # the magic will report the error
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
    """Return the number of the first cell that needs ranks, or 0 if ranks are started before it."""
    for number, source in cells:
        lines = [line for _, line in _whole(source)]
        if any(map(_starts_ranks, lines)) or "Cluster.local" in source:
            return 0
        if any(_NEEDS_RANKS.match(line.lstrip()) for line in lines):
            return number
    return 0


def _starts_ranks(line: str) -> bool:
    if _COURSE_LINE.fullmatch(line):
        return True
    return _CLUSTER_LINE.fullmatch(line) is not None and not _DRY_RUN.search(line)


def _code(notebook: Notebook) -> Iterator[tuple[int, str]]:
    for number, cell in enumerate(notebook["cells"], 1):
        if cell["cell_type"] == "code" and _source(cell).strip():
            yield number, _source(cell)


def _commented(line: str) -> str:
    commented = f"# {line}".rstrip()
    # A line that would look like a mark gets another space, so that it does not begin a cell.
    return f"#  {line}" if _MARK.fullmatch(commented) else commented


def _source(cell: dict[str, Any]) -> str:
    """Return a cell's source with line feeds as line ends, as a script has when it is read."""
    source = cell["source"]
    text = "".join(source) if isinstance(source, list) else str(source)
    return text.replace("\r\n", "\n").replace("\r", "\n")


HEAD = """\
# {title}, as a batch job: its cells in their order, as IPython runs them.
# `rankroom batch` made this file, and the job runs it: what is changed here is what runs.
# %%distributed cells run on the ranks of the job, all others in one kernel."""
NO_NOTEBOOK = "{path} is not a notebook (of format 4): open it in JupyterLab and save it there"
CLASH = "cell {number} has a line `{line}`, which would begin a new cell in the script: change it"
