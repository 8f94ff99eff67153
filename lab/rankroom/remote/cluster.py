"""A cluster on a site: used like one on this machine, through the agent that manages it here."""

from __future__ import annotations

import contextlib
import time
from dataclasses import replace

from rankroom.cluster import launch, liveness
from rankroom.cluster.base import AnyCluster
from rankroom.errors import (
    CLUSTER_STOPPED,
    NoClusterError,
    RankroomError,
    RecordError,
    SshError,
    StartError,
)
from rankroom.record.cluster_file import ClusterInfo, ClusterPaths, tail
from rankroom.record.model import Json, RunInfo
from rankroom.remote import start
from rankroom.run.run import Run
from rankroom.scheduler.site import Site
from rankroom.system.polling import skip_repeats

AGENT_START_TIMEOUT_S = 20.0  # for an agent to start
POLL_INTERVAL_S = 0.05
NO_TIMEOUT = float("inf")


class RemoteCluster(AnyCluster):
    """Ranks on a site; this object is one process's connection to their agent here."""

    BACK_S = 15.0  # for a restarted agent to reach the ranks

    @classmethod
    def start(
        cls, site: Site, name: str | None = None, auto_restart: bool = False
    ) -> RemoteCluster:
        """Submit a job to `site` whose ranks are this cluster; `until_ready` waits for them.

        Raises UsageError or StartError if nothing can be started.
        """
        return cls.in_folder(start.launch(site, name, auto_restart))

    @classmethod
    def of(cls, info: ClusterInfo) -> RemoteCluster:
        """Return the cluster that `info` describes; start a new agent here if its agent is gone."""
        paths = ClusterPaths(info.name)
        if not liveness.alive(info):
            start.relaunch(paths)
        return cls.in_folder(paths)

    @classmethod
    def in_folder(cls, paths: ClusterPaths) -> RemoteCluster:
        """Return the cluster in `paths`, ready or not. Raises NoClusterError if there is none."""
        info = paths.read()
        if info is None:
            raise NoClusterError(CLUSTER_STOPPED.format(name=paths.name))
        return cls(paths, info)

    def until_ready(
        self, progress: launch.Progress = lambda words: None, patience: float = NO_TIMEOUT
    ) -> RemoteCluster:
        """Wait until its ranks are ready, however long the job is in the queue; `progress(words)`
        reports each new state. If they will not be ready, or not within `patience` s, raises
        StartError, and closes this connection. An interrupt leaves the job as it is: `attach` waits
        for it again.
        """
        begun = kept = time.monotonic()
        tell = skip_repeats(progress)
        try:
            while not self._is_ready():
                info, now = self.info, time.monotonic()
                words = info.remote.words if info.remote else ""
                tell(words)
                # The file of a live agent may not have been updated yet: look for its process.
                late = now > kept + AGENT_START_TIMEOUT_S
                if liveness.alive(info) or (late and launch.supervisors(self.paths)):
                    kept = now
                if now > kept + AGENT_START_TIMEOUT_S:
                    log = tail(self.paths.supervisor_log)
                    raise StartError(NO_AGENT.format(path=self.paths.supervisor_log, log=log))
                if now > begun + patience:
                    if not liveness.alive(info):
                        words = UNWRITTEN.format(path=self.paths.info)
                    raise StartError(NOT_YET.format(name=self.name, words=words))
                time.sleep(POLL_INTERVAL_S)
            with contextlib.suppress(SshError):  # it may have been lost again just now
                self.follow()
            return self
        except RankroomError:
            self.close()
            raise

    def _is_ready(self) -> bool:
        info = self.paths.read()
        if info is None or info.remote is None:
            raise StartError(f"cluster {self.name} was stopped before it was ready")
        if info.state in ("failed", "stopped"):
            raise StartError(info.message or info.remote.words)
        self.info = info
        return liveness.alive(info) and info.state == info.remote.state == "running"

    # -- description

    def describe(self) -> str:
        remote = self.refresh().remote
        assert remote is not None
        where = f"job {remote.job} on {remote.site}" if remote.job else remote.site
        left = f", {_left(remote.until)}" if remote.until else ""
        if not self.info.ranks:
            return f"{self.name}: {remote.words}"
        words = f"{super().describe()}, {where}{left}"
        return words if remote.state == "running" else f"{words}; {remote.words}"

    # -- internals

    def _run_of(self, told: Json) -> Run:
        # The state of the replica here, which may lag behind the site.
        try:
            info = self.store.load(str(told["id"]))
        except RecordError:  # a full disk here, say: the record is copied once there is space
            info = replace(RunInfo.from_json(told), state="running", end=None)
        return Run(info, self.store, self._ask, is_replica=True)

    def _take(self, told: Json) -> Run:
        # No thread watches it: callers that wait for the run see whether it is still being copied.
        self._latest = self._run_of(told)
        return self._latest


def _left(until: float) -> str:
    """Return how much time a job has left, in words."""
    minutes = max(0, int((until - time.time()) // 60))
    return f"{minutes // 60}:{minutes % 60:02} h left" if minutes else "less than a minute left"


NO_AGENT = "the cluster's agent here did not start; {path} ends with:\n{log}"
UNWRITTEN = "its agent here has not written {path} yet (is there space on that disk?)"
NOT_YET = (
    "cluster {name} cannot be used yet: {words}; `%cluster attach {name}` waits until it is ready"
)
