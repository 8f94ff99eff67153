"""What is kept here of each lab, so that it is found again: its job and port, and no secret."""

from __future__ import annotations

import contextlib
import dataclasses
import json
from dataclasses import dataclass
from pathlib import Path

from rankroom import config
from rankroom.errors import NotPrivateError
from rankroom.system import redirect_page
from rankroom.system.files import read_all, write_atomically


@dataclass(frozen=True)
class SavedLab:
    """A lab that was started or attached from here; `port` of this machine leads to it."""

    site: str
    job: str
    port: int = 0
    created: float = 0.0  # epoch s

    @property
    def _file(self) -> Path:
        return folder() / f"{self.site}-{self.job}.json"

    @property
    def page(self) -> Path:
        """A page that leads a browser to the lab: so the token stays off command lines."""
        return self._file.with_suffix(".html")

    def write(self) -> None:
        """Keep it. A disk that is full ends no job, which its site knows as well."""
        with contextlib.suppress(OSError, NotPrivateError):
            config.private(folder())
            write_atomically(self._file, json.dumps(dataclasses.asdict(self)))

    def write_page(self, url: str) -> Path:
        config.private(folder())
        redirect_page.write(self.page, url)
        return self.page

    def remove(self) -> None:
        """Forget it: its job is over."""
        self._file.unlink(missing_ok=True)
        self.page.unlink(missing_ok=True)


def folder() -> Path:
    return config.home() / "labs"


def all_saved(site: str = "") -> list[SavedLab]:
    """Those of `site`, or of all, the newest first."""
    found = [kept for kept in read_all(folder(), SavedLab) if site in ("", kept.site)]
    return sorted(found, key=lambda kept: kept.created, reverse=True)
