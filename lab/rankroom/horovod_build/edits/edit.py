"""What Rankroom changes in Horovod's source, as data: small edits, each with its reason.

An edit must find its old text exactly `count` times, else applying it fails and names the edit: an
edit that silently does nothing would leave a Horovod that looks right but is not.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path

from rankroom.errors import HorovodBuildError

VERSION = "0.28.1"
SDIST_SHA256 = "92a43f5a94c43907a56805bad15f19700c62ffc83b7ca483f9e104e229f67ef0"


@dataclass(frozen=True)
class Edit:
    """Replace `old` with `new` in `file`; `reason` says what goes wrong without it."""

    id: str
    file: str
    old: str
    new: str
    reason: str
    count: int = 1


def added(
    id: str, file: str, text: str, reason: str, *, after: str = "", before: str = "", count: int = 1
) -> Edit:
    """Return the edit that inserts `text` into `file`, after `after` and before `before`."""
    return Edit(id, file, after + before, after + text + before, reason, count)


@dataclass(frozen=True)
class Addition:
    """A file of our own, added to Horovod's package; `source` is its path in `added/`."""

    id: str
    file: str
    source: str
    reason: str

    def text(self) -> str:
        return Path(__file__).with_name("added").joinpath(self.source).read_text()


Change = Edit | Addition


def apply(root: Path, edits: Iterable[Change]) -> list[str]:
    """Apply `edits` to the tree under `root`; return their ids.

    Raises HorovodBuildError if a file is missing, a file to add exists, or a text is not found
    `count` times.
    """
    done = []
    for edit in edits:
        path = root / edit.file
        if isinstance(edit, Addition):
            if path.exists():
                raise HorovodBuildError(EXISTS.format(edit=edit))
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_text(edit.text())
        else:
            if not path.is_file():
                raise HorovodBuildError(NO_FILE.format(edit=edit, version=VERSION))
            text = path.read_text()
            found = text.count(edit.old)
            if found != edit.count:
                raise HorovodBuildError(NOT_FOUND.format(edit=edit, found=found, version=VERSION))
            path.write_text(text.replace(edit.old, edit.new))
        done.append(edit.id)
    return done


def digest(edits: Iterable[Change]) -> str:
    """Return a short hash of what the edits do, without their reasons, for the cache's key."""
    sha = hashlib.sha256()
    for edit in edits:
        parts = (
            (edit.id, edit.file, edit.text())
            if isinstance(edit, Addition)
            else (edit.id, edit.file, edit.old, edit.new, str(edit.count))
        )
        for part in parts:
            sha.update(part.encode() + b"\0")
    return sha.hexdigest()[:12]


EXISTS = "Horovod edit {edit.id}: {edit.file} is already in the source; the edit is out of date"
NO_FILE = (
    "Horovod edit {edit.id}: no file {edit.file} in the source; the edits are made for {version}"
)
NOT_FOUND = (
    "Horovod edit {edit.id}: its old text occurs {found} times in {edit.file}, expected "
    "{edit.count}; the edits are made for the unchanged source of {version}"
)
