"""Slurm: a job's script as text, the words of its three commands, and what their answers mean.

All of it pure: whoever submits, asks and cancels does so with these words, here or over SSH. The
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

from rankroom.errors import StartError
from rankroom.scheduler.jobs import JobStatus, State, body
from rankroom.site import Site, clock, parse_time

FORMAT = "%i|%T|%r|%S|%N|%e|%j"  # id, state, reason, (expected) start, nodes, end, name
WARNING_S = 120  # the batch shell gets SIGUSR1 so long before the job's time is over
# One number per line in sbatch's answers: `1234`, or `1234;cluster` with --parsable.
_SUBMITTED = re.compile(r"^(?:Submitted batch job )?(\d+)(?:;\S+)?\s*$", re.MULTILINE)

_STATES: dict[str, State] = {
    "PENDING": "pending",
    "CONFIGURING": "pending",
    "REQUEUED": "pending",
    "REQUEUE_HOLD": "pending",
    "SPECIAL_EXIT": "pending",
    "RESV_DEL_HOLD": "pending",
    "REQUEUE_FED": "pending",
    "RUNNING": "running",
    "SUSPENDED": "running",
    "STOPPED": "running",
    "SIGNALING": "running",
    "STAGE_OUT": "ending",
    "COMPLETING": "ending",
}
# Why a job waits, in words; those of _NEVER do not pass by waiting.
_REASONS = {
    "Priority": "others are before it",
    "Resources": "no nodes are free",
    "Dependency": "it waits for another job",
    "BeginTime": "its begin time has not come",
    "JobHeldUser": "it is held: `scontrol release` lets it go",
    "JobHeldAdmin": "an administrator holds it",
    "ReqNodeNotAvail": "nodes that it needs are down or reserved",
    "Reservation": "its reservation has not begun",
    "Licenses": "no licence is free",
    "QOSMaxJobsPerUserLimit": "you have as many jobs as the QoS allows: it waits for yours",
    "AssocMaxJobsLimit": "your account has as many jobs as it may: it waits for them",
    "Cleaning": "an earlier try is being cleaned up",
}
_NEVER = {
    "PartitionTimeLimit": "it asks for more time than the partition allows",
    "PartitionNodeLimit": "it asks for more nodes than the partition has",
    # What is said at first of every limit of the partition; a look later it is one of those above.
    "PartitionConfig": "it asks for more time, nodes or CPUs than the partition gives",
    "BadConstraints": "no node fits what it asks for",
    "InvalidAccount": "its account is not valid",
    "InvalidQOS": "its QoS is not valid",
    "AccountNotAllowed": "its account may not use this partition",
    "QOSNotAllowed": "its QoS may not be used in this partition or by this account",
    "DependencyNeverSatisfied": "it waits for a job that has failed",
    "PartitionDown": "the partition is down",
    "PartitionInactive": "the partition is inactive",
    "ReservationDeleted": "its reservation is gone",
    "ReservationInvalid": "its reservation is not valid",
    "DeadLine": "its deadline has passed",
}
_NEVER_IN_WORDS = re.compile(r"can't use this partition|not permitted to use this partition")
# The others are made of parts, like QOSMaxGRESPerUser or AssocGrpCPUMinutesLimit.
_LIMIT = re.compile(
    r"(?P<whose>QOS|Assoc)(?P<kind>Max|Min|Grp)(?P<what>[A-Z]+(?=Run|Per|Min|$)|[A-Z][a-zA-Z]*?)"
    r"(?P<span>RunMin(?:ute)?s|Min(?:ute)?sPerJob|Minutes|PerJob|PerNode|PerUser|PerAccount)?"
    r"(?:NotSatisfied)?(?:Limit)?"
)
_PER_USER = re.compile(r"QOSMax(?!Jobs|SubmitJob)\w+PerUser")
_AMOUNTS = {
    "cpu": "CPUs", "gres": "GPUs", "node": "nodes", "mem": "memory", "memory": "memory",
    "wall": "time", "wallduration": "time", "jobs": "jobs", "submitjob": "jobs",
    "submitjobs": "jobs", "billing": "billing units", "license": "licences", "energy": "energy",
}  # fmt: skip


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
        # The shell of the script is warned, not its steps.
        "signal": f"B:USR1@{WARNING_S}",
    }
    head = [f"#SBATCH --{key}={_word(value)}" for key, value in asked.items() if value]
    # One node that fails is no reason to end the others: who is lost is told, and what ranks said
    # stays. What ranks held is gone with a job, so that nothing is won by running it again.
    head += ["#SBATCH --no-kill", "#SBATCH --no-requeue"]
    head += [f"#SBATCH {line}" for line in job.extra]
    # Or the warning would end the shell; a trap of the commands' own takes its place.
    warned = ["", "trap : USR1"]
    # A login shell: it is what makes `module` and `conda` known.
    return "\n".join(["#!/bin/bash -l", *head, *warned, *body(site, commands)])


def submit() -> list[str]:
    """The command that submits the script on its standard input."""
    return ["sbatch", "--parsable"]


def version() -> list[str]:
    """The command that says which Slurm this is."""
    return ["sbatch", "--version"]


def alive() -> list[str]:
    """The command that is answered where Slurm works."""
    return ask([])


def test() -> list[str]:
    """The command that says whether the script on its standard input would be accepted."""
    return ["sbatch", "--test-only"]


def limits() -> list[str]:
    """The command that says what each partition gives at most."""
    return ["sinfo", "--noheader", "--format=%P|%l|%D"]


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
            why = f"it asks for {site.job.nodes} nodes, and {name.rstrip('*')} has {nodes}"
            continue
        return ""
    return why


def submitted(output: str) -> str:
    """The job's id in what `sbatch` said. Raises StartError if there is none."""
    found = _SUBMITTED.search(output)
    if found is None:
        raise StartError(f"sbatch gave no job id; it said:\n{output.strip()}")
    return found[1]


def ask(ids: Iterable[str]) -> list[str]:
    """The one command that asks for many jobs."""
    # An id that is gone makes `--jobs` fail for all; the user's own jobs are few. Times are asked
    # for in UTC, as the login node's clock may show another zone's.
    del ids
    zone = ["env", "TZ=UTC", "SLURM_TIME_FORMAT=standard"]
    return [*zone, "squeue", "--noheader", "--me", f"--format={FORMAT}"]


def is_answer(output: str) -> bool:
    """Whether the output of an `ask` that failed is an answer all the same."""
    return False


def answered(output: str, ids: Iterable[str]) -> dict[str, JobStatus]:
    """How each job stands by the answer to `ask`; one that is not in it is gone."""
    found = listed(output)
    return {each: found.get(each) or JobStatus(each, "gone") for each in ids}


def listed(output: str) -> dict[str, JobStatus]:
    """All jobs of an answer."""
    found = {}
    for line in output.splitlines():
        fields = line.strip().split("|", FORMAT.count("|"))
        if len(fields) == FORMAT.count("|") + 1 and fields[0].isdigit():
            found[fields[0]] = _status(*fields)
    if sum(status.state != "pending" for status in found.values()):
        return found
    # Limits on all of a user's jobs together do not pass when there is nothing to wait for.
    return {
        job: replace(status, never=status.never or bool(_PER_USER.match(status.reason)))
        for job, status in found.items()
    }


def cancel(job: str) -> list[str]:
    """The command that ends a job."""
    return ["scancel", job]


def is_over(output: str) -> bool:
    """Whether `cancel` failed only because there is no such job any more."""
    return "Invalid job id" in output or "already completing or completed" in output


def _status(
    job: str, state: str, reason: str, start: str, nodes: str, end: str, name: str
) -> JobStatus:
    kind = _STATES.get(state, "ended")
    reason = "" if reason in ("None", "(null)", "") else reason
    # Slurm says "ReqNodeNotAvail, UnavailableNodes:c3" and "(Resources)".
    key = reason.strip("()").partition(",")[0]
    words, never = _why(key) if kind == "pending" else ("", False)
    # Some reasons are said in words at once, as that an account may not use a partition.
    never = never or (kind == "pending" and bool(_NEVER_IN_WORDS.search(reason)))
    if state == "CONFIGURING":
        reason, start = "its nodes are being made ready", ""
    elif kind == "pending":
        reason = f"{key}: {words}" if words else reason
    elif kind == "ended":
        reason = state.lower().replace("_", " ")
    expected = _epoch(start) if kind == "pending" else 0.0
    until = _epoch(end) if kind == "running" else 0.0
    return JobStatus(job, kind, reason, expected, _nodes(nodes), until, never, name)


def _why(key: str) -> tuple[str, bool]:
    """A reason to wait in words, and whether it does not pass by waiting."""
    if key in _NEVER:
        return _NEVER[key], True
    if key in _REASONS:
        return _REASONS[key], False
    if (match := _LIMIT.fullmatch(key)) is None:
        return "", False
    whose = "the QoS" if match["whose"] == "QOS" else "your account"
    what = _AMOUNTS.get(match["what"].lower(), match["what"])
    kind, span = match["kind"], match["span"] or ""
    if kind == "Min":
        return f"it asks for fewer {what} than {whose} wants", True
    if kind == "Grp" and span == "Minutes":
        return f"{whose} has no time left of {what}: its budget is used up", True
    if kind == "Grp":
        return f"{whose} has all the {what} in use that it may", False
    if span in ("PerUser", "PerAccount"):
        return f"with your other jobs it asks for more {what} than {whose} allows", False
    return f"it asks for more {what} than {whose} allows", True


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
