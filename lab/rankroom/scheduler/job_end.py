"""When a Slurm job's time is over, polled as it may be changed, and why a job ended."""

from __future__ import annotations

import calendar
import re
import subprocess
import threading
import time

COMMAND_TIMEOUT_S = 20.0  # every Slurm command waits 9 s when the controller is down
SHORT_COMMAND_TIMEOUT_S = 2.0  # the same while a job is being ended: little time is left
MIN_POLL_INTERVAL_S, MAX_POLL_INTERVAL_S = (
    10.0,
    60.0,
)  # between two queries; more often as the end approaches
UTC_VARIABLES = ["TZ=UTC", "SLURM_TIME_FORMAT=standard"]  # how Slurm's commands print times
POLL_INTERVAL_FRACTION = 0.1  # of the time left, between two queries

_OVER = "the time of job {job} is over"
_REASON_BY_STATE = {
    "TIMEOUT": _OVER,
    "DEADLINE": "the deadline of job {job} has passed",
    "CANCELLED": "job {job} was cancelled",
    "PREEMPTED": "job {job} was preempted by another job",
    "NODE_FAIL": "a node of job {job} has failed",
    "OUT_OF_MEMORY": "job {job} ran out of memory",
    "BOOT_FAIL": "a node of job {job} failed to boot",
    "REQUEUED": "job {job} was requeued",
    "PENDING": "job {job} was requeued",
    "FAILED": "job {job} has ended",
    "COMPLETED": "job {job} has ended",
    # On the way to one of the above; by now only a time limit is given as the reason.
    "COMPLETING": "job {job} was cancelled or has ended",
}
_REASON_BY_FIELD = {
    "TimeLimit": _OVER,
    "NodeDown": _REASON_BY_STATE["NODE_FAIL"],
    "Preempted": _REASON_BY_STATE["PREEMPTED"],
}
# What a step's log says about its end.
_REASON_BY_LOG_TEXT = {
    "DUE TO TIME LIMIT": _OVER,
    "DUE TO PREEMPTION": _REASON_BY_STATE["PREEMPTED"],
    "DUE TO NODE FAILURE": _REASON_BY_STATE["NODE_FAIL"],
    "DUE TO JOB REQUEUE": _REASON_BY_STATE["REQUEUED"],
}


def query_job(job: str, seconds: float = COMMAND_TIMEOUT_S) -> str:
    """Return Slurm's description of a job; empty if it does not answer, or there is no Slurm."""
    words = ["env", *UTC_VARIABLES, "scontrol", "show", "job", "--oneliner", job]
    try:
        done = subprocess.run(
            words, stdin=subprocess.DEVNULL, capture_output=True, text=True, errors="replace",
            timeout=seconds,
        )  # fmt: skip
    except (OSError, subprocess.TimeoutExpired):
        return ""
    return own_lines(done.stdout, job) if done.returncode == 0 else ""


def own_lines(said: str, job: str) -> str:
    """Return the lines about this job: one task of an array has the number of them all."""
    own = [line for line in said.splitlines() if line.startswith(f"JobId={job} ")]
    return "\n".join(own) or said


def field(said: str, name: str) -> str:
    """Return a field in the output of `scontrol show job`; empty if it is not there."""
    match = re.search(rf"\b{name}=(\S+)", said)
    return match[1] if match else ""


def end_time(said: str) -> float:
    """Return when the job's time is over (epoch seconds), from output in UTC; 0 if it never is."""
    try:
        return float(calendar.timegm(time.strptime(field(said, "EndTime"), "%Y-%m-%dT%H:%M:%S")))
    except ValueError:
        return 0.0


def why_over(said: str, job: str) -> str:
    """Return why a job ends or has ended, from Slurm's description; empty if it does not."""
    words = _REASON_BY_FIELD.get(field(said, "Reason")) or _REASON_BY_STATE.get(
        field(said, "JobState")
    )
    return words.format(job=job) if words else ""


def why_over_now(job: str) -> str:
    """Ask Slurm why a job ends or has ended, in words; empty if it does not. Quick."""
    return why_over(query_job(job, SHORT_COMMAND_TIMEOUT_S), job)


def why_cancelled(log: str, job: str) -> str:
    """Return why a job was ended, in words, from a step's log; empty if the log does not say so."""
    if "CANCELLED AT" not in log:
        return ""
    words = next(
        (words for sign, words in _REASON_BY_LOG_TEXT.items() if sign in log),
        _REASON_BY_STATE["CANCELLED"],
    )
    return words.format(job=job)


class JobEnd:
    """When the time of `job` is over, as Slurm last reported it; polled in a thread of its own.

    `over` is why the job is no longer running, or empty. It is for a process that outlives the job:
    one that was cut off from Slurm, or is outside of the job.
    """

    def __init__(self, job: str, until: float) -> None:
        self.job = job
        self.until = until
        self.over = ""
        self._restarts = ""  # how often the job had been requeued at the first query

    def start_polling(self) -> None:
        """Start to poll Slurm."""
        threading.Thread(target=self._follow, name="rankroom-job-end", daemon=True).start()

    def why(self) -> str:
        """Return why this job is being ended, in words; empty if that is unknown. Quick."""
        if self.over:
            return self.over
        if self.until and time.time() >= self.until:
            return _OVER.format(job=self.job)
        return self._why(query_job(self.job, SHORT_COMMAND_TIMEOUT_S))

    def _follow(self) -> None:
        while not self.over:
            if said := query_job(self.job):
                self.update(said)
            left = (
                self.until - time.time()
                if self.until
                else MAX_POLL_INTERVAL_S / POLL_INTERVAL_FRACTION
            )
            time.sleep(
                min(MAX_POLL_INTERVAL_S, max(MIN_POLL_INTERVAL_S, POLL_INTERVAL_FRACTION * left))
            )

    def update(self, said: str) -> None:
        """Update the state from Slurm's current description of the job."""
        self.until = end_time(said)
        self._restarts = self._restarts or field(said, "Restarts")
        why = self._why(said)
        self.over = "" if field(said, "JobState") == "COMPLETING" else why

    def _why(self, said: str) -> str:
        restarts = field(said, "Restarts")
        if self._restarts and restarts and restarts != self._restarts:
            return _REASON_BY_STATE["REQUEUED"].format(job=self.job)  # Slurm runs its script again
        return why_over(said, self.job)
