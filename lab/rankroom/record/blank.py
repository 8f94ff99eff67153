"""Prepared records: the files of the next run's record, created before a cell waits for them.

Creating a folder and four files takes a millisecond; filling the files and renaming the folder
takes a tenth of that.
"""

from __future__ import annotations

import contextlib
import functools
import hashlib
import os
import secrets
import shutil
import time
from collections.abc import Iterator
from pathlib import Path

from rankroom.system import pid_space

BLANK_SUFFIX = ".blank"
# Blanks of other machines are removed after this; a process that still needs one makes another.
STALE_BLANK_AGE_S = 7 * 86_400.0
NEXT_RUN = "run.json.next"  # renamed to run.json once it is written
_FILE_NAMES = ("run.json", "source.py", NEXT_RUN, "events.jsonl")


class Blank:
    """A hidden folder in `runs` with the files of a record, empty and open for writing.

    Raises OSError when it cannot be created.
    """

    def __init__(self, runs: Path) -> None:
        self.folder = f"{runs}/.{os.getpid()}-{_space()}-{secrets.token_hex(4)}{BLANK_SUFFIX}"
        self._files: list[int] = []
        os.mkdir(self.folder, 0o700)  # noqa: PTH102 - strings are faster, and a cell may wait
        try:
            for name in _FILE_NAMES:
                flags = os.O_WRONLY | os.O_APPEND | os.O_CREAT | os.O_EXCL
                self._files.append(os.open(f"{self.folder}/{name}", flags, 0o600))
            with contextlib.suppress(OSError, AttributeError):  # not everywhere
                # ext4 flushes a file that replaces another one by rename, unless its block is
                # allocated already.
                os.posix_fallocate(self._files[2], 0, 1)
        except OSError:
            self.discard()
            raise

    def become(self, folder: Path, run: bytes, source: bytes) -> int:
        """Write run.json and source.py, and rename the folder to `folder`; return the descriptor of
        events.jsonl, still open.

        Raises OSError, and removes the files, when the disk is full or `folder` exists already.
        """
        try:
            for file, data in zip(self._files, (run, source), strict=False):
                _write(file, data)
            *done, events = self._files
            self._files = [events]
            for file in done:
                os.close(file)  # NFS reports an exceeded quota here
            os.rename(self.folder, folder)  # noqa: PTH104
        except OSError:
            self.discard()
            raise
        self._files = []
        return events

    def discard(self) -> None:
        """Close and remove the files."""
        for file in self._files:
            with contextlib.suppress(OSError):
                os.close(file)
        self._files = []
        shutil.rmtree(self.folder, ignore_errors=True)


def forsaken(runs: Path) -> Iterator[Path]:
    """Yield the blanks left by processes that have ended; of other machines', only the old ones."""
    from rankroom.system import process_tree  # a local import: `import rankroom` has to be fast

    for folder in runs.glob(f".*{BLANK_SUFFIX}"):
        pid, _, rest = folder.name.removeprefix(".").partition("-")
        if not pid.isdigit() or folder.is_symlink():
            continue
        if rest.startswith(f"{_space()}-"):
            gone = not process_tree.lives(int(pid))
        else:
            gone = False
            with contextlib.suppress(OSError):  # it has just become a record
                gone = time.time() - folder.lstat().st_mtime > STALE_BLANK_AGE_S
        if gone:
            yield folder


@functools.cache
def _space() -> str:
    """Return a short id of this PID space, which distinguishes its pids from those of other
    machines that share the home."""
    return hashlib.sha256("/".join(pid_space.here()[1:]).encode()).hexdigest()[:6]


def _write(fd: int, data: bytes) -> None:
    rest = memoryview(data)
    while rest:
        rest = rest[os.write(fd, rest) :]
