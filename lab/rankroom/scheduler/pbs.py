"""PBS (OpenPBS and PBS Professional): the same interface as slurm.py."""

from __future__ import annotations

import calendar
import json
import re
import shlex
import time
from collections.abc import Iterable, Sequence
from typing import Any

from rankroom.errors import SchedulerError
from rankroom.scheduler.jobs import JobStatus, State, body
from rankroom.scheduler.site import Site, clock, parse_time

SUBMITTED = re.compile(r"^(\d+(?:\[\])?)(?:\.\S+)?\s*$", re.MULTILINE)
SUBMIT = ["qsub"]
TEST: list[str] = []  # no command says whether a script would be accepted
LIMITS: list[str] = []  # nor each queue's limits, in a form that all sites share
VERSION = ["qstat", "--version"]
ALIVE = ["qstat", "-B", "-f", "-F", "json"]
CANCEL = ["qdel"]
LOG = "{job}.*OU"  # PBS's name for a job's output, which is there once the job is over
LIST = "qstat -u $USER"  # lists the user's jobs, for people
NO_HISTORY = re.compile(r"job history", re.IGNORECASE)  # of a PBS that keeps none, the default
# What is said of one job that is over; the others are reported.
OVER = re.compile(r"Unknown Job Id|has finished", re.IGNORECASE)
# Times in UTC; and an answer from the scheduler itself at sites with a cache in front of qstat,
# which may lack a new job for a minute or more (NCAR's qstat-cache, say).
ENV = ["env", "TZ=UTC", "QSCACHE_BYPASS=true"]
# PBS says "Can Never Run" also of a job whose nodes are down, and during maintenance.
NEVER_PATIENCE_S = 86400.0
USED_TIME_LAG_S = 300.0  # by which a job's used time may be out of date
LOST = re.compile(r"End of File")  # a job was sent, and no reply came
_SUSPENDED = ("S", "U")
# Escapes of JSON, or a lone backslash; and the value on a line of its own that is not JSON.
_ESCAPE = re.compile(r'(\\["\\/bfnrt]|\\u[0-9A-Fa-f]{4})|\\')
_NUMBER = r"-?(?:0|[1-9]\d*)(?:\.\d+)?(?:[eE][-+]?\d+)?"
_UNQUOTED_VALUE = re.compile(
    rf'^([ \t]*"[^"\n]*":)(?![ \t]*(?:["{{\[]|{_NUMBER}[ \t]*,?$))[ \t]*([^,\n]*)(,?)$',
    re.MULTILINE,
)
_STATES: dict[str, State] = {
    "Q": "pending",
    "H": "pending",
    "W": "pending",
    "T": "pending",
    "R": "running",
    "B": "running",
    "S": "running",
    "U": "running",
    "E": "ending",
    "F": "ended",
    "X": "ended",
    "M": "ended",  # moved to another server
}


def script(site: Site, name: str, folder: str, commands: Sequence[str]) -> str:
    """Return the job script that runs `commands` on the first node; its log goes to `folder`."""
    job = site.job
    chunk = [str(job.nodes), f"mpiprocs={site.ranks_per_node}"]
    if job.cpus_per_task:
        chunk.insert(1, f"ncpus={job.cpus_per_task * site.ranks_per_node}")
    if job.gpus_per_node:
        chunk.append(f"ngpus={job.gpus_per_node}")
    if job.memory_per_node:
        memory = job.memory_per_node
        chunk.append(f"mem={memory + 'mb' if memory.isdigit() else memory.lower() + 'b'}")
    if job.constraint:
        chunk.append(job.constraint)
    head = [
        f"-N {shlex.quote(name)}",
        f"-l select={':'.join(chunk)}",
        f"-l walltime={clock(site.seconds)}",
        "-j oe",
        "-r n",  # ranks lose their state with a job: rerunning it gains nothing
        f"-o {folder}/",
    ]
    if job.account:
        head.append(f"-A {job.account}")
    if queue := job.reservation or job.partition:  # a reservation is a queue, too
        head.append(f"-q {queue}")
    if not any("place=" in line for line in job.extra):
        head.append("-l place=scatter")  # else several chunks may be on one node
    head += job.extra
    start = ["", 'cd "$PBS_O_WORKDIR"'] if folder else []
    return "\n".join(
        ["#!/bin/bash -l", *(f"#PBS {line}" for line in head), *start, *body(site, commands)]
    )


def unset(script: str) -> list[str]:
    """Return the variables that would override a script's options: none."""
    return []


def partition(said: str) -> str:
    return ""


def too_much(site: Site, output: str) -> str:
    return ""


def find(name: str) -> list[str]:
    """Return the command that lists the user's jobs of this name that are not over."""
    # Without the states of a job that is ending or over.
    return [*ENV, "sh", "-c", 'exec qselect -u "$(id -un)" -s HQRSTUW -N "$1"', "sh", name]


def found(output: str, name: str) -> list[str]:
    """Return the ids of the jobs in the output of `find`."""
    return re.findall(r"^(\d+)\.\S+\s*$", output, re.MULTILINE)


def ask(ids: Iterable[str]) -> list[str]:
    """Return the command that queries many jobs at once, including those that ended recently."""
    return [*ENV, "qstat", "-x", "-f", "-F", "json", *ids]


def ask_otherwise(ids: Iterable[str], output: str) -> list[str]:
    """Return the command to try after `ask` failed with this output; empty if there is none."""
    if not NO_HISTORY.search(output):
        return []
    return [*ENV, "qstat", "-f", "-F", "json", *ids]


def ask_alone(job: str) -> list[str]:
    """Return the command that queries a job that no list has: none, as lists have all jobs."""
    return []


def ended(output: str, job: str) -> JobStatus | None:
    """Return how a job ended from the output of `ask_alone`: never known here."""
    return None


def listed(output: str) -> dict[str, JobStatus]:
    """Return all jobs in the output of `ask`, by id. Raises SchedulerError if it is no answer."""
    answer = _answer(output)
    if answer is None:
        if is_partial(output) and '"timestamp"' not in output:  # which JSON that is cut off has
            return {}
        raise SchedulerError(f"qstat returned no JSON; its output:\n{output.strip()[:2000]}")
    now, jobs = float(answer["timestamp"]), answer.get("Jobs", {})
    return {key.partition(".")[0]: _status(key, about, now) for key, about in jobs.items()}


def is_partial(output: str) -> bool:
    """Return whether a query that failed did so only for jobs that are over."""
    failures = _failures(output)
    return bool(failures) and all(OVER.search(line) for line in failures)


def is_silent_on(output: str, job: str) -> bool:
    """Return whether a query that failed for some jobs says nothing of this one, which it does not
    list either: then it is unknown whether the job is over."""
    failures, number = _failures(output), rf"(?<!\d){re.escape(job)}(?!\d)"
    return bool(failures) and not any(re.search(number, line) for line in failures)


def _failures(output: str) -> list[str]:
    return [line for line in output.splitlines() if line.startswith("qstat: ")]


def details(output: str, job: str) -> dict[str, Any]:
    """Return all that the output of `ask` says about one job."""
    jobs = (_answer(output) or {}).get("Jobs", {})
    return next((about for key, about in jobs.items() if key.partition(".")[0] == job), {})


def _answer(output: str) -> dict[str, Any] | None:
    """Return the JSON object among a login shell's output and errors for single jobs."""
    text = "\n".join(line for line in output.splitlines() if not line.startswith("qstat: "))
    return _decoded(text) or _decoded(_repaired(text))


def _repaired(text: str) -> str:
    """Repair the output of PBS versions that write variables as they are: with the backslashes of
    `qsub`, and unquoted where C parses them as a number, as it does 005, .5 and nothing at all."""
    text = _ESCAPE.sub(lambda found: found[1] or "", text)
    return _UNQUOTED_VALUE.sub(r'\1"\2"\3', text)


def _decoded(text: str) -> dict[str, Any] | None:
    for begin in re.finditer("{", text):
        try:
            found, _ = json.JSONDecoder(strict=False).raw_decode(text, begin.start())
        except ValueError:
            continue
        if "timestamp" in found:
            return dict(found)
    return None


def _status(key: str, about: dict[str, Any], now: float) -> JobStatus:
    # A job in an unknown state must not be ended: it counts as running.
    state = _STATES.get(str(about.get("job_state", "")), "running")
    reason = str(about.get("comment", "")) if state == "pending" else ""
    if state == "ended" and "Exit_status" in about:
        status = about["Exit_status"]
        reason = f"exit status {status}" if status else "completed"
    never = state == "pending" and reason.startswith("Can Never Run")
    # In PBS's order: the script runs on the first node.
    parts = str(about.get("exec_host", "")).split("+")
    hosts = dict.fromkeys(part.partition("/")[0] for part in parts)
    expected = until = 0.0
    if state == "pending":
        expected = _epoch(about.get("estimated", {}).get("start_time"))
    is_suspended = about.get("job_state") in _SUSPENDED
    if state == "running" and not is_suspended:
        until = _until(about, now)
    return JobStatus(
        key.partition(".")[0], state, reason, expected, ",".join(filter(None, hosts)), until, never,
        str(about.get("Job_Name", "")), NEVER_PATIENCE_S if never else 0.0, is_suspended,
    )  # fmt: skip


def _until(about: dict[str, Any], now: float) -> float:
    """Return when a running job's time is over; the time of suspensions does not count."""
    asked = _seconds(about.get("Resource_List", {}).get("walltime"))
    used = _seconds(about.get("resources_used", {}).get("walltime"))
    begun = _epoch(about.get("stime"))
    by_use = now - (used or 0) if now else 0.0
    if not begun or (used is not None and by_use - begun > USED_TIME_LAG_S):
        begun = by_use
    return begun + asked if begun and asked else 0.0


def _epoch(value: Any) -> float:
    """Parse a time as PBS writes it: a number, or `Fri Nov 20 12:00:00 2026` in UTC (see ENV)."""
    try:
        return float(value)
    except (TypeError, ValueError):
        pass
    try:
        return float(calendar.timegm(time.strptime(str(value), "%a %b %d %H:%M:%S %Y")))
    except ValueError:
        return 0.0


def _seconds(text: Any) -> int | None:
    try:
        return parse_time(str(text))
    except ValueError:
        return None
