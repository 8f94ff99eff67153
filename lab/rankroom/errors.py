"""The errors that a user may see. Each says what failed, where, and what to do, in one line.

Message templates are at the bottom of this file.
"""

from __future__ import annotations

import errno
from collections.abc import Mapping
from typing import Any


class RankroomError(Exception):
    """Anything Rankroom reports to its user; the magics and the CLI show it without a traceback."""

    def _render_traceback_(self) -> list[str]:
        # Called by IPython, instead of a traceback: our own frames would not help a user.
        return [str(self)]


class NoClusterError(RankroomError):
    """There is no cluster to run on."""


class UnreadableError(RankroomError):
    """The file of a cluster cannot be read, so it is unknown whether there is one."""


class NotYoursError(RankroomError):
    """A cluster or a workshop belongs to another user."""


class NotPrivateError(RankroomError):
    """Other users may have put files into a folder that must be Rankroom's own."""


class RunOverError(RankroomError):
    """The run has ended: there is nothing left to act on."""


class UsageError(RankroomError):
    """The arguments of a magic, command or call are invalid; the message lists the valid ones."""


class StartError(RankroomError):
    """A cluster did not start; the message carries the cause and the log's tail."""


class LabError(RankroomError):
    """JupyterLab on a compute node did not start, or has failed there."""


class UselessJob(LabError):
    """The job is running or pending, and will be of no use: it is best cancelled."""


class SchedulerError(RankroomError):
    """The scheduler does not reply as it should, so that nothing is known of a job."""


class SshError(RankroomError):
    """A login host cannot be reached, or not as requested; `why` is a reason of ssh/failures.py."""

    def __init__(self, message: str, why: str = "other") -> None:
        super().__init__(message)
        self.why = why


class CheckFailed(RankroomError):
    """A step of a site's check failed; the message says what to do."""


class CellError(RankroomError):
    """The cell cannot run anywhere; nothing was sent to the ranks."""


class RunFailed(RankroomError):
    """A run did not succeed; if a rank raised, the record holds its whole traceback."""


class RecordError(RankroomError):
    """A record cannot be read or written."""


class UnreadableRecordError(RecordError):
    """A record cannot be read now, so it is unknown whether it exists and in which state it is."""


class UnwrittenError(RecordError):
    """Only some lines of a record could be written to disk; `rest` are the others."""

    def __init__(self, message: str, rest: bytes = b"") -> None:
        super().__init__(message)
        self.rest = rest


class FileError(RankroomError):
    """A file system refused an operation."""


class HorovodBuildError(RankroomError):
    """Horovod could not be built or does not work."""


def file_error(error: OSError) -> FileError | None:
    """Return a one-line FileError for an error of a file system; None for another kind of error."""
    if error.errno not in REMEDIES:
        return None
    where = error.filename2 or error.filename
    path = where.decode(errors="replace") if isinstance(where, bytes) else where
    return FileError(f"{path or 'a file'}: {with_remedy(error)}")


def with_remedy(error: OSError) -> str:
    """Return the message of a system error without its path, and what to do about it, if known."""
    remedy = REMEDIES.get(error.errno or 0)
    return f"{error.strerror or error}; {remedy}" if remedy else str(error.strerror or error)


def raise_reported(answer: Mapping[str, Any]) -> None:
    """Raise the error in another process's reply, if there is one: of the class in this file that
    it names, else RankroomError."""
    if "error" in answer:
        kind = globals().get(str(answer["error"]))
        if not isinstance(kind, type) or not issubclass(kind, RankroomError):
            kind = RankroomError
        raise kind(answer["text"])


SET_HOME = "set RANKROOM_HOME to a folder that you may write to"
FREE_SPACE = "free some space (`rankroom runs prune`), or set RANKROOM_HOME to another file system"
REMEDIES = {
    errno.EDQUOT: f"your quota is used up: {FREE_SPACE}",
    errno.ENOSPC: FREE_SPACE,
    errno.EFBIG: FREE_SPACE,
    errno.EROFS: SET_HOME,
    errno.ENOTDIR: SET_HOME,
    errno.EACCES: f"check its permissions, and your ticket for this file system, or {SET_HOME}",
    errno.EPERM: f"check its permissions, or {SET_HOME}",
    errno.ESTALE: "its server was restarted or has replaced it: try again, in another folder",
    errno.EIO: "the disk or the server of this file system is in trouble: ask who runs it",
    errno.ENAMETOOLONG: "choose a shorter name, or set RANKROOM_HOME to a shorter path",
    errno.EMFILE: "this process has too many open files: `ulimit -n` says how many it may have",
    errno.ENFILE: "this machine has too many open files: wait, or ask who runs it",
}
EARLIER_SITE = (
    "the agent of cluster {name} on this machine is from an earlier, incompatible version: "
    "`kill {pid}` ends the agent, not the job; then `%cluster attach {name}` starts a new one"
)
SUPERVISOR_FAILED = (
    "the supervisor of cluster {name} failed to do that: {error}; see its log, `rankroom cluster "
    "log {name}`"
)
UNKNOWN_REQUEST = (
    "the supervisor of cluster {name} runs another version of Rankroom, which does not know the "
    "request {do!r}"
)
NO_CLUSTER = "no cluster yet: start one with `%cluster start --ranks 2`"
NOT_ASKED = "no rank is waiting for input"
ALREADY_ANSWERED = "this prompt was already answered, or is no longer open"
CLUSTER_STOPPED = "cluster {name} has been stopped: `%cluster start` starts a new one"
ENDED = "cluster {name} is over: {why}; `%cluster start` starts a new one"
