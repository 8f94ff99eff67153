"""Whether a job that was granted is over, as seen from outside of it.

A scheduler forgets jobs some minutes after their end. So a job that it does not know is over, but
only if the scheduler knows the job's nodes: this may be the login node of another cluster. Once the
job's time is long past, it is over even without an answer.
"""

from __future__ import annotations

import os
import subprocess
from collections.abc import Sequence
from typing import Literal

from rankroom.errors import SchedulerError
from rankroom.record.cluster_file import Allocation, is_past
from rankroom.scheduler import job_end, pbs, slurm
from rankroom.scheduler.allocation import expand

# "ending": processes of the job may be left. "on": it runs, or may run again.
State = Literal["on", "ending", "over", "unknown"]


def state(granted: Allocation) -> State:
    """Return the state of a job from its scheduler; "unknown" without an answer. Quick."""
    return _pbs(granted) if granted.scheduler == "pbs" else _slurm(granted)


def is_over(granted: Allocation) -> bool:
    """Return whether a job is known to be over or ending."""
    said = state(granted)
    return said in ("ending", "over") or (said == "unknown" and is_past(granted.until))


def _slurm(granted: Allocation) -> State:
    job = granted.job
    code, said = _asked(
        ["env", *job_end.UTC_VARIABLES, "scontrol", "show", "job", "--oneliner", job]
    )
    if code:
        is_gone = slurm.OVER.search(said) and _knows(granted, ["scontrol", "--all", "show", "node"])
        return "over" if is_gone else "unknown"
    said = job_end.own_lines(said, job)
    if not _is_granted(said, granted):
        return "unknown"
    if not job_end.why_over(said, job):
        return "on" if job_end.field(said, "JobState") else "unknown"
    return "ending" if job_end.field(said, "JobState") == "COMPLETING" else "over"


def _is_granted(said: str, granted: Allocation) -> bool:
    """Return whether Slurm speaks of the job that was granted: with a home that clusters share, it
    may be another cluster's Slurm, which has a job of the same number."""
    user, nodes = job_end.field(said, "UserId"), job_end.field(said, "NodeList")
    if user and not user.endswith(f"({os.getuid()})"):
        return False
    # A job that was put back into the queue has none.
    names = [] if nodes in ("", "(null)") else expand(nodes)
    return not names or any(node.name in names for node in granted.nodes)


def _pbs(granted: Allocation) -> State:
    ids = [granted.job]
    code, said = _asked(pbs.ask(ids))
    if code and (otherwise := pbs.ask_otherwise(ids, said)):
        code, said = _asked(otherwise)
    try:
        status = pbs.listed(said).get(granted.job)
    except SchedulerError:
        return "unknown"
    if status is None:
        is_gone = pbs.OVER.search(said) and _knows(granted, ["pbsnodes"])
        return "over" if is_gone else "unknown"
    if status.state in ("ending", "ended"):
        return "ending" if status.state == "ending" else "over"
    return "on"


def _knows(granted: Allocation, words: Sequence[str]) -> bool:
    """Return whether this scheduler is the one that granted the job: it knows the job's node."""
    return bool(granted.nodes) and _asked([*words, granted.nodes[0].name])[0] == 0


def _asked(words: Sequence[str]) -> tuple[int, str]:
    """Run a command; return its status and output, 127 and none if it fails to run or times out."""
    try:
        done = subprocess.run(
            words, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.STDOUT,
            text=True, errors="replace", timeout=job_end.SHORT_COMMAND_TIMEOUT_S,
        )  # fmt: skip
    except (OSError, subprocess.TimeoutExpired):
        return 127, ""
    return done.returncode, done.stdout
