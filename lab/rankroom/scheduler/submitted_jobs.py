"""The jobs that were submitted from this machine, whatever for: so none is forgotten."""

from __future__ import annotations

import contextlib
import dataclasses
import json
import re
import time
from dataclasses import dataclass
from pathlib import Path

from rankroom import config
from rankroom.system.files import read_all

FORGET_S = 7 * 86400.0  # after this a job that is over is not listed any more
_NAME = re.compile(r"^#(?:SBATCH --job-name=|PBS -N )(.+)$", re.MULTILINE)


@dataclass(frozen=True)
class Submitted:
    """A job, where it is, what it is called, and when it was submitted (epoch seconds); of a
    notebook, where its executed copy goes."""

    site: str
    login: str
    job: str
    name: str
    at: float
    copy: str = ""

    @property
    def _file(self) -> Path:
        return folder() / f"{self.site}-{self.job}.json"

    def write(self) -> None:
        """Keep it. A disk that is full does not undo what was submitted."""
        with contextlib.suppress(OSError):
            config.private(folder())
            self._file.touch(mode=0o600)
            self._file.write_text(json.dumps(dataclasses.asdict(self)), "utf-8")

    def remove(self) -> None:
        self._file.unlink(missing_ok=True)

    @property
    def is_old(self) -> bool:
        return time.time() - self.at > FORGET_S


def named(script: str) -> str:
    """What a job script calls its job."""
    found = _NAME.search(script)
    return found[1].strip("'") if found else ""


def folder() -> Path:
    return config.home() / "jobs"


def all_submitted() -> list[Submitted]:
    """All that are kept, the newest first."""
    return sorted(read_all(folder(), Submitted), key=lambda each: each.at, reverse=True)
