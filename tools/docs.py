"""`make docs`: run the course on two ranks, and render it as HTML into docs/course.

Names on the command line choose lessons (`make docs ARGS="03"`). Each lesson's time is printed.
"""

from __future__ import annotations

import itertools
import os
import re
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

ROOT = Path(__file__).parent.parent
INTO = ROOT / "docs" / "course"
SOLUTION = re.compile(r"<summary>Solution</summary>\s+```python\n(.*?)```", re.DOTALL)
LIMIT_S = 600  # for one cell; the first of all builds nothing, but imports a lot


def main(chosen: list[str]) -> int:
    """Render the lessons whose file names begin with one of `chosen`; all of them without."""
    # Not before somebody asks for it: `make lint` checks this file without them.
    import nbformat
    from nbclient import NotebookClient
    from nbclient.exceptions import CellExecutionError
    from nbconvert import HTMLExporter

    files = sorted((ROOT / "notebooks").glob("[0-9]*.ipynb"))
    files = [each for each in files if not chosen or each.name.startswith(tuple(chosen))]
    if not files:
        print(f"no lesson begins with {' or '.join(chosen)}")
        return 1
    INTO.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(prefix="rankroom-docs-") as home:
        os.environ["RANKROOM_HOME"] = home
        for file in files:
            notebook = nbformat.read(file, as_version=4)
            solve(notebook.cells)
            stop = nbformat.v4.new_code_cell("%cluster stop")
            notebook.cells.append(stop)
            begun = time.monotonic()
            try:
                NotebookClient(
                    notebook, timeout=LIMIT_S, kernel_name="python3",
                    resources={"metadata": {"path": str(file.parent)}},
                ).execute()  # fmt: skip
            except CellExecutionError as error:
                print(f"{file.name}: a cell failed\n{error}")
                return 1
            took = time.monotonic() - begun
            notebook.cells.remove(stop)
            page, _ = HTMLExporter().from_notebook_node(notebook)  # type: ignore[no-untyped-call]
            target = INTO / f"{file.stem}.html"
            target.write_text(page, "utf-8")
            print(f"{took:5.0f} s  {target.relative_to(ROOT)}")
    return 0


def solve(cells: list[Any]) -> None:
    """Put each exercise's solution into its cell: what comes after needs it."""
    for cell, after in itertools.pairwise(cells):
        first, _, _ = cell.source.partition("\n")
        if first.startswith("%%check ") and (found := SOLUTION.search(after.source)):
            cell.source = f"{first}\n{found[1].rstrip()}"


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
