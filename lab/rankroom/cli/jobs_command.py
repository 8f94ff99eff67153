"""`rankroom jobs`: the jobs that were submitted from here, and their states."""

from __future__ import annotations

import asyncio
import contextlib
import time
from collections.abc import AsyncIterator

import click

from rankroom.errors import RankroomError, UsageError
from rankroom.scheduler import site
from rankroom.scheduler.jobs import JobStatus
from rankroom.scheduler.same_machine import is_here
from rankroom.scheduler.scheduler_client import Scheduler
from rankroom.scheduler.submitted_jobs import Submitted, all_submitted
from rankroom.ssh.host import place

FINISHED_STATES = ("ended", "gone")


@click.command()
@click.option("--site", "only", metavar="NAME", help="Only jobs of this site.")
@click.option("--all", "everything", is_flag=True, help="Include jobs that are over.")
@click.option("--cancel", metavar="JOB", help="End this job instead.")
def jobs(only: str | None, everything: bool, cancel: str | None) -> None:
    """List the jobs that Rankroom submitted from here: clusters, labs, batch runs, test jobs."""
    kept = [each for each in all_submitted() if only in (None, each.site)]
    if only is not None and not kept:
        site.load(only)  # raises UsageError if the name is mistyped
    if cancel is not None:
        click.echo(asyncio.run(_cancel([each for each in kept if each.job == cancel], cancel)))
        return
    rows, troubles = asyncio.run(_states(kept))
    shown = [(each, status) for each, status in rows if everything or not _over(status)]
    for each, status in shown:
        when = time.strftime("%d %b %H:%M", time.localtime(each.at))
        words = status.words if status else "unknown"
        click.echo(f"{each.job:>9}  {each.site:12}  {when}  {each.name:24}  {words}")
    for trouble in troubles:
        click.echo(trouble, err=True)
    if not shown:
        click.echo(NONE_UNFINISHED.format(ended=len(rows)) if rows else "no jobs")


def _over(status: JobStatus | None) -> bool:
    return status is not None and status.state in FINISHED_STATES


async def _states(
    kept: list[Submitted],
) -> tuple[list[tuple[Submitted, JobStatus | None]], list[str]]:
    """Return the status of each job (None if unknown), and why some are unknown. Records of jobs
    that ended long ago are removed."""
    places: dict[tuple[str, bool], list[Submitted]] = {}
    for each in kept:
        places.setdefault((each.site, each.is_of_here), []).append(each)
    answers = await asyncio.gather(*map(_ask, places.values()), return_exceptions=True)
    found: dict[tuple[str, bool], dict[str, JobStatus]] = {}
    troubles = []
    for where, answer in zip(places, answers, strict=True):
        if isinstance(answer, RankroomError):
            troubles.append(str(answer))
        elif isinstance(answer, BaseException):
            raise answer
        else:
            found[where] = answer
    rows = []
    for each in kept:
        status = found.get((each.site, each.is_of_here), {}).get(each.job)
        looked_at = each.seen(_over(status)) if status else each
        if looked_at.is_old:
            looked_at.remove()
        else:
            rows.append((looked_at, status))
    return rows, troubles


async def _ask(jobs: list[Submitted]) -> dict[str, JobStatus]:
    async with _scheduler_of(jobs[0]) as scheduler:
        return await scheduler.ask([each.job for each in jobs])


async def _cancel(found: list[Submitted], job: str) -> str:
    if not found:
        raise UsageError(NO_JOB.format(job=job))
    if len(found) > 1:
        raise UsageError(
            AT_SEVERAL_SITES.format(job=job, sites=", ".join(each.site for each in found))
        )
    async with _scheduler_of(found[0]) as scheduler:
        await scheduler.cancel(job)
    return f"job {job} at {found[0].site} is cancelled"


@contextlib.asynccontextmanager
async def _scheduler_of(job: Submitted) -> AsyncIterator[Scheduler]:
    """Yield the scheduler that has `job`: that of this machine if the job was submitted here, else
    that of the site's login node."""
    known = site.load(job.site)
    there = place("" if job.is_of_here or is_here(known) else known.login)
    try:
        yield Scheduler(known, there)
    finally:
        await there.close()


NONE_UNFINISHED = "no unfinished jobs (`rankroom jobs --all` lists {ended} that ended)"
NO_JOB = "job {job} was not submitted from here: `rankroom jobs --all` lists those that were"
AT_SEVERAL_SITES = (
    "job {job} exists at several sites ({sites}): choose one with `rankroom jobs --site NAME "
    "--cancel {job}`"
)
