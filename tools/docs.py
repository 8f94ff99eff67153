"""`make docs`: run the course on two ranks, and build the documentation as a site in dist/docs.

`tools/docs.py [--keep-lessons] [LESSON …]`. Lessons whose names begin with LESSON are run again (by
default all, with --keep-lessons none), and their times are printed; the others are included as they
were last run, or without outputs. Links between pages are checked: exits with 1 if one is broken.
"""

from __future__ import annotations

import argparse
import hashlib
import itertools
import os
import posixpath
import re
import shutil
import subprocess
import sys
import tempfile
import time
import venv
from collections.abc import Iterator
from pathlib import Path
from typing import Any

ROOT = Path(__file__).parent.parent
DOCS = ROOT / "docs"
CACHE = Path(os.environ.get("RANKROOM_CACHE") or ROOT / ".cache") / "docs"
PAGES, RUN, TOOLS = CACHE / "pages", CACHE / "run", CACHE / "venv"
SITE = ROOT / "dist" / "docs"
# The lock's versions are for Python 3.11 and newer.
WANTED = DOCS / ("requirements.lock" if sys.version_info >= (3, 11) else "requirements.in")
SOLUTION = re.compile(r"<summary>Solution</summary>\s+```python\n(.*?)```", re.DOTALL)
LINK = re.compile(r"(\]\()([^)#:\s]+)(#[^)\s]*)?(\))")
# The parts of the site; the lessons are added to "Course".
CONTENTS = {
    "Start": ["Quickstart <course/quickstart>"],
    "Course": [],
    "Workshops": ["workshop", "workshop-centre"],
    "Where ranks run": [
        "gpus", "sites", "ranks-on-a-site", "in-an-allocation", "lab-on-a-node", "batch",
    ],
    "The view": [
        "sidebar", "log", "metrics", "debugger", "profile-rules", "workshop-console",
    ],
    "Reference": ["magics", "commands", "api", "settings", "security"],
    "The project": [
        "changelog", "compatibility", "pythons", "architecture", "promises", "contributing",
    ],
}  # fmt: skip
LIMIT_S = 600  # for one cell; the first one has much to import
# Files of the project outside docs/, and their locations in the site.
PLACES = {
    "README.md": "index.md",
    "CHANGELOG.md": "changelog.md",
    "CONTRIBUTING.md": "contributing.md",
    "LICENSE": "license.txt",
    "slurm/lab.sbatch": "lab.sbatch.txt",
    "notebooks/README.md": "course/index.md",
}


def main(argv: list[str]) -> int:
    """Run the chosen lessons, gather the pages, and build the site."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    parser.add_argument("lessons", nargs="*", metavar="LESSON")
    parser.add_argument("--keep-lessons", action="store_true")
    chosen = parser.parse_args(argv)
    if not chosen.keep_lessons and (status := run_lessons(chosen.lessons)):
        return status
    shutil.rmtree(PAGES, ignore_errors=True)
    for source, page in sorted(pages()):
        target = PAGES / page
        target.parent.mkdir(parents=True, exist_ok=True)
        if source.suffix == ".md":
            target.write_text(placed(source, page))
        else:
            shutil.copyfile(source, target)
    (PAGES / "magics.md").write_text(magics())
    (PAGES / "commands.md").write_text(commands())
    with (PAGES / "index.md").open("a") as index:
        index.write(contents())
    shutil.rmtree(SITE, ignore_errors=True)
    build: list[str | Path] = [tools() / "bin" / "python", "-m", "sphinx", "-q", "-c", DOCS]
    build += ["--fail-on-warning", "--keep-going", "-d", CACHE / "trees", PAGES, SITE]
    done = subprocess.run(build, check=False)
    if done.returncode == 0:
        print(f"{SITE.relative_to(ROOT)}/index.html")
    return done.returncode


# -- the lessons


def notebooks() -> list[Path]:
    return sorted((ROOT / "notebooks").glob("*.ipynb"))


def run_lessons(chosen: list[str]) -> int:
    """Run the lessons whose file names begin with one of `chosen`, or all if it is empty."""
    # Imported here, as `make lint` checks this file without these packages.
    import nbformat
    from nbclient import NotebookClient
    from nbclient.exceptions import CellControlSignal, DeadKernelError

    files = [each for each in notebooks() if not chosen or each.name.startswith(tuple(chosen))]
    if not files:
        print(f"no lesson begins with {' or '.join(chosen)}")
        return 1
    RUN.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(prefix="rankroom-docs-") as home:
        os.environ["RANKROOM_HOME"] = home
        for file in files:
            notebook = nbformat.read(file, as_version=4)
            solve(notebook.cells)
            begun = time.monotonic()
            try:
                NotebookClient(
                    notebook, timeout=LIMIT_S, kernel_name="python3",
                    resources={"metadata": {"path": str(file.parent)}},
                ).execute()  # fmt: skip
            except (CellControlSignal, DeadKernelError) as error:
                print(f"{file.name}: a cell failed\n{error}")
                return 1
            finally:
                stop_clusters()
            nbformat.write(notebook, RUN / file.name)
            print(f"{time.monotonic() - begun:5.0f} s  {file.name}", flush=True)
    return 0


def stop_clusters() -> None:
    """Stop the clusters that a lesson has left, as its home is temporary."""
    from rankroom.cluster import actions, lookup

    for left in lookup.running_clusters():
        actions.stop(left.name)


def solve(cells: list[Any]) -> None:
    """Put each exercise's solution into its cell, as later cells need it."""
    for cell, after in itertools.pairwise(cells):
        first, _, _ = cell.source.partition("\n")
        if first.startswith("%%check ") and (found := SOLUTION.search(after.source)):
            cell.source = f"{first}\n{found[1].rstrip()}"


# -- the pages


def pages() -> Iterator[tuple[Path, str]]:
    """Yield the files of the site, and their locations in it."""
    for name in PLACES:
        yield ROOT / name, PLACES[name]
    for file in (*DOCS.glob("*.md"), *DOCS.glob("*.png"), *DOCS.glob("*.svg")):
        yield file, file.name
    for picture in (DOCS / "course").glob("*.png"):
        yield picture, f"course/{picture.name}"
    for lesson in notebooks():
        was_run = RUN / lesson.name
        yield was_run if was_run.exists() else lesson, f"course/{lesson.name}"


def placed(source: Path, page: str) -> str:
    """Return a page's text, with links that lead to the locations in the site."""
    folder = source.relative_to(ROOT).parent

    def moved(found: re.Match[str]) -> str:
        before, link, anchor, after = found.groups()
        name = posixpath.normpath(folder / link)
        where = PLACES.get(name) or re.sub("^docs/", "", re.sub("^notebooks/", "course/", name))
        there = posixpath.relpath(where, posixpath.dirname(page) or ".")
        return f"{before}{there}{anchor or ''}{after}"

    return LINK.sub(moved, source.read_text())


def contents() -> str:
    """Return the table of contents, with the lessons."""
    lessons = [f"course/{each.stem}" for each in notebooks() if each.name[0].isdigit()]
    parts = CONTENTS | {"Course": ["course/index", *lessons]}
    return "".join(
        "\n```{toctree}\n:hidden:\n:caption: " + f"{name}\n\n" + "\n".join(parts[name]) + "\n```\n"
        for name in parts
    )


def magics() -> str:
    """Return the page about the magics, from their docstrings."""
    from rankroom.notebook.course_magics import CourseMagics
    from rankroom.notebook.magics import RankroomMagics

    parts = ["# Magics\n\n`%load_ext rankroom` brings them into a notebook."]
    for kind in (RankroomMagics, CourseMagics):
        names = {name for which in kind.magics.values() for name in which.values()}
        for name in sorted(names):
            usage, _, rest = (getattr(kind, name).__doc__ or "").partition("\n\n")
            called = usage.split()[0].rstrip(":")
            body = re.sub(r"(?m)^ {8}", "", usage), re.sub(r"(?m)^ {8}", "", rest)
            parts.append(f"## {called}\n\n```text\n{body[0]}\n```\n\n{body[1].rstrip()}")
    return "\n\n".join(parts) + "\n"


def commands() -> str:
    """Return the page about the command `rankroom`, from the help of all its subcommands."""
    import click

    from rankroom.cli import main as rankroom

    parts = ["# The command `rankroom`"]

    def add(command: click.Command, context: click.Context, level: int) -> None:
        text = command.get_help(context)
        parts.append(f"{'#' * level} {context.command_path}\n\n```text\n{text}\n```")
        if isinstance(command, click.Group):
            for name in command.list_commands(context):
                if (each := command.get_command(context, name)) and not each.hidden:
                    add(each, click.Context(each, context, name), min(level + 1, 4))

    add(rankroom, click.Context(rankroom, info_name="rankroom", max_content_width=88), 2)
    return "\n\n".join(parts) + "\n"


def tools() -> Path:
    """Return the environment of Sphinx, which is made again when its versions have changed."""
    stamp, wanted = TOOLS / "made", hashlib.sha256(WANTED.read_bytes()).hexdigest()
    if not stamp.is_file() or stamp.read_text() != wanted:
        venv.create(TOOLS, clear=True, with_pip=True)
        pip = [str(TOOLS / "bin" / "python"), "-m", "pip", "install", "--quiet"]
        subprocess.run([*pip, "--requirement", str(WANTED)], check=True)
        stamp.write_text(wanted)
    return TOOLS


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
