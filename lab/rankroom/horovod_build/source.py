"""Horovod's source, fetched by pip from the package index that the user has set up."""

from __future__ import annotations

import hashlib
import os
import tarfile
import tempfile
from pathlib import Path

from rankroom.errors import HorovodBuildError
from rankroom.horovod_build.edits.edit import SDIST_SHA256, VERSION
from rankroom.system import python_command
from rankroom.system.commands import run_sync

ARCHIVE = f"horovod-{VERSION}.tar.gz"
FETCH_S = 600
PIP = (*python_command.command("pip"), "--disable-pip-version-check")


def fetch(folder: Path) -> Path:
    """Return the source archive in `folder`, downloaded if it is missing, its checksum verified.

    Raises HorovodBuildError if pip cannot get it, or gets something else.
    """
    archive = folder / ARCHIVE
    if archive.is_file() and _checksum(archive) == SDIST_SHA256:
        return archive
    folder.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(dir=folder) as scratch:
        done = run_sync(
            # The environment's own setuptools reads the archive; nothing else is fetched.
            [
                *PIP,
                "download",
                "--no-deps",
                "--no-binary=horovod",
                "--no-build-isolation",
                f"--dest={scratch}",
                f"horovod=={VERSION}",
            ],
            env={**os.environ, "HOROVOD_SKIP_COMPILE": "1"},
            timeout=FETCH_S,
        )
        got = Path(scratch, ARCHIVE)
        if not done.ok or not got.is_file():
            raise HorovodBuildError(NOT_FETCHED.format(version=VERSION, tail=done.tail(15)))
        if _checksum(got) != SDIST_SHA256:
            raise HorovodBuildError(CHANGED.format(version=VERSION, sha=_checksum(got)))
        got.replace(archive)
    return archive


def unpack(archive: Path, folder: Path) -> Path:
    """Unpack the source into `folder`; return the root of its tree."""
    with tarfile.open(archive) as tar:
        if hasattr(tarfile, "data_filter"):
            tar.extractall(folder, filter="data")
        else:
            tar.extractall(folder)
    return folder / f"horovod-{VERSION}"


def _checksum(path: Path) -> str:
    return hashlib.sha256(path.read_bytes()).hexdigest()


NOT_FETCHED = (
    "pip could not download Horovod {version}'s source; check the network and pip's index "
    "(`pip config list`). pip's last lines:\n{tail}"
)
CHANGED = (
    "the package index has another Horovod {version} than the one the edits are made for "
    "(sha256 {sha}); use an index that serves PyPI's file"
)
