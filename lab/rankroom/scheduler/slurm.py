"""Slurm: a job's script as text, the words of its three commands, and what their answers mean.

All of it pure: these words submit, ask and cancel, run here or over SSH. The
formats are those that hold from Slurm 20 to 25; `squeue --json` does not.
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

FORMAT = "%i|%T|%r|%S|%N|%e|%j"  # id, state, reason, (expected) start, nodes, end, name
# Slurm says why a job waits as it was with its last look at it, which is rare on a busy site: a
# limit on all of a user's jobs may be said some time after the last other one has ended.
OWN_JOBS_S = 180.0
WARNING_S = 120  # the batch shell gets SIGUSR1 so long before the job's time is over
BEGINS_S = 60  # by then the shell has read the user's profile, and set its trap
# One number per line in sbatch's answers: `1234`, or `1234;cluster` with --parsable.
SUBMITTED = re.compile(r"^(?:Submitted batch job )?(\d+)(?:;\S+)?\s*$", re.MULTILINE)
SUBMIT = ["sbatch", "--parsable"]  # submits the script on its standard input
TEST = ["sbatch", "--test-only"]  # says whether that would be accepted
LIMITS = ["sinfo", "--noheader", "--format=%P|%l|%D"]  # says what each partition gives at most
VERSION = ["sbatch", "--version"]
CANCEL = ["scancel"]
LOG = "{name}-{job}.log"  # how a job's output is called
LIST = "squeue --me"  # lists them, for people
# Times in UTC, as a login node's clock may show another zone's; no choice of jobs but ours.
_CHOICES = ("STATES", "PARTITION", "QOS", "ACCOUNT", "NAMES", "LICENSES", "USERS")
ENV = [
    "env", *(word for each in _CHOICES for word in ("-u", f"SQUEUE_{each}")), *job_end.UTC,
]  # fmt: skip
# What sbatch calls the variables of options that are not named after them.
_NAMES = {
    "array": ("ARRAY_INX",), "time": ("TIMELIMIT",), "no-requeue": ("REQUEUE",),
    "requeue": ("NO_REQUEUE",),
    **dict.fromkeys(("mem", "mem-per-cpu"), ("MEM_PER_NODE", "MEM_PER_CPU", "MEM_PER_GPU")),
}  # fmt: skip
_SHORT = {
    "A": "account", "C": "constraint", "J": "job-name", "N": "nodes", "c": "cpus-per-task",
    "n": "ntasks", "o": "output", "p": "partition", "q": "qos", "t": "time",
}  # fmt: skip
_ASKED = re.compile(r"^#SBATCH (?:--([a-z-]+)|-([A-Za-z]))", re.MULTILINE)
# What it says of a job that is over already; and what a list of jobs says that failed, and is one.
OVER = re.compile(r"Invalid job id|already completing or completed")
PARTLY = re.compile(r"(?!)")
# What is said where a job was sent, and no answer came: it may have been accepted.
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
# What is said of a job in these, whatever its reason.
_WORDS = {
    "CONFIGURING": "its nodes are being made ready",
    "REVOKED": "it is left to another cluster of the federation, where Rankroom does not reach it",
}


def script(site: Site, name: str, folder: str, commands: Sequence[str]) -> str:
    """The job script that runs `commands` in the batch shell; its log goes to `folder`.

    Everything that Slurm is asked for stands in its head, so that the script alone can be
    submitted, kept and understood.
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
        # The shell of the script is warned, not its steps. That of a short job would be at once,
        # and end: while it reads the user's profile, it has no trap.
        "signal": f"B:USR1@{WARNING_S}" if site.seconds > WARNING_S + BEGINS_S else "",
    }
    head = [f"#SBATCH --{key}={_word(value)}" for key, value in asked.items() if value]
    # One node that fails is no reason to end the others: lost ranks are named, and what ranks said
    # stays. What ranks held is gone with a job, so that nothing is won by running it again.
    head += ["#SBATCH --no-kill", "#SBATCH --no-requeue"]
    head += [f"#SBATCH {line}" for line in job.extra]
    # Or the warning would end the shell, and what takes its place until that has a handler: what is
    # ignored outlives `exec`. A trap of the commands' own takes the place of this one.
    warned = ["", "trap '' USR1"]
    # A login shell: it is what makes `module` and `conda` known.
    return "\n".join(["#!/bin/bash -l", *head, *warned, *body(site, commands)])


def unset(script: str) -> list[str]:
    """The variables that would have sbatch take something else than what a script asks for.

    Those of what it does not ask for stay: a user's account, or a site's `SBATCH_EXPORT`.
    """
    asked = [long or _SHORT.get(short, "") for long, short in _ASKED.findall(script)]
    names = [
        name
        for key in filter(None, asked)
        for name in _NAMES.get(key, (key.upper().replace("-", "_"),))
    ]
    return [f"SBATCH_{name}" for name in dict.fromkeys(names)]


def partition(said: str) -> str:
    """The partition that a job would be in, of what was said of it when it was tested."""
    match = re.search(r" in partition (\S+)", said)
    return match[1] if match else ""


def too_much(site: Site, output: str) -> str:
    """What a job asks for beyond all its partitions' limits, in words; empty if nothing.

    Slurm accepts such a job at many sites, and never starts it.
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
    """The one command that asks for many jobs."""
    # An id that is gone makes `--jobs` fail for all; the user's own jobs are few, those in hidden
    # partitions included. Of a federation, this cluster alone is asked, as it is for all else.
    del ids
    return [*ENV, "squeue", "--noheader", "--me", "--all", "--local", f"--format={FORMAT}"]


def ask_otherwise(ids: Iterable[str], output: str) -> list[str]:
    """How to ask where that fails, as its output says; nothing for no other way."""
    return []


def ask_alone(job: str) -> list[str]:
    """The command that asks for one job that no list has: of one that has ended, it knows for some
    minutes how."""
    return ["env", *job_end.UTC, "scontrol", "show", "job", "--oneliner", job]


def ended(output: str, job: str) -> JobStatus | None:
    """How that job ended by its answer; None while it has not, or if that cannot be told."""
    state = job_end.field(output, "JobState")
    if _STATES.get(state) != "ended":
        return None
    return JobStatus(job, "ended", state.lower().replace("_", " "))


ALIVE = ask([])  # is answered where Slurm works


def find(name: str) -> list[str]:
    """The command that lists the user's jobs of this name, or more of them."""
    return ask([])


def found(output: str, name: str) -> list[str]:
    """The ids of the jobs of this name in its answer that are not over."""
    over = ("ending", "ended")
    jobs = listed(output).values()
    return [each.id for each in jobs if each.name == name and each.state not in over]


def listed(output: str) -> dict[str, JobStatus]:
    """All jobs of an answer."""
    found, others = {}, False
    for line in output.splitlines():
        fields = line.strip().split("|", FORMAT.count("|"))
        if len(fields) != FORMAT.count("|") + 1:
            continue
        status = _status(*fields)
        others |= status.state != "pending"
        if fields[0].isdigit():  # no task of an array, and no part of a job of several
            found[fields[0]] = status
    if others:
        return found
    # Limits on all of a user's jobs together do not pass when there is nothing to wait for.
    return {
        job: replace(status, never=True, patience=OWN_JOBS_S)
        if reasons.of_all_jobs(status.reason) and not status.never
        else status
        for job, status in found.items()
    }


def _status(
    job: str, state: str, reason: str, start: str, nodes: str, end: str, name: str
) -> JobStatus:
    kind = _STATES.get(state, "running")  # of one that is not known here nobody ends a job
    reason = "" if reason in ("None", "(null)", "") else reason
    # Slurm says "ReqNodeNotAvail, UnavailableNodes:c3" and "(Resources)".
    key = reason.strip("()").partition(",")[0]
    words, never = reasons.why(key, reason) if kind == "pending" else ("", False)
    if state in _WORDS:
        reason, start, never = _WORDS[state], "", False
    elif kind == "pending":
        reason = f"{key}: {words}" if words else reason
    elif kind == "ended":
        reason = state.lower().replace("_", " ")
    expected = _epoch(start) if kind == "pending" else 0.0
    # While a job is suspended, its time stands still, and its end is put off when it goes on.
    until = _epoch(end) if kind == "running" and state != "SUSPENDED" else 0.0
    return JobStatus(job, kind, reason, expected, _nodes(nodes), until, never, name)


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
