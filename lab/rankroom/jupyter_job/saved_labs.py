"""What is saved here of each lab, in order to find it again: its job and port, but no secret."""

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
    """A lab that was started or attached to from here; `port` of this machine leads to it."""

    site: str
    job: str
    port: int = 0
    created: float = 0.0  # epoch s

    @property
    def _file(self) -> Path:
        return folder() / f"{self.site}-{self.job}.json"

    @property
    def page(self) -> Path:
        """A page that redirects a browser to the lab, which keeps the token off command lines."""
        return self._file.with_suffix(".html")

    def write(self) -> None:
        """Save it, if possible: a full disk must not end the job, which its site lists as well."""
        with contextlib.suppress(OSError, NotPrivateError):
            config.make_private(folder())
            write_atomically(self._file, json.dumps(dataclasses.asdict(self)))

    def write_page(self, url: str) -> Path:
        config.make_private(folder())
        redirect_page.write(self.page, url)
        return self.page

    def remove(self) -> None:
        """Delete what was saved, as the job is over."""
        self._file.unlink(missing_ok=True)
        self.page.unlink(missing_ok=True)


def folder() -> Path:
    return config.home() / "labs"


def all_saved(site: str = "") -> list[SavedLab]:
    """Return the saved labs of `site` (default: of all sites), newest first."""
    found = [kept for kept in read_all(folder(), SavedLab) if site in ("", kept.site)]
    return sorted(found, key=lambda kept: kept.created, reverse=True)
