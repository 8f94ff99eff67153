"""`%cluster start --site NAME`: the options of a job on a site, and the wait for its ranks."""

from __future__ import annotations

import argparse
import contextlib
import time
from typing import TYPE_CHECKING

from rankroom.cluster import lookup, start_request
from rankroom.cluster.base import AnyCluster
from rankroom.errors import RankroomError, UsageError
from rankroom.notebook.progress_line import progress
from rankroom.remote import start as remote
from rankroom.remote.cluster import RemoteCluster
from rankroom.scheduler.site import JOB_OPTIONS, Site

if TYPE_CHECKING:
    from rankroom.notebook.options import Options


def add_options(options: Options) -> None:
    """Add the options of a job on a site."""
    options.add_argument("--site", metavar="NAME")
    for option in JOB_OPTIONS:
        options.add_argument(option.flag, type=option.type, metavar=option.metavar)
    options.add_argument("--dry-run", action="store_true")


def site_asked(chosen: argparse.Namespace) -> Site | None:
    """Return the site with the job options that were given; None for this machine. Raises
    UsageError if they do not fit."""
    if chosen.site is None and chosen.dry_run:
        raise UsageError(f"--dry-run {start_request.NO_SITE}")
    job = {option.name: getattr(chosen, option.name) for option in JOB_OPTIONS}
    return start_request.site_asked(chosen.site, job, chosen.ranks, chosen.preload)


def dry_run(found: Site | None, chosen: argparse.Namespace) -> str:
    """Return the script of the job that would be submitted. Raises UsageError if none would be."""
    if found is None:
        raise UsageError(f"--dry-run {start_request.NO_JOB_THERE.format(site=chosen.site)}")
    return start_request.script(found, chosen.name or "", chosen.auto_restart)


def attach_waiting(name: str | None) -> RemoteCluster | None:
    """Attach to a cluster on a site, and wait until it is ready; None if it is not on a site."""
    info = lookup.find(name)
    if info.remote is None:
        return None
    cluster = RemoteCluster.of(info)
    try:
        _wait(cluster, tells=info.state == "starting")
    except BaseException:  # the notebook keeps the cluster that it has
        cluster.close()
        raise
    cluster.make_current()
    return cluster


def is_as_asked(cluster: AnyCluster, asked: Site) -> bool:
    """Return whether a cluster on a site is as requested, however its number of ranks was given."""
    with contextlib.suppress(OSError, ValueError, TypeError, KeyError, UsageError):
        found = remote.site_of(cluster.paths)
        return _counted(found) == _counted(asked)
    return False


def _counted(site: Site) -> Site:
    """Return the site with an explicit number of ranks, which a profile may leave open."""
    return site.with_ranks(site.job.nodes * site.ranks_per_node)


def wait(cluster: RemoteCluster) -> None:
    """Make a cluster that is starting the notebook's, and wait until it is ready."""
    cluster.make_current()
    _wait(cluster)


def _wait(cluster: RemoteCluster, tells: bool = True) -> None:
    """Show the progress of a cluster until its ranks are ready, then describe it if `tells`.

    Raises RankroomError at an interrupt, which leaves the job as it is.
    """
    begun = time.monotonic()
    try:
        with progress() as tell:
            cluster.until_ready(tell)
    except KeyboardInterrupt:
        info = cluster.refresh()
        what = f"job {info.remote.job}" if info.remote and info.remote.job else "the start"
        raise RankroomError(INTERRUPTED_WAIT.format(what=what, name=cluster.name)) from None
    if tells:
        print(f"{cluster.describe()}, ready in {time.monotonic() - begun:.1f} s")
        for line in filter(None, (*cluster.refresh().notes, cluster.warning())):
            print(line)


INTERRUPTED_WAIT = (
    "{what} was not cancelled: `%cluster attach {name}` waits for it again, in this notebook or "
    "another; `%cluster stop {name}` cancels it"
)
