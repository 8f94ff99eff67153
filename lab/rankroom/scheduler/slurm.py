"""Slurm: a job's script as text, the words of its three commands, and what their answers mean.

All of it pure: whoever submits, asks and cancels does so with these words, here or over SSH. The
formats are those that hold from Slurm 20 to 25; `squeue --json` does not.
"""

from __future__ import annotations

import re
import shlex
from collections.abc import Iterable, Sequence

from rankroom.errors import StartError
from rankroom.scheduler.jobs import JobStatus, State, body
from rankroom.site import Site

FORMAT = "%i|%T|%r|%S|%N|%L"  # id, state, reason, (expected) start, nodes, time left
WARNING_S = 120  # the batch shell gets SIGUSR1 so long before the job's time is over
# One number per line in sbatch's answers: `1234`, or `1234;cluster` with --parsable.
_SUBMITTED = re.compile(r"^(?:Submitted batch job )?(\d+)(?:;\S+)?\s*$", re.MULTILINE)
_LEFT = re.compile(r"(?:(\d+)-)?(?:(\d+):)?(\d+):(\d+)")

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
    "QOSGrpCpuLimit": "the QoS has all the CPUs in use that it may",
    "AssocGrpCpuLimit": "your account has all the CPUs in use that it may",
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
    "AssocMaxWallDurationPerJobLimit": "it asks for more time than your account may",
    "AssocMaxNodePerJobLimit": "it asks for more nodes than your account may",
    "AssocMaxCpuPerJobLimit": "it asks for more CPUs than your account may",
    "AssocGrpCPUMinutesLimit": "your account has no CPU time left for it",
    "AssocGrpBillingMinutes": "your account's budget is used up",
    "QOSMaxWallDurationPerJobLimit": "it asks for more time than the QoS allows",
    "QOSMaxNodePerUserLimit": "it asks for more nodes than the QoS allows",
    "QOSMaxCpuPerUserLimit": "it asks for more CPUs than the QoS allows",
    "QOSMaxGRESPerUser": "it asks for more GPUs than the QoS allows",
    "QOSMinGRES": "it asks for fewer GPUs than the QoS wants",
    "DependencyNeverSatisfied": "it waits for a job that has failed",
    "PartitionDown": "the partition is down",
    "PartitionInactive": "the partition is inactive",
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
        "time": job.time,
        "account": job.account,
        "partition": job.partition,
        "qos": job.qos,
        "constraint": job.constraint,
        "reservation": job.reservation,
        # The shell of the script is warned, not its steps.
        "signal": f"B:USR1@{WARNING_S}",
    }
    head = [f"#SBATCH --{key}={_word(value)}" for key, value in asked.items() if value]
    head += [f"#SBATCH {line}" for line in job.extra]
    # A login shell: it is what makes `module` and `conda` known.
    return "\n".join(["#!/bin/bash -l", *head, *body(site, commands)])


def submit(path: str) -> list[str]:
    """The command that submits a script."""
    return ["sbatch", "--parsable", path]


def submitted(output: str) -> str:
    """The job's id in what `sbatch` said. Raises StartError if there is none."""
    found = _SUBMITTED.search(output)
    if found is None:
        raise StartError(f"sbatch gave no job id; it said:\n{output.strip()}")
    return found[1]


def ask(ids: Iterable[str]) -> list[str]:
    """The one command that asks for many jobs."""
    # An id that is gone makes `--jobs` fail for all; the user's own jobs are few.
    del ids
    return ["squeue", "--noheader", "--me", f"--format={FORMAT}"]


def answered(output: str, ids: Iterable[str]) -> dict[str, JobStatus]:
    """How each job stands by the answer to `ask`; one that is not in it is gone."""
    found = {}
    for line in output.splitlines():
        fields = line.strip().split("|")
        if len(fields) == FORMAT.count("|") + 1 and fields[0].isdigit():
            found[fields[0]] = _status(*fields)
    return {each: found.get(each) or JobStatus(each, "gone") for each in ids}


def cancel(job: str) -> list[str]:
    """The command that ends a job."""
    return ["scancel", job]


def _status(job: str, state: str, reason: str, start: str, nodes: str, left: str) -> JobStatus:
    kind = _STATES.get(state, "ended")
    reason = "" if reason in ("None", "(null)", "") else reason
    if state == "CONFIGURING":
        reason, start = "its nodes are being made ready", ""
    # Slurm says "ReqNodeNotAvail, UnavailableNodes:c3" and "(Resources)".
    key = reason.strip("()").partition(",")[0]
    never = kind == "pending" and key in _NEVER
    words = _NEVER.get(key) or _REASONS.get(key)
    if kind == "pending":
        reason = f"{key}: {words}" if words else reason
    elif kind == "ended":
        reason = state.lower().replace("_", " ")
    started = "" if start in ("N/A", "Unknown", "") or kind != "pending" else start
    return JobStatus(job, kind, reason, started, _nodes(nodes), seconds(left), never)


def seconds(text: str) -> int | None:
    """Slurm's `[days-][hours:]minutes:seconds`, or None where it says UNLIMITED or nothing."""
    match = _LEFT.fullmatch(text)
    if match is None:
        return None
    days, hours, minutes, rest = (int(part or 0) for part in match.groups())
    return ((days * 24 + hours) * 60 + minutes) * 60 + rest


def _nodes(text: str) -> str:
    return "" if text in ("(null)", "None assigned", "") else text


def _word(value: object) -> str:
    text = str(value)
    # Slurm strips one pair of quotes; percent signs are its own patterns and stay.
    return text if re.fullmatch(r"[\w@%+=:,./&|$~\[\]-]*", text) else shlex.quote(text)
