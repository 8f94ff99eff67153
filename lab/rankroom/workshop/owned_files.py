"""Files that one account writes and others read, each trusted as its owner's and no further.

In a folder that many may write to, a name proves nothing: anyone may have put a link, a pipe or a
device there. So a file is opened without following links and without blocking, and examined only
then.
"""

from __future__ import annotations

import contextlib
import errno
import functools
import os
import pwd
import stat
from dataclasses import dataclass
from pathlib import Path

HEAD_BYTES = 64  # bytes of a file's head
OTHERS_WRITE = stat.S_IWGRP | stat.S_IWOTH


@dataclass(frozen=True)
class Owned:
    """What a file held: its owner, when it was written (epoch s), and its text; `head` is how the
    file begins, even if the text begins later. If `others_write`, it need not be its owner's
    word."""

    uid: int
    written: float
    text: str
    head: str
    others_write: bool


def read_owned(path: Path, most: int, after: int = 0) -> Owned | None:
    """Return a regular file from offset `after` on, if that is `most` bytes or less; None for
    anything else.

    It is opened before it is examined, as only then do file servers report what is new.
    """
    for is_last in (False, True):
        try:
            return _read_owned(path, most, after)
        except OSError as error:
            # A stale handle: the file was replaced on another host between two calls.
            if is_last or error.errno != errno.ESTALE:
                break
    return None


def _read_owned(path: Path, most: int, after: int) -> Owned | None:
    descriptor = os.open(path, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC)
    try:
        about = os.fstat(descriptor)
        # An account other than the owner may have made a second hard link to a file.
        if not stat.S_ISREG(about.st_mode) or about.st_nlink > 1 or about.st_size - after > most:
            return None
        raw, head = os.pread(descriptor, most, after), os.pread(descriptor, HEAD_BYTES, 0)
    finally:
        os.close(descriptor)
    text, begins = (each.decode("utf-8", "replace") for each in (raw, head))
    return Owned(about.st_uid, about.st_mtime, text, begins, bool(about.st_mode & OTHERS_WRITE))


def make_folder(path: Path, mode: int) -> None:
    """Make a folder of this account's with exactly this mode, whatever the umask.

    Raises OSError; PermissionError if anything but a folder of this account exists there, or if the
    file system does not keep the mode.
    """
    with contextlib.suppress(FileExistsError):
        path.mkdir(mode=0o700)
    about = path.lstat()
    if not stat.S_ISDIR(about.st_mode) or about.st_uid != os.getuid():
        raise PermissionError(f"{path} is there already, and is no folder of yours")
    path.chmod(mode)
    if (there := path.lstat().st_mode & 0o1777) != mode:
        raise PermissionError(f"the file system gives {path} the mode {there:04o}, not {mode:04o}")


def write_shared(path: Path, text: str) -> None:
    """Replace a file in one step by one that others may read, whatever the umask.

    Raises OSError, and leaves the old file as it was.
    """
    fresh = path.with_name(f".{path.name}.{os.getpid()}")
    with contextlib.suppress(FileNotFoundError):
        fresh.unlink()
    try:
        # O_EXCL refuses a file or a link of that name that another account put there.
        descriptor = os.open(fresh, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW, 0o600)
        with os.fdopen(descriptor, "w", encoding="utf-8", errors="replace") as file:
            file.write(text)
            file.flush()
            os.fchmod(descriptor, 0o644)
        fresh.replace(path)
    except OSError:
        with contextlib.suppress(OSError):
            fresh.unlink(missing_ok=True)
        raise


def account(uid: int) -> str:
    """Return the name of an account; its uid if it has none, or if it cannot be looked up now."""
    try:
        return _name_of(uid)
    except KeyError:
        return str(uid)


@functools.cache  # a lookup may ask a directory service, and a console has one for each seat
def _name_of(uid: int) -> str:
    return pwd.getpwuid(uid).pw_name
