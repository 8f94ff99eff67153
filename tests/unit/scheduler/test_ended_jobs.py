"""Whether a job is over, from fake schedulers' output; an unknown state never ends a job."""

from __future__ import annotations

import time
from collections.abc import Callable
from pathlib import Path

import pytest

from rankroom.record.cluster_file import MAX_CLOCK_ERROR_S, Allocation, Node
from rankroom.scheduler import ended_jobs, job_end

INVALID = "echo slurm_load_jobs error: Invalid job id specified >&2; exit 1"
DOWN = "echo slurm_load_jobs error: Unable to contact slurm controller >&2; exit 1"
NODE = '[ "$1 $3 $4" != "--all node c9" ] || { echo NodeName=c9 State=IDLE; exit; }'
OTHER = '[ "$3" != node ] || { echo Node $4 not found; exit 1; }'
QSTAT = """echo '{ "timestamp": 1795176000, "Jobs": { %s } }'"""
STATE = '"12.pbs-01": { "job_state": "%s" }'
UNKNOWN = "echo qstat: Unknown Job Id 12.pbs-01 >&2; exit 153"
NO_HISTORY = (
    'case " $* " in *" -x "*) echo qstat: PBS is not configured to maintain job history >&2; '
    "exit 15;; esac; "
)
Commands = Callable[..., None]


@pytest.fixture
def commands(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Commands:
    """Write fake scheduler commands, as shell scripts; PATH has only these and the system's."""
    folder = tmp_path / "bin"
    folder.mkdir()
    monkeypatch.setenv("PATH", f"{folder}:/usr/bin:/bin")
    # Fake commands may be slow on a busy machine.
    monkeypatch.setattr(job_end, "SHORT_COMMAND_TIMEOUT_S", 20.0)

    def write(**scripts: str) -> None:
        for name, script in scripts.items():
            (folder / name).write_text(f"#!/bin/sh\n{script}\n")
            (folder / name).chmod(0o755)

    return write


def job(scheduler: str, until: float = 0.0) -> Allocation:
    return Allocation("12", (Node("c9", 1),), until, scheduler)  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("scontrol", "state"),
    [
        ("echo JobId=12 JobState=RUNNING Reason=None", "on"),
        ("echo JobId=12 JobState=SUSPENDED Reason=None", "on"),
        ("echo JobId=12 JobState=COMPLETING Reason=None", "ending"),
        ("echo JobId=12 JobState=COMPLETED Reason=None", "over"),
        ("echo JobId=12 JobState=PENDING Reason=BeginTime", "over"),  # requeued
        # Clusters may share a home: this is another cluster's Slurm, with a job of the same number.
        ("echo JobId=12 UserId=eve(4242424) JobState=COMPLETED NodeList=c9", "unknown"),
        ("echo JobId=12 JobState=COMPLETED NodeList=n[1-3]", "unknown"),
        ("echo JobId=12 JobState=COMPLETED NodeList=c[8-9]", "over"),
        ("echo JobId=12 JobState=PENDING NodeList='(null)'", "over"),
        (f"{NODE}; {INVALID}", "over"),
        (f"{OTHER}; {INVALID}", "unknown"),  # another cluster's Slurm
        (f"{NODE}; {DOWN}", "unknown"),
        (DOWN, "unknown"),
        ("", "unknown"),
    ],
)
def test_scontrol_answers_give_a_job_state(commands: Commands, scontrol: str, state: str):
    commands(scontrol=scontrol)
    assert ended_jobs.state(job("slurm")) == state


def test_the_tasks_of_an_array_are_told_apart(commands: Commands):
    commands(
        scontrol="echo JobId=13 ArrayJobId=12 JobState=COMPLETED Reason=None; "
        "echo JobId=12 ArrayJobId=12 JobState=RUNNING Reason=None"
    )
    assert ended_jobs.state(job("slurm")) == "on"


@pytest.mark.parametrize(
    ("qstat", "pbsnodes", "state"),
    [
        (QSTAT % (STATE % "R"), "exit 1", "on"),
        (QSTAT % (STATE % "E"), "exit 1", "ending"),
        (QSTAT % (STATE % "F"), "exit 1", "over"),
        (NO_HISTORY + QSTAT % (STATE % "R"), "exit 1", "on"),
        (UNKNOWN, "echo c9", "over"),
        (NO_HISTORY + UNKNOWN, "echo c9", "over"),
        (UNKNOWN, "echo Error: Unknown node c9 >&2; exit 1", "unknown"),
        ("echo qstat: cannot connect to server pbs-01 >&2; exit 1", "echo c9", "unknown"),
        (QSTAT % "", "echo c9", "unknown"),
    ],
)
def test_qstat_answers_give_a_job_state(commands: Commands, qstat: str, pbsnodes: str, state: str):
    commands(qstat=qstat, pbsnodes=pbsnodes)
    assert ended_jobs.state(job("pbs")) == state


@pytest.mark.parametrize("scheduler", ["slurm", "pbs"])
def test_without_an_answer_a_job_is_over_once_its_time_is(commands: Commands, scheduler: str):
    """No scheduler command exists at first; clocks may be off, and a job may be extended."""
    now = time.time()
    untils = (0.0, now + 60, now - 60, now - MAX_CLOCK_ERROR_S - 60)
    assert [ended_jobs.is_over(job(scheduler, until)) for until in untils] == [
        False, False, False, True,
    ]  # fmt: skip
    commands(scontrol="echo JobId=12 JobState=RUNNING Reason=None", qstat=QSTAT % (STATE % "R"))
    assert not ended_jobs.is_over(job(scheduler, untils[-1])), "it was given more time"


def test_a_scheduler_that_times_out_leaves_the_job_state_unknown(
    commands: Commands, monkeypatch: pytest.MonkeyPatch
):
    monkeypatch.setattr(job_end, "SHORT_COMMAND_TIMEOUT_S", 0.1)
    commands(scontrol="exec sleep 1000", qstat="exec sleep 1000")
    assert {ended_jobs.state(job(each)) for each in ("slurm", "pbs")} == {"unknown"}
