"""How a cluster on a site stands, as its agent here writes it down for all who look."""

from __future__ import annotations

import asyncio
import contextlib
from typing import Any

from rankroom.record.cluster_file import Allocation, ClusterInfo, ClusterPaths, Remote, RemoteState
from rankroom.record.model import RankInfo
from rankroom.system.log_line import say

# Of what the supervisor in the job says of the cluster, copied as they are.
COPIED = ("size", "epoch", "exits", "restarts", "past", "starting", "ready", "cwd")


class RemoteStatus:
    """cluster.json of a cluster on a site."""

    def __init__(self, paths: ClusterPaths, info: ClusterInfo, remote: Remote) -> None:
        self.paths = paths
        self.info = info
        self.remote = remote
        self.over = asyncio.Event()
        self.stopping = False
        self.ready = False  # whether all ranks are, and can be asked

    def save(self) -> None:
        """Write all of it."""
        with contextlib.suppress(OSError):  # a full disk; the next change is written whole
            self.paths.write(self.info)

    def say(self, state: RemoteState, words: str) -> None:
        """How it stands, for people."""
        if (self.remote.state, self.remote.words) != (state, words):
            self.remote.state, self.remote.words = state, words
            say(state, words)
            self.save()

    def fail(self, message: str, state: RemoteState = "failed") -> None:
        """It is over, for this reason."""
        if not self.over.is_set():
            self.info.state, self.info.message = "failed", message
            self.say(state, message)
            self.save()
            self.over.set()

    def take(self, told: dict[str, Any], is_connected: bool) -> bool:
        """Take in what the supervisor has said or written; False if the cluster is over by that.

        Its ranks are of use here only while it `is_connected`.
        """
        info, remote = self.info, self.remote
        for key in COPIED:
            setattr(info, key, told[key])
        # Which one of a version before does not say.
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
            self.say("running", f"runs on {hosts} (job {remote.job})")
        self.save()
        return not is_over
