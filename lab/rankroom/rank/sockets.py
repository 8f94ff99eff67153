"""The connections that a library opens between ranks: noted, and broken to end what waits on them.

Gloo, which torch and Horovod each bring, waits for as long as a connection lasts; breaking it ends
the wait here and on the other rank, from any thread.
"""

from __future__ import annotations

import contextlib
import os
import socket
import stat
from collections.abc import Iterable, Iterator
from pathlib import Path

Socket = tuple[int, int]  # descriptor and inode, as descriptors are used again


def open_sockets() -> set[Socket]:
    """Each socket this process has open."""
    found = set()
    folder = Path("/proc/self/fd")
    for each in folder.iterdir() if folder.exists() else ():
        with contextlib.suppress(OSError):
            status = os.fstat(int(each.name))
            if stat.S_ISSOCK(status.st_mode):
                found.add((int(each.name), status.st_ino))
    return found


@contextlib.contextmanager
def noting(found: list[Socket]) -> Iterator[None]:
    """What is connected in here is added to `found`."""
    before = open_sockets()
    try:
        yield
    finally:
        found.extend(open_sockets() - before)


def break_off(sockets: Iterable[Socket], *, listening: bool = False) -> None:
    """End these connections, those that are still open; with `listening`, sockets that wait for
    others to connect, too: torch's Gloo ends the process when one of its own fails."""
    for descriptor, inode in list(sockets):
        with contextlib.suppress(OSError):
            if os.fstat(descriptor).st_ino == inode:
                with socket.socket(fileno=os.dup(descriptor)) as connection:
                    if not listening:
                        connection.getpeername()  # raises where none has connected
                    connection.shutdown(socket.SHUT_RDWR)
