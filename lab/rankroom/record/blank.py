"""A record without a run yet: its files are made before a cell waits for them.

To make a folder and four files takes a millisecond; to fill them and give the folder its name,
a tenth of that.
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

BLANK = ".blank"
OLD_S = 7 * 86_400.0  # a process elsewhere that has still use for an older one makes another
NEXT_RUN = "run.json.next"  # takes the place of run.json once it is written
_FILES = ("run.json", "source.py", NEXT_RUN, "events.jsonl")


class Blank:
    """A hidden folder in `runs` with the files of a record, empty and open for writing.

    Raises OSError when it cannot be made.
    """

    def __init__(self, runs: Path) -> None:
        self.folder = f"{runs}/.{os.getpid()}-{_space()}-{secrets.token_hex(4)}{BLANK}"
        self._files: list[int] = []
        os.mkdir(self.folder, 0o700)  # noqa: PTH102 - strings are quicker, and a cell may wait
        try:
            for name in _FILES:
                flags = os.O_WRONLY | os.O_APPEND | os.O_CREAT | os.O_EXCL
                self._files.append(os.open(f"{self.folder}/{name}", flags, 0o600))
            with contextlib.suppress(OSError, AttributeError):  # not everywhere
                # ext4 brings a file that takes another's place to the disk first, unless it has its
                # block already.
                os.posix_fallocate(self._files[2], 0, 1)
        except OSError:
            self.discard()
            raise

    def become(self, folder: Path, run: bytes, source: bytes) -> int:
        """Fill it and give it its place; the descriptor of events.jsonl, which is still open.

        Raises OSError, and is gone, when the disk is full or something else is in that place.
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
        """Remove it."""
        for file in self._files:
            with contextlib.suppress(OSError):
                os.close(file)
        self._files = []
        shutil.rmtree(self.folder, ignore_errors=True)


def forsaken(runs: Path) -> Iterator[Path]:
    """The blanks of processes that do not run any more; of those elsewhere, the old ones."""
    from rankroom.system import process_tree  # here, as `import rankroom` must not pay for it

    for folder in runs.glob(f".*{BLANK}"):
        pid, _, rest = folder.name.removeprefix(".").partition("-")
        if not pid.isdigit() or folder.is_symlink():
            continue
        if rest.startswith(f"{_space()}-"):
            gone = not process_tree.lives(int(pid))
        else:
            gone = False
            with contextlib.suppress(OSError):  # it has become a record meanwhile
                gone = time.time() - folder.lstat().st_mtime > OLD_S
        if gone:
            yield folder


@functools.cache
def _space() -> str:
    """What tells the pids of this machine's processes from those of others that share the home."""
    return hashlib.sha256("/".join(pid_space.here()[1:]).encode()).hexdigest()[:6]


def _write(fd: int, data: bytes) -> None:
    rest = memoryview(data)
    while rest:
        rest = rest[os.write(fd, rest) :]
