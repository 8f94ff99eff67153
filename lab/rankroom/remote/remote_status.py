"""The state of a cluster on a site, which its agent here writes to cluster.json for all clients."""

from __future__ import annotations

import asyncio
import contextlib
from typing import Any

from rankroom.record.cluster_file import Allocation, ClusterInfo, ClusterPaths, Remote, RemoteState
from rankroom.record.model import RankInfo
from rankroom.system.log_line import say

# Fields of the cluster's state that are copied unchanged from the supervisor in the job.
COPIED_FIELDS = ("size", "epoch", "exits", "restarts", "past", "starting", "ready", "cwd")


class RemoteStatus:
    """The cluster.json on this machine of a cluster on a site."""

    def __init__(self, paths: ClusterPaths, info: ClusterInfo, remote: Remote) -> None:
        self.paths = paths
        self.info = info
        self.remote = remote
        self.over = asyncio.Event()
        self.stopping = False
        self.ready = False  # whether all ranks are ready and can be reached

    def save(self) -> None:
        """Write the file."""
        with contextlib.suppress(OSError):  # a full disk: the next change writes all of it again
            self.paths.write(self.info)

    def say(self, state: RemoteState, words: str) -> None:
        """Set the state and its description for users; log and save them if they have changed."""
        if (self.remote.state, self.remote.words) != (state, words):
            self.remote.state, self.remote.words = state, words
            say(state, words)
            self.save()

    def fail(self, message: str, state: RemoteState = "failed") -> None:
        """Mark the cluster as over, with `message` as the reason, unless it is over already."""
        if not self.over.is_set():
            self.info.state, self.info.message = "failed", message
            self.say(state, message)
            self.save()
            self.over.set()

    def take(self, told: dict[str, Any], is_connected: bool) -> bool:
        """Take in the state that the supervisor has sent or written; return False if the cluster is
        over.

        The cluster counts as running here only while the supervisor `is_connected`.
        """
        info, remote = self.info, self.remote
        for key in COPIED_FIELDS:
            setattr(info, key, told[key])
        # Supervisors of earlier versions do not send these.
        info.silent, info.notes = told.get("silent", {}), told.get("notes", [])
        info.ranks = [RankInfo(**rank) for rank in told["ranks"]]
        if told["allocation"]:
            info.allocation = Allocation.from_json(told["allocation"])
            remote.until = info.allocation.until or remote.until
        all_known = len(info.ranks) == info.size and all(rank.pid for rank in info.ranks)
        is_over = told["state"] in ("failed", "stopped")
        if is_over:
            info.message = told["message"]
        elif info.state == "starting" and not (all_known and len(info.ready) == info.size):
            self.say("starting", f"{len(info.ready)} of {info.size} ranks ready (job {remote.job})")
        elif is_connected and not self.stopping:
            self.ready = True
            info.state = "running"
            hosts = ", ".join(sorted({rank.host for rank in info.ranks}))
            self.say("running", f"running on {hosts} (job {remote.job})")
        self.save()
        return not is_over
