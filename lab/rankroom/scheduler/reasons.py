"""Slurm's reasons why a job is pending, in words, and which of them waiting does not resolve."""

from __future__ import annotations

import re

# Waiting resolves these, but not those in _PERMANENT_REASONS.
_PASSING_REASONS = {
    "Priority": "higher-priority jobs are ahead of it",
    "Resources": "no nodes are free",
    "Dependency": "it waits for another job",
    "BeginTime": "its begin time has not been reached",
    "JobHeldUser": "it is held: release it with `scontrol release JOBID`",
    "JobHeldAdmin": "an administrator holds it",
    "ReqNodeNotAvail": "nodes that it needs are down or reserved",
    # For maintenance, say; pending jobs start afterwards.
    "PartitionDown": "the partition is down",
    "PartitionInactive": "the partition is inactive",
    "Reservation": "its reservation has not begun",
    "Licenses": "no license is free",
    "QOSMaxJobsPerAccountLimit": "your account has as many running jobs as the QoS allows",
    "AssocGrpJobsLimit": "your account has reached its limit on running jobs",
    "QOSGrpJobsLimit": "the QoS has reached its limit on running jobs",
    "QOSMaxJobsPerUserLimit": "you have as many running jobs as the QoS allows: it waits for them",
    "AssocMaxJobsLimit": "your account has reached its limit on running jobs: it waits for them",
    "Cleaning": "an earlier run of it is being cleaned up",
}
_PERMANENT_REASONS = {
    "PartitionTimeLimit": "it asks for more time than the partition allows",
    "PartitionNodeLimit": "it asks for more nodes than the partition has",
    # Reported first for every limit of the partition; soon replaced by one of those above.
    "PartitionConfig": "it asks for more time, nodes or CPUs than the partition gives",
    "BadConstraints": "no node fits what it asks for",
    "InvalidAccount": "its account is not valid",
    "InvalidQOS": "its QoS is not valid",
    "AccountNotAllowed": "its account may not use this partition",
    "QOSNotAllowed": "its QoS may not be used in this partition or by this account",
    "DependencyNeverSatisfied": "it waits for a job that has failed",
    "ReservationDeleted": "its reservation is gone",
    "ReservationInvalid": "its reservation is not valid",
    "DeadLine": "its deadline has passed",
}
_NEVER_IN_WORDS = re.compile(r"can't use this partition|not permitted to use this partition")
# The other reasons are composed, like QOSMaxGRESPerUser or AssocGrpCPUMinutesLimit.
_LIMIT = re.compile(
    r"(?P<whose>QOS|Assoc)(?P<kind>Max|Min|Grp)(?P<what>[A-Z]+(?=Run|Per|Min|$)|[A-Z][a-zA-Z]*?)"
    r"(?P<span>RunMin(?:ute)?s|Min(?:ute)?sPerJob|Minutes|PerJob|PerNode|PerUser|PerAccount)?"
    r"(?:NotSatisfied)?(?:Limit)?"
)
_PER_USER = re.compile(r"QOSMax(?!Jobs|SubmitJob)\w+PerUser")
_AMOUNTS = {
    "cpu": "CPUs", "gres": "GPUs", "node": "nodes", "mem": "memory", "memory": "memory",
    "wall": "time", "wallduration": "time", "jobs": "jobs", "submitjob": "jobs",
    "submitjobs": "jobs", "billing": "billing units", "license": "licenses", "energy": "energy",
}  # fmt: skip


def why(key: str, said: str) -> tuple[str, bool]:
    """Return a pending reason in words, and whether waiting does not resolve it.

    The words are empty if Slurm's own are plain, as when an account may not use a partition, and
    for an unknown reason.
    """
    if _NEVER_IN_WORDS.search(said):
        return "", True
    if key in _PERMANENT_REASONS:
        return _PERMANENT_REASONS[key], True
    if key in _PASSING_REASONS:
        return _PASSING_REASONS[key], False
    if (match := _LIMIT.fullmatch(key)) is None:
        return "", False
    whose = "the QoS" if match["whose"] == "QOS" else "your account"
    what = _AMOUNTS.get(match["what"].lower(), match["what"])
    kind, span = match["kind"], match["span"] or ""
    if kind == "Min":
        return f"it asks for less than {whose}'s minimum of {what}", True
    if kind == "Grp" and span == "Minutes":
        # Slurm says so if the budget is used up, and if running jobs have reserved the rest.
        return f"not enough of {whose}'s budget for {what} is left, or running jobs hold it", False
    if kind == "Grp":
        return f"{whose} has reached its limit on {what} in use", False
    if span in ("PerUser", "PerAccount"):
        return f"with your other jobs it asks for more {what} than {whose} allows", False
    return f"it asks for more {what} than {whose} allows", True


def of_all_jobs(reason: str) -> bool:
    """Return whether a reason is a limit on all of a user's jobs together."""
    return bool(_PER_USER.match(reason))
