"""Track the connections that a library opens between ranks, and shut them down to end their waits.

Gloo, which torch and Horovod each bundle, waits for as long as a connection lasts; shutting it down
from any thread ends the wait on both ranks.
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

SHUTDOWN_POLL_INTERVAL_S = 0.05  # poll interval for new connections, while a set-up is broken off
Socket = tuple[int, int]  # descriptor and inode, as descriptors are reused


def open_sockets() -> set[Socket]:
    """Return all sockets that this process has open."""
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
    """Add the sockets that are opened in the block to `found`."""
    before = open_sockets()
    try:
        yield
    finally:
        found.extend(open_sockets() - before)


def break_off(sockets: Iterable[Socket], *, listening: bool = False) -> None:
    """Shut down those of these connections that are still open; with `listening`, listening sockets
    as well, which must be spared in torch's Gloo: it ends the process when one of them fails."""
    for descriptor, inode in list(sockets):
        with contextlib.suppress(OSError):
            if os.fstat(descriptor).st_ino == inode:
                connection = socket.socket(fileno=descriptor)  # a copy would need a free descriptor
                try:
                    if not listening:
                        connection.getpeername()  # raises if it is not connected
                    connection.shutdown(socket.SHUT_RDWR)
                finally:
                    connection.detach()


class Connecting:
    """The set-up of a library, in which ranks connect: another thread can break it off.

    With `listening`, that also ends its waits for others to connect to it.
    """

    def __init__(self, *, listening: bool) -> None:
        self._listening = listening
        self._lock = threading.Lock()
        self._before: set[Socket] | None = None  # sockets open before the set-up in progress
        self._number = 0

    @contextlib.contextmanager
    def noting(self, found: list[Socket], check: Callable[[], None]) -> Iterator[None]:
        """Add the sockets that are opened in the block to `found`. `check()` raises if other ranks
        are known not to come; from then on, `break_off` can end the block."""
        with self._lock:
            check()
            self._before, self._number = open_sockets(), self._number + 1
        try:
            with noting(found):
                yield
        finally:
            # Before the wait for the lock, in which an interrupt may come.
            self._before = None
            with self._lock:
                pass  # a `break_off` in progress has ended

    def break_off(self, is_meant: Callable[[], bool] = lambda: True) -> bool:
        """Make the set-up in progress fail if `is_meant()`; return False if there is none."""
        with self._lock:
            if self._before is None or not is_meant():
                return False
            threading.Thread(target=self._break_off, args=[self._number], daemon=True).start()
            return True

    def _break_off(self, number: int) -> None:
        while True:  # Gloo continues with the next rank, and connects to it
            with self._lock:
                before = self._before
                if before is None or self._number != number:
                    return
                break_off(open_sockets() - before, listening=self._listening)
            time.sleep(SHUTDOWN_POLL_INTERVAL_S)
