"""The jobs that were submitted from this machine, whatever for: so none is forgotten."""

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
from rankroom.system.files import read_all, write_atomically

FORGET_S = 7 * 86400.0  # so long after it was found to be over, a job is listed no more
_NAME = re.compile(r"^#(?:SBATCH --job-name=|PBS -N )(.+)$", re.MULTILINE)


@dataclass(frozen=True)
class Submitted:
    """A job, where it is, what it is called, and when it was submitted (epoch seconds), on which
    `host` if not by ssh; of a notebook, where its executed copy goes; `over` is when it was first
    found to be over, or 0."""

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
        """Keep it. A disk that is full does not undo what was submitted."""
        with contextlib.suppress(OSError):
            config.private(folder())
            write_atomically(self._file, json.dumps(dataclasses.asdict(self)))

    def remove(self) -> None:
        self._file.unlink(missing_ok=True)

    @property
    def is_of_here(self) -> bool:
        """Whether it was submitted on this machine, to its own scheduler."""
        return not self.login and self.host == socket.gethostname()

    @property
    def is_old(self) -> bool:
        return 0 < self.over < time.time() - FORGET_S

    def seen(self, is_over: bool) -> Submitted:
        """The same once it was looked at; kept, where that is new."""
        if is_over == bool(self.over):
            return self
        found = dataclasses.replace(self, over=time.time() if is_over else 0.0)
        found.write()
        return found


def named(script: str) -> str:
    """What a job script calls its job."""
    found = _NAME.search(script)
    return found[1].strip("'") if found else ""


def folder() -> Path:
    return config.home() / "jobs"


def all_submitted() -> list[Submitted]:
    """All that are kept, the newest first."""
    return sorted(read_all(folder(), Submitted), key=lambda each: each.at, reverse=True)
