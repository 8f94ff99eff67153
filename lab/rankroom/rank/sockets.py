"""The connections that a library opens between ranks: noted, and broken to end what waits on them.

Gloo, which torch and Horovod each bring, waits for as long as a connection lasts; breaking it ends
the wait here and on the other rank, from any thread.
"""

from __future__ import annotations

import contextlib
import os
import socket
import stat
import threading
import time
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path

LOOK_S = 0.05  # between two looks at what is being connected, while that is broken off
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


class Connecting:
    """The set-up of a library, in which ranks connect: another thread can break it off.

    With `listening`, also where it waits for others to connect to it.
    """

    def __init__(self, *, listening: bool) -> None:
        self._listening = listening
        self._lock = threading.Lock()
        self._before: set[Socket] | None = None  # what was open before, while it goes on
        self._number = 0

    @contextlib.contextmanager
    def noting(self, found: list[Socket], check: Callable[[], None]) -> Iterator[None]:
        """What is connected in here is added to `found`. `check()` raises where the others are
        known not to come: after it, `break_off` ends this."""
        with self._lock:
            check()
            self._before, self._number = open_sockets(), self._number + 1
        try:
            with noting(found):
                yield
        finally:
            # First: an interrupt while it waits for the lock must not leave it so.
            self._before = None
            with self._lock:
                pass  # who is just breaking it off is done

    def break_off(self, is_meant: Callable[[], bool] = lambda: True) -> bool:
        """Have it fail, if it is the one that `is_meant`; False if no such set-up goes on."""
        with self._lock:
            if self._before is None or not is_meant():
                return False
            threading.Thread(target=self._break_off, args=[self._number], daemon=True).start()
            return True

    def _break_off(self, number: int) -> None:
        while True:  # Gloo goes on to the next rank, and connects to it
            with self._lock:
                before = self._before
                if before is None or self._number != number:
                    return
                break_off(open_sockets() - before, listening=self._listening)
            time.sleep(LOOK_S)
