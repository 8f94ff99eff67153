"""All jobs submitted from this machine, for any purpose, so that none is forgotten."""

from __future__ import annotations

import contextlib
import dataclasses
import json
import re
import socket
import time
from dataclasses import dataclass
from pathlib import Path

from rankroom import config
from rankroom.errors import RankroomError
from rankroom.system.files import read_all, write_atomically

RETENTION_S = 7 * 86400.0  # this long after it was found to be over, a job is no longer listed
_NAME = re.compile(r"^#(?:SBATCH --job-name=|PBS -N )(.+)$", re.MULTILINE)


@dataclass(frozen=True)
class Submitted:
    """A submitted job: its site, login host, id, name, and when it was submitted (epoch seconds).

    `host` is where it was submitted, if not by ssh. `copy` is where a notebook's executed copy
    goes. `over` is when the job was first found to be over, or 0.
    """

    site: str
    login: str
    job: str
    name: str
    at: float
    copy: str = ""
    over: float = 0.0
    host: str = ""

    @property
    def _file(self) -> Path:
        return folder() / f"{self.site}-{self.job}.json"

    def write(self) -> None:
        """Write this record. Neither a full disk nor a folder that others may write to must undo
        the submission."""
        with contextlib.suppress(OSError, RankroomError):
            config.make_private(folder())
            write_atomically(self._file, json.dumps(dataclasses.asdict(self)))

    def remove(self) -> None:
        self._file.unlink(missing_ok=True)

    @property
    def is_of_here(self) -> bool:
        """Whether it was submitted on this machine, to its own scheduler."""
        return not self.login and self.host == socket.gethostname()

    @property
    def is_old(self) -> bool:
        return 0 < self.over < time.time() - RETENTION_S

    def seen(self, is_over: bool) -> Submitted:
        """Return this job as just found to be over or not; write it if that has changed."""
        if is_over == bool(self.over):
            return self
        found = dataclasses.replace(self, over=time.time() if is_over else 0.0)
        found.write()
        return found


def named(script: str) -> str:
    """Return the job's name in its script; empty if there is none."""
    found = _NAME.search(script)
    return found[1].strip("'") if found else ""


def folder() -> Path:
    return config.home() / "jobs"


def all_submitted() -> list[Submitted]:
    """Return all recorded jobs, newest first."""
    return sorted(read_all(folder(), Submitted), key=lambda each: each.at, reverse=True)
