"""Claiming a cluster: a process becomes its owner, in a way that others can check it is alive."""

from __future__ import annotations

import os
import socket

from rankroom.record.cluster_file import ClusterInfo, ClusterPaths
from rankroom.system import file_lock, pid_space, process_tree
from rankroom.system.polling import poll_until

LOCK_TIMEOUT_S = 5.0  # timeout for the lock, which processes that check for an owner hold briefly


def claim(paths: ClusterPaths, info: ClusterInfo) -> int:
    """Enter this process in `info` as the cluster's owner, and lock the cluster's lock file.

    Returns the file's descriptor; the lock is held until it is closed or this process ends. Raises
    OSError, and SystemExit if another process owns the cluster, whose files are left alone.
    """
    info.host, info.space = socket.gethostname(), str(pid_space.here())
    info.supervisor = os.getpid()
    info.began = process_tree.began(info.supervisor) or 0
    descriptor = os.open(paths.lock, os.O_RDWR | os.O_CREAT, 0o600)
    outcome: file_lock.Outcome = "busy"

    def is_known() -> bool:
        nonlocal outcome
        outcome = file_lock.take(descriptor, file_lock.EXCLUSIVE)
        return outcome != "busy"

    if not poll_until(is_known, LOCK_TIMEOUT_S):
        os.close(descriptor)
        raise SystemExit(ALREADY_OWNED.format(name=info.name))
    info.locked = outcome == "taken"
    return descriptor


ALREADY_OWNED = "another process already manages cluster {name}"
