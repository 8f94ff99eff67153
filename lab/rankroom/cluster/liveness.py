"""Whether a cluster's supervisor runs: it does, it is gone, or that cannot be told from here.

Login nodes and containers share homes, and a process of another one cannot be looked up. What
cannot be told is not gone: nothing of it is removed, restarted, or used by another.
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

ANSWER_S = 2.0  # for a supervisor on another machine
SUPERVISOR = "rankroom.supervisor.supervisor"
# The second one keeps a cluster on a site.
SUPERVISORS = (*names(SUPERVISOR), *names("rankroom.remote.agent"))
State = Literal["runs", "gone", "unknown"]


def state(info: ClusterInfo | None) -> State:
    """How the process that keeps this cluster stands, as far as can be told; one that has said its
    end counts as gone."""
    return "gone" if info is None or info.state in ("failed", "stopped") else process_state(info)


def process_state(info: ClusterInfo) -> State:
    """The same of the process alone, whatever it has said."""
    if is_elsewhere(info):
        return _elsewhere(info)
    if not info.supervisor:
        return "gone"
    if not here(info.host, info):
        return _answers(info)
    runs = process_tree.lives(info.supervisor, info.began)
    return "runs" if runs and (info.began or _is_supervisor(info.supervisor)) else "gone"


def alive(info: ClusterInfo | None) -> bool:
    """True unless the process that keeps this cluster is known to be gone."""
    return state(info) != "gone"


def remote_on(info: ClusterInfo) -> bool:
    """Whether a cluster on a site may go on there, as its job is not known to be over."""
    remote = info.remote
    return remote is not None and remote.has_job and remote.state not in ("ended", "failed")


def here(host: str, info: ClusterInfo) -> bool:
    """Whether a process of a cluster, which `host` has, is one of this machine's.

    Outside of a job it is, whatever name the machine has by now, unless all of it is not; of a
    cluster on a site, the agent.
    """
    if not in_job(info):
        is_of_site = info.remote is not None and host != info.host
        return not (is_of_site or is_elsewhere(info))
    is_ours = host != info.host or not info.space or pid_space.is_here(_space(info))
    return host == socket.gethostname() and is_ours


def in_job(info: ClusterInfo) -> bool:
    """Whether the process that keeps a cluster is on a node of its job. A cluster on a site has a
    job as well, and an agent outside of it."""
    return info.allocation is not None and info.remote is None


def is_elsewhere(info: ClusterInfo) -> bool:
    """Whether what keeps the cluster is on another machine, or in another container, that has the
    same home: it is not reached from here. A job's supervisor is, over the network."""
    return bool(info.space) and not in_job(info) and not pid_space.is_here(_space(info))


def where(info: ClusterInfo) -> str:
    """Where a cluster that is elsewhere was started, for people."""
    namesake = info.host == socket.gethostname()
    return f"another container or boot of {info.host}" if namesake else info.host


def _space(info: ClusterInfo) -> PidSpace:
    return PidSpace.read(info.space)


def _elsewhere(info: ClusterInfo) -> State:
    """By the lock that a supervisor has while it runs. That it is free is known to the kernel that
    gave it only: over a network some file systems give everybody every lock."""
    lock = _lock(ClusterPaths(info.name)) if info.locked else "none"
    if lock == "busy":
        return "runs"
    # A laptop may have its name from the network that it is in; of login nodes, the name may be all
    # that differs.
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
    """The same for a process of an earlier version, which did not say when it began."""
    try:
        return any(each in psutil.Process(pid).cmdline() for each in SUPERVISORS)
    except psutil.Error:
        return False
    except OSError:  # this process is out of descriptors, say: nothing was found out
        return True


def _answers(info: ClusterInfo) -> State:
    """How a supervisor on another node of a job stands; one that is only silent runs, while its
    job is not known to be over."""
    granted = info.allocation
    silent: State = "runs"
    try:
        ask(info.rpc, info.rpc_key, ANSWER_S, do="alive")
        return "runs"
    except ConnectionRefusedError:
        if granted is None or _short(socket.gethostname()) in (
            _short(node.name) for node in granted.nodes
        ):
            return "gone"
        silent = "unknown"  # from other machines a site may refuse every connection to its nodes
    except OSError:
        pass
    if granted and _over(granted, time.monotonic() // 10):
        return "gone"
    return silent


def _short(host: str) -> str:
    return host.partition(".")[0]


@functools.lru_cache(maxsize=32)
def _over(granted: Allocation, moment: float) -> bool:
    """Whether a job is known to be over; its scheduler is asked once in a `moment`."""
    return ended_jobs.is_over(granted)
