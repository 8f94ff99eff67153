"""Whether a path is the same file to another process as to this one.

A container's processes may be seen by number, and their environment be read, though files of theirs
have other contents: `/root/.rankroom` is a folder of each.
"""

from __future__ import annotations

import errno
import os
from pathlib import Path, PurePath

PROC = Path("/proc")
MOST_LINKS = 40  # in one path, as in Linux


def is_same(pid: int, path: Path, untold: bool = False) -> bool:
    """Whether `path` is the same file to the process `pid`, or would be if it was there: then the
    nearest folder above it that is there decides. `untold` where that cannot be told.

    Where we find the path and the process does not, it has it from outside, from here.
    """
    if not (PROC / "self/root").exists():  # a system on which all processes have the same files
        return True
    root = f"{PROC}/{pid}/root"
    try:
        if _mounts("self") == _mounts(str(pid)) and os.path.samestat(_stat(root), _stat("/")):
            return True
        for each in (path, *path.parents):
            ours, theirs = seen_from("/", each), seen_from(root, each)
            if ours is not None and theirs is not None:
                return os.path.samestat(ours, theirs)
            if ours is not None or theirs is not None:
                return ours is not None and each == path
    except OSError:
        return untold
    return False


def seen_from(root: str, path: PurePath) -> os.stat_result | None:
    """What a process with this root finds at an absolute path; None if nothing. Raises OSError.

    Links are followed by hand: to the system an absolute one begins at the root of this process.
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
            if error.errno != errno.EINVAL:  # of what is no link
                raise
            at.append(part)
            continue
        links += 1
        if links > MOST_LINKS:
            raise OSError(errno.ELOOP, os.strerror(errno.ELOOP), str(path))
        at = [] if target.is_absolute() else at
        parts += reversed(target.parts[1:] if target.is_absolute() else target.parts)
    return _stat("/".join([root, *at]))


def _stat(path: str) -> os.stat_result:
    return os.stat(path)  # noqa: PTH116 - one of another process: it is used as it is


def _mounts(pid: str) -> str:
    """The mount namespace of a process."""
    return os.readlink(PROC / pid / "ns/mnt")  # noqa: PTH115 - it leads to no file
