"""The resource options of commands that submit a job, and the start of the job's ranks."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any

import click

from rankroom.scheduler.site import JOB_OPTIONS

if TYPE_CHECKING:
    from rankroom.cluster.base import AnyCluster
    from rankroom.remote.cluster import RemoteCluster

Function = Callable[..., Any]


def job_options(command: Function) -> Function:
    """Give `command` an option for each field of a job; None if the user does not set it."""
    for option in reversed(JOB_OPTIONS):
        command = click.option(
            option.flag, type=option.type, metavar=option.metavar, help=option.help
        )(command)
    return command


def refuse_job_options(job: dict[str, Any], site_name: str | None = None) -> None:
    """Raise UsageError if a job option is set although no job is submitted, because no site is
    named, or a site without a scheduler."""
    from rankroom.cluster import start_request

    start_request.site_asked(site_name, job)


def start_cluster(
    ranks: int | None, site_name: str | None, job: dict[str, Any], name: str | None = None,
    auto_restart: bool = False, preload: str = "", stays: bool = True,
) -> AnyCluster:  # fmt: skip
    """Start a cluster here, or in a job with the resources `job` on a site; return it once its
    ranks are ready."""
    from rankroom.cluster import start_request

    where = start_request.site_asked(site_name, job, ranks, preload)
    if where is None:
        from rankroom.cluster.local import Cluster

        try:
            return Cluster.local(ranks, name, None, tell, auto_restart, preload=preload)
        except KeyboardInterrupt:  # Cluster.local() has ended its ranks
            raise SystemExit(INTERRUPTED_EXIT_STATUS) from None
    # Imported late, as it loads the code for schedulers.
    from rankroom.remote.cluster import RemoteCluster

    return wait_until_ready(RemoteCluster.start(where, name, auto_restart), stays)


def wait_until_ready(made: RemoteCluster, stays: bool = True) -> AnyCluster:
    """Wait until the ranks of a cluster on a site are ready, and return it. On Ctrl-C, the job is
    left running if the cluster `stays`, else ended."""
    try:
        ready = made.until_ready(tell)
        ready.make_current()
        return ready
    except (KeyboardInterrupt, SystemExit):
        if stays:
            remote = made.refresh().remote
            what = f"job {remote.job}" if remote and remote.job else "the start"
            click.echo(JOB_LEFT_RUNNING.format(what=what, name=made.name), err=True)
        else:
            click.echo(RANKS_ENDING, err=True)
            made.stop()
        raise SystemExit(INTERRUPTED_EXIT_STATUS) from None


def tell(words: str) -> None:
    """Print the progress of a start to standard error, apart from the command's own output."""
    click.echo(words, err=True)


INTERRUPTED_EXIT_STATUS = 130  # the exit status of an interrupted command, as in a shell
RANKS_ENDING = "ending the ranks"
JOB_LEFT_RUNNING = (
    "{what} was not cancelled: `%cluster attach {name}` in a notebook waits for its ranks, "
    "`rankroom cluster stop {name}` cancels it"
)
