"""Starts and attaches to a cluster on this machine, or on the nodes of this process's own job."""

from __future__ import annotations

import os
import subprocess

from rankroom.cluster import launch as local
from rankroom.cluster import lookup
from rankroom.cluster.base import AnyCluster
from rankroom.cluster.launch import Progress
from rankroom.errors import RankroomError, StartError
from rankroom.record.cluster_file import ClusterPaths, tail
from rankroom.supervisor import lease


class Cluster(AnyCluster):
    """Ranks on this machine, or on nodes of this process's own job.

    In a `with` statement, they are stopped at the end of its block, whatever happens in there.
    """

    @classmethod
    def local(
        cls,
        ranks: int | None = None,
        name: str | None = None,
        cwd: str | os.PathLike[str] | None = None,
        progress: Progress = lambda words: None,
        auto_restart: bool = False,
        reached_from: str = "",
        preload: str = "",
    ) -> Cluster:
        """Start `ranks` ranks on this machine; by default one per GPU, or 2 CPU ranks.

        In a job of Slurm or PBS, start them on its nodes; by default one per GPU, or one per task.
        With `auto_restart`, a rank that dies is restarted automatically, without its variables.
        `reached_from` is a machine outside of the job whose processes reach the ranks as well.
        Ranks are forked by a process on their node that has imported the modules in `preload`
        ("torch,horovod.torch"), else those that cells imported last; with "none" each starts alone.
        `progress(words)` is called as the start proceeds. Raises StartError with the cause and the
        end of the log that shows it, within 30 s (90 s in a job), plus 2 s for each rank that
        shares a core; nothing is left running then.
        """
        paths, supervisor = local.launch(ranks, name, cwd, auto_restart, reached_from, preload)
        return cls.ready(paths, supervisor, progress)

    @classmethod
    def ready(
        cls,
        paths: ClusterPaths,
        supervisor: subprocess.Popen[bytes],
        progress: Progress = lambda words: None,
    ) -> Cluster:
        """Wait until the cluster that `launch` has begun to start is ready; return it."""
        begun = paths.read()
        held = lease.hold(paths.folder)
        try:
            made = cls(paths, local.wait_ready(paths, supervisor, progress))
            made.make_current()
            return made
        except BaseException:
            lookup.end(paths, begun)
            raise
        finally:
            os.close(held)

    @classmethod
    def attach(cls, name: str | None = None) -> AnyCluster:
        """Connect to a running cluster, the one named or the newest, and run this process's cells
        on it.

        A run in progress becomes its latest run. Called again for the same cluster, it returns the
        same object until that is closed. Raises NoClusterError, listing the running clusters.
        """
        chosen = lookup.find(name)
        if chosen.remote is not None:
            from rankroom.remote.cluster import RemoteCluster

            patience = RemoteCluster.BACK_S if chosen.state == "running" else 0.0
            there = RemoteCluster.of(chosen).until_ready(patience=patience)
            there.make_current()
            return there
        current = cls.current
        if current is not None and current.is_attached and current.holds(chosen):
            # A new object each time would cost a thread and a descriptor each time.
            _follow(current)
            return current
        made = cls(ClusterPaths(chosen.name), chosen)
        try:
            _follow(made)
        except RankroomError:
            made.close()
            raise
        made.is_attached = True
        made.make_current()
        return made


def _follow(cluster: AnyCluster) -> None:
    try:
        cluster.follow()
    except RankroomError as error:
        log = tail(cluster.paths.supervisor_log)
        raise StartError(DEAF.format(name=cluster.name, error=error, log=log)) from None


DEAF = (
    "cluster {name} does not answer ({error}): `%cluster stop` ends it; the supervisor's log ends "
    "with:\n{log}"
)
