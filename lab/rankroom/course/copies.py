"""A reader's own copies of the notebooks: made once, and never overwritten."""

from __future__ import annotations

import contextlib
import json
import shutil
import time
from collections.abc import Iterator
from pathlib import Path

from rankroom.course.lessons import LESSONS, folder
from rankroom.errors import UsageError

FOR_TEACHERS = ["README.md", "quickstart.ipynb"]  # the README links to the quickstart


def copy_to(into: Path, of_learner: bool = False) -> dict[str, bool]:
    """Copy the notebooks of all lessons to a folder, which is created if needed. Return for each
    file whether it was copied; if not, it existed already and was kept. Raises UsageError.

    For a workshop's learner, the folder is created with access for that account only, as homes are
    often open to all, and what is for teachers is left out.
    """
    done = {}
    names = [*(each.file for each in LESSONS), *([] if of_learner else FOR_TEACHERS)]
    try:
        into.mkdir(parents=True, exist_ok=True, mode=0o700 if of_learner else 0o777)
        for name in names:
            done[name] = not (into / name).exists()
            if done[name]:
                with _written(folder() / name, into / name) as fresh:
                    fresh.replace(into / name)
    except OSError as error:
        raise UsageError(f"cannot copy the course to {into}: {error}") from None
    return done


def start_over(notebook: Path) -> Path:
    """Replace the reader's copy of a lesson by a fresh one. Return the path that the old copy was
    renamed to.

    Raises UsageError if it is not a lesson of the course, or cannot be replaced.
    """
    lesson = next((each for each in LESSONS if each.file == notebook.name), None)
    if lesson is None:
        raise UsageError(NO_LESSON.format(name=notebook.name, first=LESSONS[0].file))
    when = time.strftime("%Y-%m-%d %H.%M.%S")
    kept = notebook.with_name(f"{notebook.stem} (before reset {when}).ipynb")
    try:
        notebook.parent.mkdir(parents=True, exist_ok=True)
        with _written(folder() / lesson.file, notebook) as fresh:
            if notebook.exists():
                notebook.rename(kept)
            fresh.replace(notebook)
    except OSError as error:
        raise UsageError(f"cannot start {notebook} over: {error}") from None
    return kept


@contextlib.contextmanager
def _written(source: Path, to: Path) -> Iterator[Path]:
    """Write a copy without outputs beside `to`, for the caller to rename in one step: half a
    notebook at `to` would pass for the reader's."""
    fresh = to.with_name(f".{to.name}.part")
    try:
        if source.suffix == ".ipynb":
            notebook = json.loads(source.read_text("utf-8"))
            for cell in notebook["cells"]:
                if cell["cell_type"] == "code":
                    cell["outputs"], cell["execution_count"] = [], None
            fresh.write_text(json.dumps(notebook, indent=1, ensure_ascii=False) + "\n", "utf-8")
        else:
            shutil.copyfile(source, fresh)
        yield fresh
    finally:
        with contextlib.suppress(OSError):
            fresh.unlink(missing_ok=True)


NO_LESSON = "{name} is not a lesson of the course: its notebooks have names like {first}"
