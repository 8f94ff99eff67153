"""`scheduler.slurm` on a real Slurm: scripts of profiles, states, reasons, time left, cancel."""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import replace

import pytest

from machines import Machines
from rankroom.errors import StartError
from rankroom.scheduler import slurm
from rankroom.scheduler.jobs import JobStatus
from rankroom.scheduler.scheduler_client import answered, submitted
from rankroom.scheduler.site import Job, Site

SITE = Site("test", scheduler="slurm", job=Job(partition="gpu", time="00:05:00"))


class Scheduler:
    """Submits, queries and cancels jobs as alice on the login node."""

    def __init__(self, machines: Machines) -> None:
        self._machines = machines
        self._count = 0
        self.jobs: list[str] = []

    def submit(self, site: Site, *commands: str) -> str:
        self._count += 1
        text = slurm.script(site, f"test-{self._count}", "/home/alice", commands)
        path = self._machines.put("alice", f"test-{self._count}.sh", text)
        said = self._machines.run("login", [*slurm.SUBMIT, path], "alice")
        self.jobs.append(submitted(slurm, said))
        return self.jobs[-1]

    def ask(self, job: str) -> JobStatus:
        return answered(slurm, self._machines.queue("login", slurm.ask([job]), "alice"), [job])[job]

    def cancel(self, job: str) -> None:
        self._machines.run("login", [*slurm.CANCEL, job], "alice")

    def until(
        self, job: str, holds: Callable[[JobStatus], bool], seconds: float = 120
    ) -> JobStatus:
        deadline = time.monotonic() + seconds
        while not holds(status := self.ask(job)):
            assert time.monotonic() < deadline, status
            time.sleep(0.2)
        return status

    def log(self, job: str) -> str:
        [file] = self._machines.home("alice").glob(f"test-*-{job}.log")
        return file.read_text()


@pytest.fixture
def scheduler(machines: Machines):
    made = Scheduler(machines)
    yield made
    for job in made.jobs:
        made.cancel(job)
    machines.until_idle()


def asking(**job: object) -> Site:
    return replace(SITE, job=replace(SITE.job, **job))


def test_a_job_script_runs_on_the_nodes_its_profile_requests(scheduler: Scheduler):
    site = asking(nodes=2, gpus_per_node=2, memory_per_cpu="200M")
    job = scheduler.submit(site, "srun sh -c 'echo $(hostname) $SLURM_LOCALID' | sort")
    scheduler.until(job, lambda status: status.state in ("ended", "gone"))
    assert scheduler.log(job).splitlines() == ["c1 0", "c1 1", "c2 0", "c2 1"]


def test_a_running_job_reports_its_nodes_and_end_time(scheduler: Scheduler):
    begun = time.time()
    job = scheduler.submit(asking(nodes=2), "sleep 280")
    status = scheduler.until(job, lambda status: status.state == "running")
    assert status.words == "runs on c[1-2]"
    # Five minutes from its start, which Slurm reports in whole seconds.
    assert begun + 299 <= status.until <= time.time() + 301
    scheduler.cancel(job)
    ended = scheduler.until(job, lambda status: status.state in ("ended", "gone"))
    assert (ended.state, ended.reason) in (("ended", "cancelled"), ("gone", ""))


@pytest.mark.parametrize(
    ("site", "words"),
    [
        (asking(time="02:00:00"), "more time than the partition allows"),
        (asking(partition="short", nodes=2), "more nodes than the partition has"),
        (asking(nodes=99), "more time, nodes or CPUs than the partition gives"),
    ],
)
def test_a_job_that_slurm_will_never_start_is_recognized(
    scheduler: Scheduler, site: Site, words: str
):
    job = scheduler.submit(site, "true")
    status = scheduler.until(job, lambda status: bool(status.reason))
    assert status.state == "pending"
    # This is known from the first answer, although Slurm names the limit some seconds later.
    assert status.never
    scheduler.until(job, lambda status: words in status.words)


def test_a_job_that_waits_for_another_has_an_expected_start_time(scheduler: Scheduler):
    first = scheduler.submit(asking(nodes=4, extra=("--exclusive",)), "sleep 280")
    scheduler.until(first, lambda status: status.state == "running")
    second = scheduler.submit(asking(nodes=1), "true")
    status = scheduler.until(second, lambda status: bool(status.expected))
    assert status.state == "pending"
    assert "Resources" in status.reason or "Priority" in status.reason
    assert not status.never
    scheduler.cancel(first)
    scheduler.until(second, lambda status: status.state in ("ended", "gone"))


def test_a_held_job_is_reported_with_the_command_to_release_it(scheduler: Scheduler):
    job = scheduler.submit(asking(extra=("--hold",)), "true")
    assert "scontrol release" in scheduler.ask(job).words


def test_a_job_ends_at_its_first_failed_command(scheduler: Scheduler):
    job = scheduler.submit(SITE, "false", "echo not reached")
    status = scheduler.until(job, lambda status: status.state in ("ended", "gone"))
    assert (status.state, status.reason) in (("ended", "failed"), ("gone", ""))
    assert "not reached" not in scheduler.log(job)


@pytest.mark.parametrize(
    ("site", "said"),
    [
        (asking(partition="gpuu"), "invalid partition"),
        (asking(gpus_per_node=9), "(?i)not available"),
        (asking(constraint="a100"), "(?i)feature"),
    ],
)
def test_a_refusal_has_the_message_of_slurm(scheduler: Scheduler, site: Site, said: str):
    with pytest.raises(StartError, match=said):
        scheduler.submit(site, "true")


def test_an_unknown_job_is_reported_as_gone(scheduler: Scheduler):
    assert scheduler.ask("99999").state == "gone"


@pytest.mark.thorough
def test_the_batch_shell_is_warned_before_the_end(scheduler: Scheduler, machines: Machines):
    job = scheduler.submit(
        SITE, "trap 'echo warned; exit 0' USR1", "echo ready", "sleep 280 & wait"
    )
    # A warning before the shell has set its trap would be lost, so the limit is lowered only now.
    scheduler.until(job, lambda status: status.state == "running")
    logs = machines.home("alice")
    machines.until(
        lambda: any("ready" in each.read_text() for each in logs.glob(f"test-*-{job}.log")), "trap"
    )
    shorter = ["scontrol", "update", f"JobId={job}", "TimeLimit=2"]
    assert machines.run("login", shorter, "alice") == ""
    scheduler.until(job, lambda status: status.state in ("ended", "gone"))
    # Slurm may add a line of its own about the end.
    assert scheduler.log(job).splitlines()[:2] == ["ready", "warned"]
