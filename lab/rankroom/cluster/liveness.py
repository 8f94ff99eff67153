"""Whether a cluster's supervisor runs: it does, it is gone, or that cannot be told from here.

Login nodes and containers share homes, and a process of another one cannot be looked up. A cluster
whose state cannot be told is not gone: nothing of it is removed, restarted or reused.
"""

from __future__ import annotations

import functools
import os
import socket
import time
from typing import Literal

import psutil

from rankroom.config import names
from rankroom.record.cluster_file import Allocation, ClusterInfo, ClusterPaths
from rankroom.rpc.client import ask
from rankroom.scheduler import ended_jobs
from rankroom.system import file_lock, pid_space, process_tree
from rankroom.system.pid_space import PidSpace

REPLY_TIMEOUT_S = 2.0  # reply timeout of a supervisor on another machine
SUPERVISOR = "rankroom.supervisor.supervisor"
# The second one manages a cluster on a site.
SUPERVISORS = (*names(SUPERVISOR), *names("rankroom.remote.agent"))
State = Literal["runs", "gone", "unknown"]


def state(info: ClusterInfo | None) -> State:
    """Return the state of the process that manages this cluster, as far as it can be told; one that
    has recorded its end counts as gone."""
    return "gone" if info is None or info.state in ("failed", "stopped") else process_state(info)


def process_state(info: ClusterInfo) -> State:
    """Return the state of the process alone, whatever it has recorded."""
    if is_elsewhere(info):
        return _elsewhere(info)
    if not info.supervisor:
        return "gone"
    if not here(info.host, info):
        return _answers(info)
    runs = process_tree.lives(info.supervisor, info.began)
    return "runs" if runs and (info.began or _is_supervisor(info.supervisor)) else "gone"


def alive(info: ClusterInfo | None) -> bool:
    """Return True unless the process that manages this cluster is known to be gone."""
    return state(info) != "gone"


def remote_on(info: ClusterInfo) -> bool:
    """Return whether a cluster on a site may go on there, as its job is not known to be over."""
    remote = info.remote
    return remote is not None and remote.has_job and remote.state not in ("ended", "failed")


def here(host: str, info: ClusterInfo) -> bool:
    """Return whether a process of a cluster, recorded as being on `host`, is on this machine.

    Outside of a job, processes are on this machine, even if it was renamed, unless the cluster is
    elsewhere; of a cluster on a site, only the agent is.
    """
    if not in_job(info):
        is_of_site = info.remote is not None and host != info.host
        return not (is_of_site or is_elsewhere(info))
    is_ours = host != info.host or not info.space or pid_space.is_here(_space(info))
    return host == socket.gethostname() and is_ours


def in_job(info: ClusterInfo) -> bool:
    """Return whether the process that manages a cluster is on a node of its job. A cluster on a
    site has a job as well, but its agent is outside of it."""
    return info.allocation is not None and info.remote is None


def is_elsewhere(info: ClusterInfo) -> bool:
    """Return whether the process that manages the cluster is on another machine, or in another
    container, with the same home: it cannot be reached from here. The supervisor of a job can,
    over the network."""
    return bool(info.space) and not in_job(info) and not pid_space.is_here(_space(info))


def where(info: ClusterInfo) -> str:
    """Return where a cluster that is elsewhere was started, for users."""
    namesake = info.host == socket.gethostname()
    return f"another container or boot of {info.host}" if namesake else info.host


def _space(info: ClusterInfo) -> PidSpace:
    return PidSpace.read(info.space)


def _elsewhere(info: ClusterInfo) -> State:
    """Return the state by the lock that a supervisor holds while it runs. That the lock is free
    counts only on the kernel that granted it: over a network, some file systems grant every lock
    to every host."""
    lock = _lock(ClusterPaths(info.name)) if info.locked else "none"
    if lock == "busy":
        return "runs"
    # A laptop's name may depend on its network; login nodes may differ by nothing but their names.
    on_laptop = info.remote is not None and bool(info.remote.login)
    if pid_space.was_rebooted(_space(info), is_renamed=on_laptop):
        return "gone"
    return "gone" if lock == "taken" and pid_space.is_same_boot(_space(info)) else "unknown"


def _lock(paths: ClusterPaths) -> file_lock.Outcome:
    try:
        descriptor = os.open(paths.lock, os.O_RDWR)
    except OSError:
        return "none"
    try:
        return file_lock.take(descriptor, file_lock.SHARED)
    finally:
        os.close(descriptor)


def _is_supervisor(pid: int) -> bool:
    """Return whether a process is a supervisor: for an earlier version, which did not record when
    the process began."""
    try:
        return any(each in psutil.Process(pid).cmdline() for each in SUPERVISORS)
    except psutil.Error:
        return False
    except OSError:  # unknown, as when this process is out of descriptors
        return True


def _answers(info: ClusterInfo) -> State:
    """Return the state of a supervisor on another node of a job; one that does not reply counts as
    running until its job is known to be over."""
    granted = info.allocation
    silent: State = "runs"
    try:
        ask(info.rpc, info.rpc_key, REPLY_TIMEOUT_S, do="alive")
        return "runs"
    except ConnectionRefusedError:
        if granted is None or _short(socket.gethostname()) in (
            _short(node.name) for node in granted.nodes
        ):
            return "gone"
        silent = "unknown"  # a site may refuse all connections from outside to its nodes
    except OSError:
        pass
    if granted and _over(granted, time.monotonic() // 10):
        return "gone"
    return silent


def _short(host: str) -> str:
    return host.partition(".")[0]


@functools.lru_cache(maxsize=32)
def _over(granted: Allocation, moment: float) -> bool:
    """Return whether a job is known to be over; its scheduler is asked once per `moment`."""
    return ended_jobs.is_over(granted)
