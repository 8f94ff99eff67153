"""What is kept here of each lab, so that it is found again: its job and port, and no secret."""

from __future__ import annotations

import contextlib
import dataclasses
import json
import os
from dataclasses import dataclass
from pathlib import Path

from rankroom import config


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
        _write(self._file, json.dumps(dataclasses.asdict(self)))

    def write_page(self, url: str) -> Path:
        _write(self.page, PAGE.format(url=url))
        return self.page

    def remove(self) -> None:
        """Forget it: its job is over."""
        self._file.unlink(missing_ok=True)
        self.page.unlink(missing_ok=True)


def folder() -> Path:
    return config.home() / "labs"


def all_kept(site: str = "") -> list[SavedLab]:
    """Those of `site`, or of all, the newest first."""
    found = []
    for file in folder().glob("*.json"):
        with contextlib.suppress(OSError, ValueError, TypeError):
            kept = SavedLab(**json.loads(file.read_text("utf-8")))
            if site in ("", kept.site):
                found.append(kept)
    return sorted(found, key=lambda kept: kept.created, reverse=True)


def _write(file: Path, text: str) -> None:
    config.private(file.parent)
    fresh = file.with_suffix(f".{os.getpid()}")
    descriptor = os.open(fresh, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o600)
    with os.fdopen(descriptor, "w", encoding="utf-8") as opened:
        opened.write(text)
    fresh.replace(file)


PAGE = (
    '<!doctype html><meta http-equiv="refresh" content="0; url={url}">'
    '<a href="{url}">JupyterLab</a>'
)
