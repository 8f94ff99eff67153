"""Starting the agent here that manages a cluster on a site, for the first time or again."""

from __future__ import annotations

import contextlib
import dataclasses
import json
import socket
import sys
import time

from rankroom import config
from rankroom.cluster import launch as local
from rankroom.cluster import liveness
from rankroom.errors import StartError, UsageError, with_remedy
from rankroom.record.cluster_file import ClusterInfo, ClusterPaths, Remote, all_clusters, named
from rankroom.scheduler.scheduler_client import NO_SCHEDULER
from rankroom.scheduler.site import Site
from rankroom.system import pid_space

AGENT_MODULE = "rankroom.remote.agent"
SITE_FILE = "site.json"  # in the cluster's folder
ENDED_STATE_RETENTION_S = 24 * 3600.0  # the state of a cluster that is over is kept for so long
ACCEPT_CHECK_TIMEOUT_S = 90.0  # for a scheduler to say whether it would accept a job


def launch(
    site: Site, name: str | None = None, auto_restart: bool = False, cwd: str | None = None
) -> ClusterPaths:
    """Write cluster.json of a new cluster on `site`, start its agent, and return at once.

    Raises UsageError for a site without a scheduler and for a name that is invalid or in use,
    StartError if nothing can be started here.
    """
    if site.scheduler == "none":
        raise UsageError(NO_SCHEDULER.format(site=site.name))
    paths = named(name, site.name)
    _sweep()
    local.wait_closed(paths)
    job = site.job
    remote = Remote(
        site.name, site.login, words=f"connecting to {site.login or 'the scheduler'}",
        nodes=job.nodes, gpus_per_node=job.gpus_per_node, ranks_per_node=site.ranks_per_node,
        name=paths.name,
    )  # fmt: skip
    # The folder of this notebook exists at the site only if that is this machine.
    folder = "" if site.login else (cwd or str(config.current_folder()))
    info = ClusterInfo(
        paths.name, job.nodes * site.ranks_per_node, created=time.time(), python=sys.executable,
        cwd=folder, auto_restart=auto_restart, remote=remote,
        host=socket.gethostname(), space=str(pid_space.here()),
    )  # fmt: skip
    with local.one_at_a_time():
        local.remove_ended(paths)
        try:
            paths.make(0)
            paths.write(info)
            (paths.folder / SITE_FILE).write_text(json.dumps(dataclasses.asdict(site)))
            relaunch(paths)
        except BaseException as error:
            paths.remove()
            if isinstance(error, OSError):
                words = local.NOT_MADE.format(folder=paths.folder, error=with_remedy(error))
                raise StartError(words) from None
            raise
    return paths


def relaunch(paths: ClusterPaths) -> None:
    """Start an agent for a cluster that has none here. Raises StartError."""
    try:
        local.spawn(AGENT_MODULE, paths, local.own_environment())
    except OSError as error:
        raise StartError(f"cannot start the agent of cluster {paths.name} here: {error}") from None


def site_of(paths: ClusterPaths) -> Site:
    """Return the site as it was when the cluster was started. Raises OSError or ValueError."""
    return Site.from_json(json.loads((paths.folder / SITE_FILE).read_text()))


def _sweep() -> None:
    """Remove the folders of clusters on sites that ended more than ENDED_STATE_RETENTION_S ago."""
    for info in all_clusters():
        paths = ClusterPaths(info.name)
        is_over = info.remote is not None and info.remote.state in ("ended", "failed")
        if is_over and not liveness.alive(info):
            with contextlib.suppress(OSError):
                if time.time() - paths.info.stat().st_mtime > ENDED_STATE_RETENTION_S:
                    paths.remove()
