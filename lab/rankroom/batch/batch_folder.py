"""A batch job's folder: one class names its files, and one file has the job's progress."""

from __future__ import annotations

import contextlib
import dataclasses
import json
import os
import re
import secrets
import time
from dataclasses import dataclass, field
from pathlib import Path, PurePosixPath
from typing import Literal

from rankroom.errors import RankroomError
from rankroom.system.files import write_atomically

State = Literal["waiting", "running", "done", "failed"]
# In the environment of all processes that a batch job starts: its folder.
FOLDER_VARIABLE = "RANKROOM_BATCH"


def in_batch_job() -> bool:
    """Whether this process belongs to a batch job, which ends with its last cell."""
    return bool(os.environ.get(FOLDER_VARIABLE))


class BatchFolder:
    """The paths of the files; the folder may be on another machine."""

    def __init__(self, path: str | PurePosixPath) -> None:
        self.path = PurePosixPath(path)
        self.notebook = self.path / "notebook.ipynb"
        self.script = self.path / "cells.ipy"
        self.job = self.path / "job.sh"
        self.executed = self.path / "executed.ipynb"
        self.state = self.path / "state.json"


@dataclass
class Progress:
    """The progress of a batch job: `cell` of `cells` is running, or was the last; `why` it failed.

    `runs` are the ids of its records; `copy` is where the executed notebook is also written.
    """

    state: State = "waiting"
    cell: int = 0
    cells: int = 0
    title: str = ""
    why: str = ""
    host: str = ""
    home: str = ""  # where its records are
    copy: str = ""
    runs: list[str] = field(default_factory=list)

    @property
    def words(self) -> str:
        """The progress in one line for users."""
        if self.state == "waiting":
            return "has not started"
        if self.state == "running":
            return f"is running cell {self.cell} of {self.cells}: {self.title}"
        if self.state == "done":
            return f"all {self.cells} cells have run"
        return self.why

    def to_json(self) -> str:
        return json.dumps(dataclasses.asdict(self)) + "\n"

    @classmethod
    def from_json(cls, text: str) -> Progress:
        """The inverse of `to_json`; a job that has written nothing valid yet is `waiting`."""
        with contextlib.suppress(ValueError, TypeError, AttributeError):
            known = {each.name for each in dataclasses.fields(cls)}
            return cls(**{key: value for key, value in json.loads(text).items() if key in known})
        return cls()

    def write(self, file: Path) -> None:
        """Replace the file in one step."""
        write_atomically(file, self.to_json())


def named(notebook: Path, now: float | None = None) -> str:
    """Return the name of a job, its folder and its executed notebook: the notebook's and the time.

    It ends in random characters, as notebooks of the same name may be submitted at the same time.
    """
    stem = re.sub(r"[^\w.-]+", "-", notebook.stem, flags=re.ASCII).strip("-.") or "notebook"
    at = time.strftime("%Y%m%d-%H%M%S", time.localtime(now))
    return f"{stem[:40]}-{at}-{secrets.token_hex(3)}"


class BatchFailed(RankroomError):
    """A batch job failed: not all of its cells have run, or its files could not be copied."""
