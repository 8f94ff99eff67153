"""A process with everything that it has started: found without names, ended as a whole.

Children are found by descent, and by a mark in their environment: what a dead rank leaves behind
may no longer be our descendant, and a process in a session of its own gets no signal sent to a
group. A mark names a folder, and counts only if that is the same folder for the marked process: a
container may have another one at the same path.
"""

from __future__ import annotations

import contextlib
import os
import select
import sys
from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path

import psutil

from rankroom.system import path_views
from rankroom.system.polling import poll_until

CLUSTER_MARK = "RANKROOM_CLUSTER"  # in the environment of all that a cluster starts: its folder
START_MARK = "RANKROOM_START"  # in a rank's environment: how often it has been started
AGENT_MARK = "RANKROOM_AGENT"  # in the environment of a node agent and its descendants: which agent
SPOOL_MARK = "RANKROOM_SPOOL"  # in the environment of all that a rank starts
JOB_MARK = "RANKROOM_JOB"  # beside these marks: the scheduler's job in which they were set
START_TIME_FIELD = 19  # index among the fields in /proc/PID/stat that follow the name
SUBREAPER = 36  # PR_SET_CHILD_SUBREAPER
KILL_DELAY_S = 0.5  # a child that has not ended this long after SIGTERM is killed


def descendants(pids: Iterable[int]) -> set[psutil.Process]:
    """Return all descendants of these processes, in any session."""
    found: set[psutil.Process] = set()
    for pid in pids:
        with contextlib.suppress(psutil.Error):
            found |= set(psutil.Process(pid).children(recursive=True))
    return found


def adopt_orphans() -> None:
    """Make orphaned descendants children of this process, where they would become those of process
    1: so they are found by descent, whatever their environment. This process must reap them."""
    if sys.platform == "linux":
        import ctypes  # here, so that only processes that need it pay for the import

        with contextlib.suppress(OSError):
            ctypes.CDLL(None).prctl(SUBREAPER, 1, 0, 0, 0)


def marked(variable: str, folder: Path) -> set[psutil.Process]:
    """Return this user's other processes whose environment marks them as belonging to `folder`."""
    return {
        process
        for process, environment in _carriers(variable)
        if environment[variable] == str(folder) and _has_our(process, variable, environment)
    }


def belonging(variable: str) -> Iterator[tuple[psutil.Process, str]]:
    """Yield this user's other processes with `variable` in their environment, and its value."""
    for process, environment in _carriers(variable):
        if _has_our(process, variable, environment):
            yield process, environment[variable]


def _carriers(variable: str) -> Iterator[tuple[psutil.Process, Mapping[str, str]]]:
    for process in psutil.process_iter(["environ"]):
        environment: Mapping[str, str] = process.info["environ"] or {}
        if variable not in environment or _was_submitted(environment):
            continue
        if process.pid != os.getpid() and running(process):
            yield process, environment


def _has_our(process: psutil.Process, variable: str, environment: Mapping[str, str]) -> bool:
    """Return whether the folder that a mark names is the same for its process as it is here."""
    value = environment[variable]
    # In an agent's mark, two parts that are no files follow the cluster's folder.
    folder = value.rsplit("/", 2)[0] if variable == AGENT_MARK else value
    return path_views.is_same(process.pid, Path(folder))


def job(environment: Mapping[str, str]) -> str:
    """Return the scheduler's job of a process with this environment; empty outside of one."""
    return environment.get("SLURM_JOB_ID") or environment.get("PBS_JOBID", "")


def _was_submitted(environment: Mapping[str, str]) -> bool:
    """Return whether the process belongs to another job, which inherited the marks from the cell
    that submitted it."""
    return JOB_MARK in environment and job(environment) not in ("", environment[JOB_MARK])


def end(processes: Iterable[psutil.Process], seconds: float = KILL_DELAY_S) -> None:
    """Terminate these processes, kill those still running after `seconds`, and await their end."""
    left = [each for each in processes if running(each)]
    for process in left:
        with contextlib.suppress(psutil.Error):
            process.terminate()
    left = _gone(left, seconds)
    for process in left:
        with contextlib.suppress(psutil.Error):
            process.kill()
    _gone(left, KILL_DELAY_S)


def running(process: psutil.Process) -> bool:
    """Return whether a process is still running; a zombie, which waits to be reaped, is not."""
    try:
        return bool(process.is_running() and process.status() != psutil.STATUS_ZOMBIE)
    except psutil.Error:
        return False
    except OSError:  # this process is out of descriptors, say: it may be running
        return True


def began(pid: int) -> int | None:
    """Return when a process of this PID space started, in ticks since boot, which distinguishes it
    from a later one with its pid, even if the clock is changed. None if it has ended, 0 if
    unknown."""
    try:
        fields = Path(f"/proc/{pid}/stat").read_bytes().rpartition(b") ")[2].split()
        return None if fields[0] in (b"Z", b"X") else int(fields[START_TIME_FIELD])
    except (FileNotFoundError, ProcessLookupError):
        return None
    except (OSError, ValueError, IndexError):  # this process is out of descriptors, say
        return 0


def lives(pid: int, since: int = 0) -> bool:
    """Return whether the process `pid` that started at `since` (0: unknown) is still running."""
    found = began(pid) if pid > 0 else None
    return found is not None and (not since or not found or found == since)


def is_marked(pid: int, variable: str, folder: Path) -> bool:
    """Return whether the process that now has this pid belongs to `folder`, or may do so."""
    try:
        return bool(psutil.Process(pid).environ().get(variable) == str(folder))
    except psutil.NoSuchProcess:
        return False
    except (psutil.Error, OSError):
        return True


def ended_within(pid: int, seconds: float) -> bool:
    """Wait up to `seconds` for a process, child or not, to end; return whether it has."""
    try:
        with contextlib.closing(_Watch(pid)) as watch:
            return watch.wait(seconds)
    except ProcessLookupError:
        return True


class _Watch:
    """A wait for the end of one process: without polling where the system supports that."""

    def __init__(self, pid: int) -> None:
        self._fd = -1
        self._process: psutil.Process | None = None
        try:
            self._fd = os.pidfd_open(pid)
        except ProcessLookupError:
            raise
        except (AttributeError, OSError):
            try:
                self._process = psutil.Process(pid)
            except psutil.NoSuchProcess:
                raise ProcessLookupError(pid) from None

    def wait(self, seconds: float) -> bool:
        if self._process is None:
            poll = select.poll()
            poll.register(self._fd, select.POLLIN)
            return bool(poll.poll(seconds * 1000))
        process = self._process
        return poll_until(lambda: not running(process), seconds, 0.1)

    def close(self) -> None:
        if self._fd >= 0:
            os.close(self._fd)


def _gone(processes: list[psutil.Process], seconds: float) -> list[psutil.Process]:
    """Wait up to `seconds` for these processes to end; return those that have not."""
    poll_until(lambda: not any(map(running, processes)), seconds, 0.01)
    return [each for each in processes if running(each)]
