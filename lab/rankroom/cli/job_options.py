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


def refuse(job: dict[str, Any], site_name: str | None = None) -> None:
    """Raise UsageError if something is asked of a job where none is submitted, as no site was
    named, or one that has no scheduler."""
    for option in JOB_OPTIONS:
        if job[option.name] is not None:
            words = NO_JOB if site_name is None else NO_JOB_THERE
            raise UsageError(words.format(flag=option.flag, site=site_name))


def started(
    ranks: int | None, site_name: str | None, job: dict[str, Any], name: str | None = None,
    auto_restart: bool = False, preload: str = "", stays: bool = True,
) -> AnyCluster:  # fmt: skip
    """A cluster here, or in a job of a site as `job` asks for, once its ranks are ready."""
    from rankroom.cluster.local import Cluster

    def progress(words: str) -> None:
        click.echo(words, err=True)

    where = None if site_name is None else sites.load(site_name).asking(**job)
    if where is None or (where.scheduler == "none" and not where.login):
        refuse(job, site_name)
        try:
            return Cluster.local(ranks, name, None, progress, auto_restart, preload=preload)
        except KeyboardInterrupt:  # its ranks have been ended
            raise SystemExit(INTERRUPTED) from None
    # It needs the scheduler's side, which nothing else here does.
    from rankroom.remote.cluster import RemoteCluster

    where = (where if ranks is None else where.with_ranks(ranks)).preloading(preload)
    made = RemoteCluster.start(where, name, auto_restart)
    try:
        return made.until_ready(progress)
    except (KeyboardInterrupt, SystemExit):
        if stays:
            remote = made.refresh().remote
            what = f"job {remote.job}" if remote and remote.job else "it"
            click.echo(GOES_ON.format(what=what, name=made.name), err=True)
        else:
            click.echo(ENDS, err=True)
            made.stop()
        raise SystemExit(INTERRUPTED) from None


NO_JOB = "{flag} is for a job: say on which site, with --site NAME"
NO_JOB_THERE = "{flag} is for a job, and {site} has no scheduler"
INTERRUPTED = 130  # the exit status, as a shell has it
ENDS = "the ranks are being ended"
GOES_ON = (
    "{what} goes on: `%cluster attach {name}` in a notebook waits for its ranks, "
    "`rankroom cluster stop {name}` cancels it"
)
