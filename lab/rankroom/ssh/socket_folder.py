"""The folder of the connections' sockets: closed to other users, and with a short name."""

from __future__ import annotations

import hashlib
import os
import socket
import stat
from functools import cache
from pathlib import Path

from rankroom import config
from rankroom.errors import SshError

# Bytes. A Unix socket's path has at most 104 on some systems, and ssh adds 17 while it creates one.
MAX_PATH_BYTES = 103 - 17
SOCKET_NAME_LENGTH = 16


def control_path(ssh: str, login: str) -> Path:
    """Return the socket of the connection from this machine to `login` by the command `ssh`."""
    # A home may be shared by several machines, but a socket belongs to one of them.
    about = "\0".join((ssh, login, socket.gethostname()))
    return folder() / hashlib.sha256(about.encode()).hexdigest()[:SOCKET_NAME_LENGTH]


def folder() -> Path:
    """Return the user's own folder for sockets: beside the records, or in /tmp if that path is too
    long or its file system has no sockets."""
    # ssh ends a path at a space.
    own = config.without_spaces(config.home() / "ssh")
    # Created each time: a cleaner of /tmp may have removed it.
    return _made(own if _fits(own) else Path("/tmp", f"rankroom-{os.getuid()}"))


@cache
def _fits(own: Path) -> bool:
    longest = len(os.fsencode(own)) + 1 + SOCKET_NAME_LENGTH
    return longest <= MAX_PATH_BYTES and _holds_sockets(_made(own))


def _made(folder: Path) -> Path:
    """Create the folder if it is missing, and return it. Raises SshError unless it is the user's
    own: in /tmp, another user may have created it."""
    try:
        config.make_parents(folder)
        folder.mkdir(mode=0o700, exist_ok=True)
        about = folder.lstat()
    except OSError as error:
        raise SshError(NOT_MADE.format(folder=folder, error=error), "folder") from None
    if not stat.S_ISDIR(about.st_mode) or about.st_uid != os.getuid():
        raise SshError(NOT_OURS.format(folder=folder), "folder")
    folder.chmod(0o700)
    return folder


def _holds_sockets(folder: Path) -> bool:
    """Whether ssh can create its socket there: some shared file systems lack sockets or links."""
    first = folder / f".{os.getpid()}"
    second = first.with_suffix(".l")
    try:
        with socket.socket(socket.AF_UNIX) as made:
            made.bind(os.fspath(first))
            os.link(first, second)
    except OSError:
        return False
    finally:
        first.unlink(missing_ok=True)
        second.unlink(missing_ok=True)
    return True


NOT_MADE = (
    "cannot create {folder} for ssh's sockets: {error}; free some space if the disk is full, or "
    "set RANKROOM_HOME to a folder of your own"
)
NOT_OURS = (
    "{folder} belongs to another user, so ssh's sockets are not safe there: set RANKROOM_HOME to a "
    "folder of your own with a shorter name"
)
