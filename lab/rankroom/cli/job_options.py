"""What a job asks for, as options of the commands that submit one, and ranks that it starts."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any

import click

from rankroom.errors import UsageError
from rankroom.scheduler import site as sites
from rankroom.scheduler.site import JOB_OPTIONS

if TYPE_CHECKING:
    from rankroom.cluster.base import AnyCluster

Function = Callable[..., Any]


def job_options(command: Function) -> Function:
    """Give `command` an option for each field of a job; None where the user says nothing."""
    for option in reversed(JOB_OPTIONS):
        command = click.option(
            option.flag, type=option.type, metavar=option.metavar, help=option.help
        )(command)
    return command


def refuse(job: dict[str, Any]) -> None:
    """Raise UsageError if something is asked of a job where none is submitted."""
    for option in JOB_OPTIONS:
        if job[option.name] is not None:
            raise UsageError(NO_JOB.format(flag=option.flag))


def started(
    ranks: int | None, site_name: str | None, job: dict[str, Any], name: str | None = None,
    auto_restart: bool = False, preload: str = "", stays: bool = True,
) -> AnyCluster:  # fmt: skip
    """A cluster here, or in a job of a site as `job` asks for, once its ranks are ready."""
    from rankroom.cluster.local import Cluster

    def progress(words: str) -> None:
        click.echo(words, err=True)

    if site_name is None:
        refuse(job)
        return Cluster.local(ranks, name, None, progress, auto_restart, preload=preload)
    # It needs the scheduler's side, which nothing else here does.
    from rankroom.remote.cluster import RemoteCluster

    where = sites.load(site_name).asking(**{k: v for k, v in job.items() if v is not None})
    where = (where if ranks is None else where.with_ranks(ranks)).preloading(preload)
    made = RemoteCluster.start(where, name, auto_restart)
    try:
        return made.until_ready(progress)
    except (KeyboardInterrupt, SystemExit):
        if stays:
            raise  # the job goes on, to be attached to
        click.echo(ENDS, err=True)
        made.stop()
        raise SystemExit(INTERRUPTED) from None


NO_JOB = "{flag} is for a job: say on which site, with --site NAME"
INTERRUPTED = 130  # the exit status, as a shell has it
ENDS = "the ranks are being ended"
