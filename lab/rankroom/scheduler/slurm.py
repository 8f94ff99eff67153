"""Slurm: a job's script as text, the commands to submit, query and cancel it, and their output.

Pure functions: the commands run here or over SSH. The formats are stable from Slurm 20 to 25;
`squeue --json` is not.
"""

from __future__ import annotations

import calendar
import contextlib
import re
import shlex
import time
from collections.abc import Iterable, Sequence
from dataclasses import replace

from rankroom.scheduler import job_end, reasons
from rankroom.scheduler.jobs import JobStatus, State, body
from rankroom.scheduler.site import Site, clock, parse_time

SQUEUE_FORMAT = "%i|%T|%r|%S|%N|%e|%j"  # id, state, reason, (expected) start, nodes, end, name
# Slurm's reason is from when it last considered the job, which is rare on a busy site: a limit on
# all of a user's jobs may be reported some time after the last other one has ended.
OWN_JOBS_PATIENCE_S = 180.0
END_WARNING_S = 120  # the batch shell gets SIGUSR1 this long before the job's time is over
SHELL_START_S = 60  # by then the shell has read the user's profile, and set its trap
# One job id per line in sbatch's output: `1234`, or `1234;cluster` with --parsable.
SUBMITTED = re.compile(r"^(?:Submitted batch job )?(\d+)(?:;\S+)?\s*$", re.MULTILINE)
SUBMIT = ["sbatch", "--parsable"]  # submits the script on its standard input
TEST = ["sbatch", "--test-only"]  # says whether that would be accepted
LIMITS = ["sinfo", "--noheader", "--format=%P|%l|%D"]  # prints each partition's limits
VERSION = ["sbatch", "--version"]
CANCEL = ["scancel"]
LOG = "{name}-{job}.log"  # the name of a job's output file
LIST = "squeue --me"  # lists the user's jobs, for people
# Times in UTC, as a login node's clock may use another zone; no selection of jobs but ours.
_SQUEUE_FILTERS = ("STATES", "PARTITION", "QOS", "ACCOUNT", "NAMES", "LICENSES", "USERS")
ENV = [
    "env", *(word for each in _SQUEUE_FILTERS for word in ("-u", f"SQUEUE_{each}")),
    *job_end.UTC_VARIABLES,
]  # fmt: skip
# The names of sbatch's variables for options that they are not named after.
_VARIABLES_BY_OPTION = {
    "array": ("ARRAY_INX",), "time": ("TIMELIMIT",), "no-requeue": ("REQUEUE",),
    "requeue": ("NO_REQUEUE",),
    **dict.fromkeys(("mem", "mem-per-cpu"), ("MEM_PER_NODE", "MEM_PER_CPU", "MEM_PER_GPU")),
}  # fmt: skip
_LONG_BY_SHORT_OPTION = {
    "A": "account", "C": "constraint", "J": "job-name", "N": "nodes", "c": "cpus-per-task",
    "n": "ntasks", "o": "output", "p": "partition", "q": "qos", "t": "time",
}  # fmt: skip
_SBATCH_LINE = re.compile(r"^#SBATCH (?:--([a-z-]+)|-([A-Za-z]))", re.MULTILINE)
# What is said of a job that is over.
OVER = re.compile(r"Invalid job id|already completing or completed")
# What is said if a job was sent, and no reply came: it may have been accepted.
LOST = re.compile(
    r"Socket timed out|Zero Bytes were|Message (send|receive) failure|Communication shutdown"
)

_ENDED: tuple[str, ...] = (
    "BOOT_FAIL", "CANCELLED", "COMPLETED", "DEADLINE", "FAILED", "NODE_FAIL", "OUT_OF_MEMORY",
    "PREEMPTED", "TIMEOUT",
)  # fmt: skip
_STATES: dict[str, State] = {
    "PENDING": "pending",
    "CONFIGURING": "pending",
    "REQUEUED": "pending",
    "REQUEUE_HOLD": "pending",
    "SPECIAL_EXIT": "pending",
    "RESV_DEL_HOLD": "pending",
    "REQUEUE_FED": "pending",
    "REVOKED": "pending",  # as far as this cluster knows: another one may run it
    "RUNNING": "running",
    "SUSPENDED": "running",
    "STOPPED": "running",
    "SIGNALING": "running",
    "STAGE_OUT": "ending",
    "COMPLETING": "ending",
    **dict.fromkeys(_ENDED, "ended"),
}
# The reason for jobs in these states, whatever Slurm's own.
_REASON_BY_STATE = {
    "CONFIGURING": "its nodes are being prepared",
    "REVOKED": "another cluster of the federation, which Rankroom cannot reach, has taken it over",
}


def script(site: Site, name: str, folder: str, commands: Sequence[str]) -> str:
    """Return the job script that runs `commands` in the batch shell; its log goes to `folder`.

    All options for Slurm are in its header, so that the script can be submitted, kept and
    understood on its own.
    """
    job = site.job
    asked = {
        "job-name": name,
        "output": f"{folder}/%x-%j.log",
        "nodes": job.nodes,
        "ntasks-per-node": site.ranks_per_node,
        "gpus-per-node": job.gpus_per_node,
        "cpus-per-task": job.cpus_per_task,
        "mem": job.memory_per_node,
        "mem-per-cpu": job.memory_per_cpu,
        "time": clock(site.seconds),
        "account": job.account,
        "partition": job.partition,
        "qos": job.qos,
        "constraint": job.constraint,
        "reservation": job.reservation,
        # The batch shell is signaled, not its steps. In a short job that would happen at once and
        # end the shell: while it reads the user's profile, it has no trap.
        "signal": f"B:USR1@{END_WARNING_S}" if site.seconds > END_WARNING_S + SHELL_START_S else "",
    }
    head = [f"#SBATCH --{key}={_word(value)}" for key, value in asked.items() if value]
    # A failed node is no reason to end the others: lost ranks are reported, and the ranks' output
    # stays. Ranks lose their state with a job, so running it again gains nothing.
    head += ["#SBATCH --no-kill", "#SBATCH --no-requeue"]
    head += [f"#SBATCH {line}" for line in job.extra]
    # Else the signal would end the shell, and whatever replaces it before that has a handler: a
    # signal that is ignored stays so across `exec`. The commands' own trap replaces this one.
    warned = ["", "trap '' USR1"]
    # A login shell, which makes `module` and `conda` known.
    return "\n".join(["#!/bin/bash -l", *head, *warned, *body(site, commands)])


def unset(script: str) -> list[str]:
    """Return the variables by which sbatch would override what a script asks for.

    Those for other options stay: a user's account, or a site's `SBATCH_EXPORT`.
    `SBATCH_CLUSTERS` goes in any case, as jobs are looked for on one cluster only.
    """
    asked = [
        long or _LONG_BY_SHORT_OPTION.get(short, "") for long, short in _SBATCH_LINE.findall(script)
    ]
    names = [
        name
        for key in filter(None, asked)
        for name in _VARIABLES_BY_OPTION.get(key, (key.upper().replace("-", "_"),))
    ]
    return [f"SBATCH_{name}" for name in dict.fromkeys(["CLUSTERS", *names])]


def partition(said: str) -> str:
    """Return the partition that a job would be in, from the output of its test."""
    match = re.search(r" in partition (\S+)", said)
    return match[1] if match else ""


def too_much(site: Site, output: str) -> str:
    """Return what a job requests beyond all its partitions' limits, in words; empty if nothing.

    At many sites, Slurm accepts such a job and never starts it.
    """
    names = site.job.partition.split(",") if site.job.partition else []
    why = ""
    for line in output.splitlines():
        name, longest, nodes = ([*line.split("|"), "", ""])[:3]
        if name.rstrip("*") not in names and not (name.endswith("*") and not names):
            continue
        with contextlib.suppress(ValueError):
            if site.seconds > parse_time(longest):
                about = (clock(site.seconds), name.rstrip("*"), longest)
                why = "it asks for {}, and the partition {} gives {} at most".format(*about)
                continue
        if nodes.isdigit() and site.job.nodes > int(nodes):
            asked = "1 node" if site.job.nodes == 1 else f"{site.job.nodes} nodes"
            why = f"it asks for {asked}, and {name.rstrip('*')} has {nodes}"
            continue
        return ""
    return why


def ask(ids: Iterable[str]) -> list[str]:
    """Return the command that queries many jobs at once."""
    # One unknown id makes `--jobs` fail for all; the user's own jobs are few, including those in
    # hidden partitions. In a federation only this cluster is queried, as for everything else.
    del ids
    return [*ENV, "squeue", "--noheader", "--me", "--all", "--local", f"--format={SQUEUE_FORMAT}"]


def ask_otherwise(ids: Iterable[str], output: str) -> list[str]:
    """Return the command to try after `ask` failed with this output; empty if there is none."""
    return []


def is_partial(output: str) -> bool:
    """Return whether a query that failed did so only for jobs that are over: never here."""
    return False


def is_silent_on(output: str, job: str) -> bool:
    """Return whether the output of `ask` leaves it open if a job is over: never, as it has all."""
    return False


def ask_alone(job: str) -> list[str]:
    """Return the command that queries one job that no list has: for some minutes after a job has
    ended, it reports how."""
    return ["env", *job_end.UTC_VARIABLES, "scontrol", "show", "job", "--oneliner", job]


def ended(output: str, job: str) -> JobStatus | None:
    """Return how a job ended by the output of `ask_alone`; None if it has not, or is unknown."""
    state = job_end.field(output, "JobState")
    if _STATES.get(state) != "ended":
        return None
    return JobStatus(job, "ended", state.lower().replace("_", " "))


ALIVE = ask([])  # succeeds if Slurm works


def find(name: str) -> list[str]:
    """Return the command that lists the user's jobs of this name, or more."""
    return ask([])


def found(output: str, name: str) -> list[str]:
    """Return the ids of the jobs of this name in the output of `find` that are not over."""
    over = ("ending", "ended")
    jobs = listed(output).values()
    return [each.id for each in jobs if each.name == name and each.state not in over]


def listed(output: str) -> dict[str, JobStatus]:
    """Return all jobs in the output of `ask`, by id."""
    found, others = {}, False
    for line in output.splitlines():
        fields = line.strip().split("|", SQUEUE_FORMAT.count("|"))
        if len(fields) != SQUEUE_FORMAT.count("|") + 1:
            continue
        status = _status(*fields)
        others |= status.state != "pending"
        if fields[0].isdigit():  # no task of an array, and no part of a heterogeneous job
            found[fields[0]] = status
    if others:
        return found
    # Limits on all of a user's jobs together do not pass if no other job is there to end.
    return {
        job: replace(status, never=True, patience=OWN_JOBS_PATIENCE_S)
        if reasons.of_all_jobs(status.reason) and not status.never
        else status
        for job, status in found.items()
    }


def _status(
    job: str, state: str, reason: str, start: str, nodes: str, end: str, name: str
) -> JobStatus:
    kind = _STATES.get(state, "running")  # a job in an unknown state must not be ended
    reason = "" if reason in ("None", "(null)", "") else reason
    # Slurm says "ReqNodeNotAvail, UnavailableNodes:c3" and "(Resources)".
    key = reason.strip("()").partition(",")[0]
    words, never = reasons.why(key, reason) if kind == "pending" else ("", False)
    if state in _REASON_BY_STATE:
        reason, start, never = _REASON_BY_STATE[state], "", False
    elif kind == "pending":
        reason = f"{key}: {words}" if words else reason
    elif kind == "ended":
        reason = state.lower().replace("_", " ")
    expected = _epoch(start) if kind == "pending" else 0.0
    # While a job is suspended its time stops; its end is postponed when it resumes.
    is_suspended = state in ("SUSPENDED", "STOPPED")
    until = _epoch(end) if kind == "running" and not is_suspended else 0.0
    return JobStatus(
        job, kind, reason, expected, _nodes(nodes), until, never, name, is_suspended=is_suspended
    )


def _epoch(text: str) -> float:
    try:
        return float(calendar.timegm(time.strptime(text, "%Y-%m-%dT%H:%M:%S")))
    except ValueError:
        return 0.0


def _nodes(text: str) -> str:
    return "" if text in ("(null)", "None assigned", "") else text


def _word(value: object) -> str:
    text = str(value)
    # Slurm strips one pair of quotes; percent signs are its own patterns and stay.
    return text if re.fullmatch(r"[\w@%+=:,./&|$~\[\]-]*", text) else shlex.quote(text)
