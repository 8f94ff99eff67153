"""`%cluster start --site NAME`: what may be asked of a site, and the wait for what it grants."""

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
    """What a job on a site may be asked for."""
    options.add_argument("--site", metavar="NAME")
    for option in JOB_OPTIONS:
        options.add_argument(option.flag, type=option.type, metavar=option.metavar)
    options.add_argument("--dry-run", action="store_true")


def site_asked(chosen: argparse.Namespace) -> Site | None:
    """The site with what is asked of it; None for this machine. Raises UsageError."""
    if chosen.site is None and chosen.dry_run:
        raise UsageError(f"--dry-run {start_request.NO_SITE}")
    job = {option.name: getattr(chosen, option.name) for option in JOB_OPTIONS}
    return start_request.site_asked(chosen.site, job, chosen.ranks, chosen.preload)


def dry_run(found: Site | None, chosen: argparse.Namespace) -> str:
    """The script of the job that would be submitted."""
    if found is None:
        raise UsageError(f"--dry-run {start_request.NO_JOB_THERE.format(site=chosen.site)}")
    return start_request.script(found, chosen.name or "", chosen.auto_restart)


def attach_waiting(name: str | None) -> RemoteCluster | None:
    """Go on waiting for a cluster on a site that is not ready, if it is that one."""
    info = lookup.find(name)
    if info.remote is None:
        return None
    cluster = RemoteCluster.of(info)
    try:
        _wait(cluster, tells=info.state == "starting")
    except BaseException:  # the notebook stays with the cluster that it has
        cluster.close()
        raise
    cluster.make_current()
    return cluster


def is_as_asked(cluster: AnyCluster, asked: Site) -> bool:
    """Whether a cluster on a site is what is asked for now, however its ranks were counted."""
    with contextlib.suppress(OSError, ValueError, TypeError, KeyError, UsageError):
        found = remote.site_of(cluster.paths)
        return _counted(found) == _counted(asked)
    return False


def _counted(site: Site) -> Site:
    """The same, with the number of ranks said, which a profile may leave open."""
    return site.with_ranks(site.job.nodes * site.ranks_per_node)


def wait(cluster: RemoteCluster) -> None:
    """Make a cluster that starts the notebook's, and wait for it."""
    cluster.make_current()
    _wait(cluster)


def _wait(cluster: RemoteCluster, tells: bool = True) -> None:
    """Tell how it stands until its ranks are ready; an interrupt leaves it waiting."""
    begun = time.monotonic()
    try:
        with progress() as tell:
            cluster.until_ready(tell)
    except KeyboardInterrupt:
        info = cluster.refresh()
        job = f"job {info.remote.job} goes on" if info.remote and info.remote.job else "it goes on"
        raise RankroomError(WAITS.format(job=job, name=cluster.name)) from None
    if tells:
        print(f"{cluster.describe()}, ready in {time.monotonic() - begun:.1f} s")
        for line in filter(None, (*cluster.refresh().notes, cluster.warning())):
            print(line)


WAITS = (
    "{job}: `%cluster attach {name}` waits for it again, in this notebook or another; "
    "`%cluster stop {name}` cancels it"
)
