"""Whether a path names the same file for another process as for this one.

A container's processes may be visible here, with their environment, although they see other files:
each has a `/root/.rankroom` of its own.
"""

from __future__ import annotations

import errno
import os
from pathlib import Path, PurePath

PROC = Path("/proc")
MAX_LINKS = 40  # in one path, as in Linux


def is_same(pid: int, path: Path, untold: bool = False) -> bool:
    """Return whether `path` is the same file for the process `pid`; `untold` if that is unknown.

    If neither process has the file, the nearest folder above it that exists decides. If only this
    one has it, the answer is yes: the other process got the path from outside, from here.
    """
    if not (PROC / "self/root").exists():  # no /proc/PID/root: all processes have the same files
        return True
    root = f"{PROC}/{pid}/root"
    try:
        if _mounts("self") == _mounts(str(pid)) and os.path.samestat(_stat(root), _stat("/")):
            return True
        for each in (path, *path.parents):
            ours, theirs = stat_in_root("/", each), stat_in_root(root, each)
            if ours is not None and theirs is not None:
                return os.path.samestat(ours, theirs)
            if ours is not None or theirs is not None:
                return ours is not None and each == path
    except OSError:
        return untold
    return False


def stat_in_root(root: str, path: PurePath) -> os.stat_result | None:
    """Return the status of an absolute path as a process with this root sees it; None if missing.

    Links are resolved here, as the system would resolve absolute ones from the root of this
    process. Raises OSError.
    """
    parts, links = list(reversed(path.parts[1:])), 0
    at: list[str] = []
    while parts:
        part = parts.pop()
        if part == "..":
            at = at[:-1]
            continue
        try:
            target = PurePath(os.readlink("/".join([root, *at, part])))  # noqa: PTH115
        except (FileNotFoundError, NotADirectoryError):
            return None
        except OSError as error:
            if error.errno != errno.EINVAL:  # as for what is not a link
                raise
            at.append(part)
            continue
        links += 1
        if links > MAX_LINKS:
            raise OSError(errno.ELOOP, os.strerror(errno.ELOOP), str(path))
        at = [] if target.is_absolute() else at
        parts += reversed(target.parts[1:] if target.is_absolute() else target.parts)
    return _stat("/".join([root, *at]))


def _stat(path: str) -> os.stat_result:
    return os.stat(path)  # noqa: PTH116 - one of another process: it is used as it is


def _mounts(pid: str) -> str:
    """Return the mount namespace of a process."""
    return os.readlink(PROC / pid / "ns/mnt")  # noqa: PTH115 - it leads to no file
