"""A process with all it has started: found without names, ended as a whole.

Children are found by descent, and by a mark in their environment: what a dead rank leaves behind
may be no child of ours any more, and what runs in a session of its own gets no signal of a group.
A mark names a folder, and counts where that is the same folder to its process: a container may have
another one with the same path.
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

CLUSTER = "RANKROOM_CLUSTER"  # in the environment of all that a cluster starts: its folder
START = "RANKROOM_START"  # in a rank's environment: how often it has been started
AGENT = "RANKROOM_AGENT"  # in the environment of a node's agent and all below it: which one it is
SPOOL = "RANKROOM_SPOOL"  # in the environment of all that a rank starts
JOB = "RANKROOM_JOB"  # beside these marks: the scheduler's job that they were given in
BEGAN = 19  # of the fields in /proc/PID/stat that follow the name
SUBREAPER = 36  # PR_SET_CHILD_SUBREAPER
KILL_S = 0.5  # a child that has not ended this long after SIGTERM is killed


def descendants(pids: Iterable[int]) -> set[psutil.Process]:
    """The children of these processes, and theirs, and so on; in whatever session."""
    found: set[psutil.Process] = set()
    for pid in pids:
        with contextlib.suppress(psutil.Error):
            found |= set(psutil.Process(pid).children(recursive=True))
    return found


def adopt_orphans() -> None:
    """Have processes below this one become its children when their parent ends, where they would
    become those of process 1: so they are found by descent, whatever is in their environment. This
    process is to reap them."""
    if sys.platform == "linux":
        import ctypes  # here, because not every process that imports this pays for it

        with contextlib.suppress(OSError):
            ctypes.CDLL(None).prctl(SUBREAPER, 1, 0, 0, 0)


def marked(variable: str, folder: Path) -> set[psutil.Process]:
    """The processes of this user whose environment says that they belong to `folder`; not this."""
    return {
        process
        for process, environment in _carriers(variable)
        if environment[variable] == str(folder) and _has_our(process, variable, environment)
    }


def belonging(variable: str) -> Iterator[tuple[psutil.Process, str]]:
    """The other processes of this user that have `variable` in their environment, and its value."""
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
    """Whether the folder that a mark names is the same to its process as it is here."""
    value = environment[variable]
    # What follows its cluster's folder in an agent's mark is no file.
    folder = value.rsplit("/", 2)[0] if variable == AGENT else value
    return path_views.is_same(process.pid, Path(folder))


def job(environment: Mapping[str, str]) -> str:
    """The scheduler's job that a process with this environment is in; empty outside of one."""
    return environment.get("SLURM_JOB_ID") or environment.get("PBS_JOBID", "")


def _was_submitted(environment: Mapping[str, str]) -> bool:
    """Whether it is another job's, which took the marks along as it was submitted by a cell."""
    return JOB in environment and job(environment) not in ("", environment[JOB])


def end(processes: Iterable[psutil.Process], seconds: float = KILL_S) -> None:
    """Ask these processes to end, kill those that do not, and wait until all are gone."""
    left = [each for each in processes if running(each)]
    for process in left:
        with contextlib.suppress(psutil.Error):
            process.terminate()
    left = _gone(left, seconds)
    for process in left:
        with contextlib.suppress(psutil.Error):
            process.kill()
    _gone(left, KILL_S)


def running(process: psutil.Process) -> bool:
    """True unless the process has ended; one that waits to be reaped has."""
    try:
        return bool(process.is_running() and process.status() != psutil.STATUS_ZOMBIE)
    except psutil.Error:
        return False
    except OSError:  # this process is out of descriptors, say: nothing was found out
        return True


def began(pid: int) -> int | None:
    """When a process of this place began, in ticks since boot: this tells it from a later one with
    its number, whatever happens to the clock. None if it has ended, 0 if that cannot be told."""
    try:
        fields = Path(f"/proc/{pid}/stat").read_bytes().rpartition(b") ")[2].split()
        return None if fields[0] in (b"Z", b"X") else int(fields[BEGAN])
    except (FileNotFoundError, ProcessLookupError):
        return None
    except (OSError, ValueError, IndexError):  # this process is out of descriptors, say
        return 0


def lives(pid: int, since: int = 0) -> bool:
    """Whether the process of this number that began at `since`, if that is known, still runs."""
    found = began(pid) if pid > 0 else None
    return found is not None and (not since or not found or found == since)


def is_marked(pid: int, variable: str, folder: Path) -> bool:
    """Whether the process that has this number now belongs to `folder`, or may do so."""
    try:
        return bool(psutil.Process(pid).environ().get(variable) == str(folder))
    except psutil.NoSuchProcess:
        return False
    except (psutil.Error, OSError):
        return True


def ended_within(pid: int, seconds: float) -> bool:
    """Wait up to `seconds` for a process, which need not be a child; whether it has ended."""
    try:
        with contextlib.closing(_Watch(pid)) as watch:
            return watch.wait(seconds)
    except ProcessLookupError:
        return True


class _Watch:
    """One process, watched without looking where the system can do that."""

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
    """Wait up to `seconds` for these to end; which have not."""
    poll_until(lambda: not any(map(running, processes)), seconds, 0.01)
    return [each for each in processes if running(each)]
