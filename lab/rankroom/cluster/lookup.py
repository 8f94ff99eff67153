"""Finding clusters and ending them; why one that is gone has ended."""

from __future__ import annotations

import errno
import time

from rankroom.cluster import launch, liveness
from rankroom.errors import CLUSTER_STOPPED, EARLIER_SITE, ENDED, NO_CLUSTER, NoClusterError
from rankroom.record.cluster_file import ClusterInfo, ClusterPaths, all_clusters, all_paths
from rankroom.rpc.client import ask
from rankroom.scheduler import job_end


def running_clusters() -> list[ClusterInfo]:
    """Return the clusters whose supervisor is alive, newest first, without those out of reach."""
    return [info for info in all_clusters() if liveness.state(info) == "runs" and _in_reach(info)]


def find(name: str | None) -> ClusterInfo:
    """Return the running cluster of that name, or the newest. Raises NoClusterError, listing those
    that are running.

    A cluster on a site counts until its job is known to be over, with or without an agent here.
    """
    if (
        name is not None
        and (named := ClusterPaths(name).read()) is not None
        and _may_be_running(named)
    ):
        require_in_reach(named)
        return named  # also a site's part of a cluster, which `all_clusters` leaves out
    running = clusters_in_use()
    if not running:
        demand_readable()
        raise NoClusterError(NO_CLUSTER)
    if name is not None:
        names = ", ".join(info.name for info in running)
        raise NoClusterError(f"no running cluster is named {name!r}; running: {names}")
    return running[0]


def clusters_in_use() -> list[ClusterInfo]:
    """Return those that `find` chooses from, newest first, without those out of reach."""
    found = filter(_may_be_running, all_clusters())
    # One on a site whose agent is known to be gone, as after a reboot, is in reach.
    return [info for info in found if _in_reach(info) or not liveness.alive(info)]


def demand_readable() -> None:
    """Raise UnreadableError if there may be a cluster whose state cannot be read now."""
    for paths in all_paths():
        paths.read()


def require_in_reach(info: ClusterInfo) -> None:
    """Raise NoClusterError for a cluster that runs, or may run, out of reach."""
    if not _in_reach(info) and liveness.alive(info):
        said = RUNS_THERE if liveness.state(info) == "runs" else MAY_RUN
        raise NoClusterError(said.format(name=info.name, where=liveness.where(info)))


def _in_reach(info: ClusterInfo) -> bool:
    return not liveness.is_elsewhere(info)


def _may_be_running(info: ClusterInfo) -> bool:
    return liveness.alive(info) or liveness.remote_on(info)


def read_supervised(paths: ClusterPaths) -> ClusterInfo:
    """Return the cluster's state. Raises NoClusterError if it no longer has a supervisor."""
    info = paths.read()
    if info is None or (info.state == "stopped" and not info.message):
        raise NoClusterError(CLUSTER_STOPPED.format(name=paths.name))
    if info.state == "stopped" or (info.state == "failed" and info.remote is not None):
        raise NoClusterError(ENDED.format(name=paths.name, why=info.message))
    require_in_reach(info)
    if info.remote is not None and info.supervisor and not info.rpc:
        raise NoClusterError(EARLIER_SITE.format(name=paths.name, pid=info.supervisor))
    if not liveness.alive(info):
        if launch.is_unclaimed(info) and launch.supervisors(paths):
            raise NoClusterError(STARTS.format(name=paths.name))
        gone = UNKEPT if liveness.remote_on(info) else GONE
        raise NoClusterError(gone.format(name=paths.name, why=why_gone(info)))
    return info


def end(paths: ClusterPaths, known: ClusterInfo | None = None) -> None:
    """End a cluster: ask its supervisor; if that does not answer, end it by signal. Another cluster
    that has its name by now is left alone if `known` says which one is meant.

    Raises NoClusterError for one that is elsewhere: it can only be ended there. Raises OSError if
    this process has no file descriptors left: it can neither ask nor look for processes then.
    """
    if (info := paths.read()) is not None and not launch.is_another(info, known):
        require_in_reach(info)
        try:
            ask(info.rpc, info.rpc_key, do="stop")
        except OSError as error:
            if error.errno in (errno.EMFILE, errno.ENFILE):
                raise
        launch.wait_end(paths, asked=info)


def why_gone(info: ClusterInfo | None) -> str:
    """Return why a cluster no longer has a supervisor, in words."""
    if info is None or (info.state == "stopped" and not info.message):
        return "it was stopped"
    if not info.message and info.allocation and info.remote is None:
        # It may have had no time to write that down.
        job = info.allocation.job
        if 0 < info.allocation.until < time.time():
            return f"the time of job {job} is over"
        if words := job_end.why_over_now(job):
            return words
    return info.message or "its supervisor was killed"


STARTS = "cluster {name} is being started: wait until it is ready"
RUNS_THERE = "cluster {name} is running on {where}, and can be used only from there"
MAY_RUN = (
    "cluster {name} was started on {where}, and whether it runs cannot be told from here: use it "
    "there; `rankroom doctor` says what to do if that machine is gone for good"
)
UNKEPT = (
    "the local agent of cluster {name} is gone, but its job may still be running: "
    "`%cluster attach {name}` starts a new agent"
)
GONE = "cluster {name} is gone: {why}; `%cluster restart` starts it again"
