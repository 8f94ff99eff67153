"""The status of each cluster as the sidebar shows it, from what is on disk.

Nothing here connects to ranks or has a state of its own, so that every window shows the same.
"""

from __future__ import annotations

import time
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Literal

from rankroom.cluster import launch, liveness
from rankroom.errors import UnreadableError
from rankroom.record.cluster_file import (
    ClusterInfo,
    ClusterPaths,
    Remote,
    RemoteState,
    all_paths,
    silent_words,
    tail,
)
from rankroom.supervisor.processes import start_limit
from rankroom.text.rank_ranges import name_ranks

ClusterState = RemoteState
RankState = Literal["starting", "ready", "restarting", "down"]
SCHEMA_FILE = Path(__file__).with_name("cluster_status.schema.json")


@dataclass(frozen=True)
class RankStatus:
    """The state of a rank; `note` is how its process ended if it is down."""

    rank: int
    local_rank: int
    host: str
    device: str
    pid: int
    state: RankState
    note: str = ""


@dataclass(frozen=True)
class ClusterStatus:
    """The state of a cluster; cluster_status.schema.json describes each field."""

    name: str
    site: str
    state: ClusterState
    words: str
    remedy: str
    job: str
    size: int
    ranks: tuple[RankStatus, ...]
    nodes: int
    gpus_per_node: int
    expected: float
    until: float
    created: float
    log: str
    is_remote: bool
    is_supervised: bool


def all_clusters() -> list[ClusterStatus]:
    """Return every cluster, newest first, except those that were stopped."""
    found = []
    for paths in all_paths():
        try:
            info = paths.read()
        except UnreadableError as error:
            found.append(_unreadable(paths, str(error)))
            continue
        # A folder whose name is not its cluster's was moved aside: it holds what records may lack.
        if info is not None and info.name == paths.name and info.state != "stopped":
            found.append(status_of(info))
    return sorted(found, key=lambda each: each.created, reverse=True)


def status_of(info: ClusterInfo) -> ClusterStatus:
    """Return the state of one cluster."""
    ranks = tuple(_rank(info, rank) for rank in range(len(info.ranks)))
    granted = info.allocation
    if info.remote is not None:
        state, words, remedy = _how_remote(info, info.remote, ranks)
    else:
        state, words, remedy = _how(info, ranks)
    remote = info.remote or Remote("")
    return ClusterStatus(
        name=info.name,
        site=remote.site,
        state=state,
        words=words,
        remedy=remedy,
        job=remote.job or (granted.job if granted else ""),
        size=info.size or remote.nodes * remote.ranks_per_node,
        ranks=ranks,
        nodes=remote.nodes or (len(granted.nodes) if granted else 1),
        gpus_per_node=remote.gpus_per_node or _gpus(info),
        expected=remote.expected if state == "pending" else 0.0,
        until=remote.until or (granted.until if granted else 0.0),
        created=info.created,
        log=remote.log,
        is_remote=info.remote is not None,
        is_supervised=_young(info) or liveness.alive(info),
    )


def _unreadable(paths: ClusterPaths, why: str) -> ClusterStatus:
    """Return the status of a cluster that may be running; its age is unknown, so it comes last."""
    empty = status_of(ClusterInfo(paths.name, 0, "failed"))
    remedy = UNREADABLE.format(folder=paths.folder)
    return replace(empty, state="lost", words=why, remedy=remedy)


def _rank(info: ClusterInfo, rank: int) -> RankStatus:
    place, key = info.ranks[rank], str(rank)
    state: RankState = "starting"
    if rank in info.starting:
        state = "restarting"
    elif key in info.exits:
        state = "down"
    elif rank in info.ready:
        state = "ready"
    note = info.exits.get(key, "") if state == "down" else ""
    local_rank = place.local_rank if place.local_rank is not None else rank
    return RankStatus(rank, local_rank, place.host, place.device, place.pid, state, note)


def _gpus(info: ClusterInfo) -> int:
    """Return the largest number of GPUs that ranks use on one host."""
    hosts = [rank.host for rank in info.ranks if rank.device != "cpu"]
    return max((hosts.count(host) for host in set(hosts)), default=0)


def _how(info: ClusterInfo, ranks: tuple[RankStatus, ...]) -> tuple[ClusterState, str, str]:
    """Return state, words and remedy of a cluster on this machine or in its allocation."""
    if info.state == "failed":
        return "failed", info.message or "it has failed", _cause(info) or AGAIN
    if _young(info):
        return "starting", "the controller is starting", ""
    if not liveness.alive(info):
        return "failed", KILLED, AGAIN
    if liveness.is_elsewhere(info):
        return "running", *_how_elsewhere(info)
    if info.state == "ending":
        return "ending", "its ranks are being ended", ""
    if not ranks:  # none has been started yet
        return "starting", f"0 of {info.size} ranks ready", ""
    return _how_ranks(info, ranks)


def _how_ranks(info: ClusterInfo, ranks: tuple[RankStatus, ...]) -> tuple[ClusterState, str, str]:
    ready = sum(rank.state == "ready" for rank in ranks)
    down = [rank for rank in ranks if rank.state == "down"]
    coming = [rank for rank in ranks if rank.state in ("starting", "restarting")]
    words = f"{info.size} ranks ready" if info.size > 1 else "1 rank ready"
    if ready < info.size:
        words = f"{ready} of {info.size} ranks ready"
    if down:
        gone = name_ranks([rank.rank for rank in down])
        words = f"{words}; {gone} {'is' if len(down) == 1 else 'are'} down"
    if silent := silent_words(info):
        return "running", f"{words}; {silent}", SILENT
    if down:
        return "running", words, DOWN
    if any(rank.state == "starting" for rank in coming):
        late = info.remote is None and time.time() > info.created + launch.start_timeout_s(info)
        return "starting", words, SLOW_START.format(rank=coming[0].rank) if late else ""
    return "running", words, ""


def _how_remote(
    info: ClusterInfo, remote: Remote, ranks: tuple[RankStatus, ...]
) -> tuple[ClusterState, str, str]:
    """Return state, words and remedy of a cluster on a site, as its agent here wrote them; that
    counts only while the agent lives, or once the cluster is over."""
    over = remote.state in ("ended", "failed")
    if not (over or _young(info) or liveness.alive(info)):
        if liveness.remote_on(info):
            return "lost", UNKEPT, RECONNECT
        return "failed", KILLED, AGAIN
    if not over and liveness.is_elsewhere(info):
        return remote.state, *_how_elsewhere(info)
    if remote.state == "pending":
        # The browser adds the expected start, in the user's time zone.
        return "pending", f"is waiting in the queue ({remote.reason or 'no reason given'})", ""
    if remote.state == "running" and ranks:
        return _how_ranks(info, ranks)
    return (
        remote.state,
        remote.words or info.message or remote.state,
        AGAIN if remote.state == "failed" else "",
    )


def _how_elsewhere(info: ClusterInfo) -> tuple[str, str]:
    runs = liveness.state(info) == "runs"
    return (THERE if runs else MAY_RUN).format(where=liveness.where(info)), USE_THERE


def _young(info: ClusterInfo) -> bool:
    """Return whether the process that will manage the cluster has not begun yet."""
    age = time.time() - info.created
    return info.state == "starting" and not info.supervisor and age < start_limit.START_TIMEOUT_S


def _cause(info: ClusterInfo) -> str:
    """Return the last line of the log that shows why a cluster failed."""
    paths = ClusterPaths(info.name)
    logs = [paths.rank_log(int(rank)) for rank in info.exits]
    for log in (*logs, paths.controller_log, paths.supervisor_log):
        if text := tail(log, 1).strip():
            return SAID.format(log=log.name, text=text[:300])
    return ""


KILLED = "its supervisor was killed"
THERE = "runs on {where}"
MAY_RUN = "was started on {where}; whether it runs cannot be told from here"
USE_THERE = "It can be used, stopped and inspected only on that machine."
UNREADABLE = "If its file is damaged and none of its processes are left, delete {folder}."
UNKEPT = "its local agent is gone, but its job may still be running"
RECONNECT = "Reconnect starts a new agent; the ranks keep their variables."
AGAIN = "Restart starts it again; Remove takes it off this list."
DOWN = "Restart (↻) brings it back, without its variables."
SILENT = "Wait until the node responds, or restart its ranks (↻), which gives up the old ones."
SLOW_START = "Rank {rank} is taking a long time to start: see its log for the cause, or restart it."
SAID = "{log} ends with: {text}"
