"""Watch a workshop in the teacher's terminal, and end it."""

from __future__ import annotations

import asyncio
import contextlib
import json
import re
import shutil
import sys
import time

import click

from rankroom.cli.terminal import Terminal
from rankroom.errors import RankroomError, SchedulerError
from rankroom.jupyter_job import lab_script
from rankroom.scheduler import pbs, slurm
from rankroom.scheduler.same_machine import is_here
from rankroom.scheduler.scheduler_client import COMMAND_TIMEOUT_S, Scheduler
from rankroom.ssh.host import place
from rankroom.workshop import hub_job
from rankroom.workshop.tile_table import screen
from rankroom.workshop.tiles import is_heard, overview
from rankroom.workshop.workshop_folder import Folder
from rankroom.workshop.workshop_plan import Plan

SEAT_POLL_INTERVAL_S = 0.5
JOB_END_TIMEOUT_S = 90.0  # for jobs to end once the warning time is over
SCHEDULER_POLL_INTERVAL_S = 5.0  # between two queries of the scheduler
JUPYTER_JOB_NAMES = (lab_script.JOB_NAME, hub_job.NAME)  # of the jobs that run JupyterLab
_JOB_ID = re.compile(
    r"\d{1,15}", re.ASCII
)  # a valid job id: learners may write anything into a seat
HOME_AND_CLEAR = "\x1b[H\x1b[J"


def watch_workshop(folder: Folder, once: bool, as_json: bool, with_exercises: bool) -> None:
    """Show all learners until Ctrl-C, or once. Raises NotYoursError for anyone but the teacher. If
    a later update fails, print the error and retry."""
    is_live = sys.stdout.isatty() and not once and not as_json
    is_first, said = True, ""
    with contextlib.suppress(KeyboardInterrupt):
        while True:
            try:
                view = overview(folder, time.time())
            except (RankroomError, OSError) as error:
                if is_first:
                    raise
                if str(error) != said:
                    said = str(error)
                    click.echo(f"{said}: trying again", err=True)
            else:
                is_first, said = False, ""
                if as_json:
                    click.echo(json.dumps(view))
                else:
                    width, height = shutil.get_terminal_size() if is_live else (200, 0)
                    text = screen(view, width - 1, max(0, height - 1), with_exercises)
                    click.echo(f"{HOME_AND_CLEAR if is_live else ''}{text}")
            if once:
                return
            time.sleep(SEAT_POLL_INTERVAL_S)


def end_workshop(folder: Folder, terminal: Terminal) -> bool:
    """End a workshop and wait until its jobs are gone; return whether all are known to be gone."""
    plan, seats = folder.plan(), folder.seats()  # first: if they raise, no learner is warned
    told = time.time()
    until = folder.close()
    terminal.say(WARNED.format(seconds=_seconds(until)))
    left: list[dict[str, str]] = []
    unasked = ""  # why it is unknown which jobs are left
    known: set[tuple[str, str]] = set()
    while True:
        with contextlib.suppress(RankroomError, OSError):
            seats = folder.seats()
        known |= {
            (each.status.job, each.user) for each in seats if _JOB_ID.fullmatch(each.status.job)
        }
        # A seat that was silent before has no server left that could report its end.
        there = [seat for seat in seats if is_heard(seat, told)]
        on = sorted(seat.user for seat in there if seat.status.state != "ended")
        if (now := time.time()) < until:
            terminal.show(f"{len(seats)} seats · {_seconds(until)} s left")
        else:
            try:
                left, unasked = asyncio.run(_jobs(plan, known)), ""
            except (RankroomError, OSError) as error:
                unasked = str(error).partition("\n")[0].strip(": ")
            if not (on or left or unasked) or now >= until + JOB_END_TIMEOUT_S:
                break
            terminal.show(f"{len(on)} seats and {len(left)} jobs have not ended yet")
        time.sleep(SEAT_POLL_INTERVAL_S if now < until else SCHEDULER_POLL_INTERVAL_S)
    terminal.clear()
    for user in on:
        terminal.say(SEAT_NOT_ENDED.format(user=user) + (ON_NODE if plan.way == "node" else BY_JOB))
    gone = [seat.user for seat in seats if seat not in there and seat.status.state != "ended"]
    if gone and plan.way == "node":
        terminal.say(SEATS_LOST.format(users=", ".join(gone)))
    for job in left:
        terminal.say(JOB_LEFT.format(**job))
    if unasked:
        terminal.say(JOBS_UNKNOWN.format(name=plan.name, why=unasked))
    elif not left:
        terminal.say(f"{plan.name} has ended, and no job of it is left")
    return not left and not unasked


async def _jobs(plan: Plan, known: set[tuple[str, str]]) -> list[dict[str, str]]:
    """Return the workshop's jobs that the scheduler still has: those that seats have named (`known`
    has job and account, and the job must be that account's), and with Slurm also pending
    JupyterLab jobs of the plan's learners.

    Raises RankroomError or OSError if the scheduler cannot be asked.
    """
    if plan.way == "node":
        return []
    site = plan.of_site()
    there = place("" if is_here(site) else site.login)
    try:
        scheduler = Scheduler(site, there)
        if site.scheduler == "pbs":
            return await _pbs_jobs(scheduler, known)
        # All jobs, whatever the teacher's own variables select.
        ask = [*slurm.ENV, "squeue", "--noheader", "--all", "--local", "--format=%i|%u|%T|%j"]
        done = await scheduler.call(ask, COMMAND_TIMEOUT_S)
        if not done.ok:
            raise scheduler.failed(done)
        found = _left(done.output, plan, known)
        if not found and await _hides_jobs(scheduler):
            raise SchedulerError(HIDDEN)
        return found
    finally:
        await there.close()


async def _hides_jobs(scheduler: Scheduler) -> bool:
    """Return whether Slurm shows users only their own jobs."""
    done = await scheduler.call(["scontrol", "show", "config"], COMMAND_TIMEOUT_S)
    if not done.ok:
        raise scheduler.failed(done)
    shown = re.search(r"^PrivateData\s*=\s*(\S+)", done.output, re.MULTILINE)
    return shown is not None and "jobs" in shown[1].split(",")


def _left(output: str, plan: Plan, known: set[tuple[str, str]]) -> list[dict[str, str]]:
    return [
        {"job": each[0], "user": each[1], "state": each[2].lower()}
        for each in (line.split("|") for line in output.splitlines())
        if len(each) == 4
        and each[2] not in ("COMPLETING", "COMPLETED", "CANCELLED")
        # A running job that no seat has named is the learner's own.
        and (
            (each[0], each[1]) in known
            or (each[2] == "PENDING" and each[1] in plan.learners and each[3] in JUPYTER_JOB_NAMES)
        )
    ]


async def _pbs_jobs(scheduler: Scheduler, known: set[tuple[str, str]]) -> list[dict[str, str]]:
    if not known:
        return []
    ids = sorted({job for job, _ in known})
    done = await scheduler.call(pbs.ask(ids), COMMAND_TIMEOUT_S)
    if not done.ok and (otherwise := pbs.ask_otherwise(ids, done.output)):
        done = await scheduler.call(otherwise, COMMAND_TIMEOUT_S)
    if done.timed_out or not (done.ok or pbs.is_partial(done.output)):
        raise scheduler.failed(done)
    found, listed = [], pbs.listed(done.output)
    if any(job not in listed and pbs.is_silent_on(done.output, job) for job in ids):
        raise scheduler.failed(done)
    for job, status in listed.items():
        user = str(pbs.details(done.output, job).get("Job_Owner", "")).partition("@")[0]
        if (job, user) in known and status.state in ("pending", "running"):
            found.append({"job": job, "user": user, "state": status.state})
    return found


def _seconds(until: float) -> int:
    return max(0, round(until - time.time()))


WARNED = "all learners have been warned: their ranks and jobs end in {seconds} s"
JOBS_UNKNOWN = "{name} has ended; it is unknown whether any of its jobs are left ({why})"
HIDDEN = "Slurm's PrivateData shows you no jobs of others here"
SEAT_NOT_ENDED = "{user}'s JupyterLab has not reported that it ended: "
ON_NODE = "if it or its ranks still run, they end once that learner types `rankroom workshop leave`"
SEATS_LOST = (
    "no contact with {users}: ranks of theirs may still be running, until the learner types "
    "`rankroom workshop leave`"
)
BY_JOB = "its job ends with its time"
JOB_LEFT = "job {job} of {user} still exists ({state}); it ends by itself once it runs"
