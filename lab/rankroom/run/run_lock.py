"""Whose turn it is on a cluster: one run at a time, and whether its ranks are in step.

The file `busy` is locked by whoever runs a cell; the system drops the lock when that process ends.
It holds the process's id and, behind it, a mark: `0` the last run ended well, `1` it did not or is
still on, `2` ranks were let go from outside, or a library of theirs gave up.
"""

from __future__ import annotations

import contextlib
import fcntl
import os

import psutil

from rankroom.errors import STOPPED, NoClusterError, RankroomError
from rankroom.record.cluster_file import MARK_AT, ClusterPaths
from rankroom.run.run import Run


class RunLock:
    """The turns of one cluster."""

    def __init__(self, paths: ClusterPaths) -> None:
        self._paths = paths

    def take(self) -> int:
        """A descriptor that holds the cluster for one run; two would meet in each other's
        collectives. Raises RankroomError when it is another's turn, NoClusterError without one."""
        name = self._paths.name
        try:
            lock = os.open(self._paths.busy, os.O_RDWR | os.O_CREAT, 0o600)
        except FileNotFoundError:
            raise NoClusterError(STOPPED.format(name=name)) from None
        try:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError:
            who = ""
            with contextlib.suppress(OSError):
                who = os.pread(lock, MARK_AT, 0).decode().strip()
            os.close(lock)
            mine = "this notebook" if who == str(os.getpid()) else f"another process (pid {who})"
            raise RankroomError(
                f"cluster {name} is busy with a run of {mine}: wait for it or interrupt it"
            ) from None
        # One write of fixed width: truncating a file first costs more than the rest of this.
        os.pwrite(lock, f"{os.getpid():<16}".encode(), 0)
        return lock

    def is_abandoned(self) -> bool:
        """Whether the last run was one of a process that is gone, and may not have ended."""
        try:
            noted = self._paths.busy.read_text()
            pid = int(noted[:MARK_AT])
        except (OSError, ValueError):
            return False
        return noted[MARK_AT:] in ("1", "2") and pid != os.getpid() and not psutil.pid_exists(pid)

    def begin(self, lock: int, epoch: int) -> bool:
        """Whether ranks may be out of step because a cell failed, whoever ran it, or are new.

        Until `end`, they are: a kernel that dies during a run leaves it noted.
        """
        noted = os.pread(lock, 1, MARK_AT) in (b"1", b"2")
        os.pwrite(lock, b"1", MARK_AT)
        return noted or self._settled(epoch) != epoch

    def doubt(self) -> None:
        """Note that ranks are let go from outside the run that is on, which does not know it."""
        self._paths.doubt()

    def end(self, lock: int, run: Run, settle: bool, epoch: int) -> None:
        """Give the cluster free after `run`; only a cell on all ranks brings them in step again."""
        whole = len(run.info.ranks) == run.info.size
        well = run.state == "done" and (not settle or whole)
        with contextlib.suppress(OSError):
            if run.was_released or os.pread(lock, 1, MARK_AT) == b"2":
                well = False
            if well and settle and epoch:
                self._paths.settled.write_text(str(epoch))
            os.pwrite(lock, b"0" if well else b"1", MARK_AT)
        os.close(lock)

    def _settled(self, epoch: int) -> int:
        """The epoch in which a cell last brought all ranks in step; they begin so, in epoch 0."""
        if epoch:
            with contextlib.suppress(OSError, ValueError):
                return int(self._paths.settled.read_text())
        return 0
