"""What a job asks for, as options of the commands that submit one, and ranks that it starts."""

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
    """Give `command` an option for each field of a job; None where the user says nothing."""
    for option in reversed(JOB_OPTIONS):
        command = click.option(
            option.flag, type=option.type, metavar=option.metavar, help=option.help
        )(command)
    return command


def refuse(job: dict[str, Any], site_name: str | None = None) -> None:
    """Raise UsageError if something is asked of a job where none is submitted, as no site was
    named, or one that has no scheduler."""
    from rankroom.cluster import start_request

    start_request.site_asked(site_name, job)


def started(
    ranks: int | None, site_name: str | None, job: dict[str, Any], name: str | None = None,
    auto_restart: bool = False, preload: str = "", stays: bool = True,
) -> AnyCluster:  # fmt: skip
    """A cluster here, or in a job of a site as `job` asks for, once its ranks are ready."""
    from rankroom.cluster import start_request

    where = start_request.site_asked(site_name, job, ranks, preload)
    if where is None:
        from rankroom.cluster.local import Cluster

        try:
            return Cluster.local(ranks, name, None, tell, auto_restart, preload=preload)
        except KeyboardInterrupt:  # its ranks have been ended
            raise SystemExit(INTERRUPTED) from None
    # It needs the scheduler's side, which nothing else here does.
    from rankroom.remote.cluster import RemoteCluster

    return waited_for(RemoteCluster.start(where, name, auto_restart), stays)


def waited_for(made: RemoteCluster, stays: bool = True) -> AnyCluster:
    """A cluster on a site once its ranks are ready; Ctrl-C leaves its job if it `stays`."""
    try:
        return made.until_ready(tell)
    except (KeyboardInterrupt, SystemExit):
        if stays:
            remote = made.refresh().remote
            what = f"job {remote.job}" if remote and remote.job else "it"
            click.echo(GOES_ON.format(what=what, name=made.name), err=True)
        else:
            click.echo(ENDS, err=True)
            made.stop()
        raise SystemExit(INTERRUPTED) from None


def tell(words: str) -> None:
    """Say how a start goes on, beside what the command prints."""
    click.echo(words, err=True)


INTERRUPTED = 130  # the exit status, as a shell has it
ENDS = "the ranks are being ended"
GOES_ON = (
    "{what} goes on: `%cluster attach {name}` in a notebook waits for its ranks, "
    "`rankroom cluster stop {name}` cancels it"
)
