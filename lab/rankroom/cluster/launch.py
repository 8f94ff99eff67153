"""Ranks on this machine: start their supervisor, and find out how many fit."""

from __future__ import annotations

import contextlib
import os
import secrets
import socket
import subprocess
import sys
import time
from collections.abc import Callable, Iterator, Mapping
from functools import partial
from pathlib import Path

import psutil

from rankroom import config
from rankroom.cluster import liveness
from rankroom.cluster.liveness import SUPERVISOR, SUPERVISORS
from rankroom.errors import StartError, UnreadableError, UsageError, with_remedy
from rankroom.record.cluster_file import (
    Allocation,
    ClusterInfo,
    ClusterPaths,
    named,
    tail,
    with_log,
)
from rankroom.scheduler import allocation
from rankroom.supervisor.processes import port_guard, start_limit
from rankroom.system import (
    control_groups,
    file_lock,
    network,
    path_views,
    pid_space,
    process_tree,
    python_command,
)
from rankroom.system.gpus import visible_gpus
from rankroom.system.polling import poll_until, skip_repeats
from rankroom.text.rank_ranges import name_ranks

Progress = Callable[[str], None]
TURN_S = 20.0  # longest wait for another start in progress
CLOSES_S = 30.0  # timeout for the supervisor of a failed cluster to end


class InUseError(UsageError):
    """A cluster of this name is running or being started: it can be attached to."""


def launch(
    ranks: int | None,
    name: str | None,
    cwd: str | os.PathLike[str] | None,
    auto_restart: bool = False,
    reached_from: str = "",
    preload: str = "",
    python: str = sys.executable,
    env: Mapping[str, str] | None = None,
) -> tuple[ClusterPaths, subprocess.Popen[bytes]]:
    """Start the supervisor of a new cluster and return at once; `Cluster.ready` waits for its
    ranks.

    Supervisor and ranks run under `python`, with this process's environment or with `env`. Raises
    UsageError for an invalid number of ranks, an invalid name or a folder that does not exist,
    InUseError for a name that is in use, StartError if nothing can be started.
    """
    env = own_environment() if env is None else dict(env)
    granted, devices, size = room_for(ranks, env)
    folder = working_folder(cwd)
    if granted is None:
        network.demand_loopback()
    kind = f"job-{granted.job}" if granted else "local"
    paths = named(name, kind)
    wait_closed(paths)
    if granted is None:  # then Horovod's store, too, is for processes of this machine only
        env |= {port_guard.BIND: "127.0.0.1"} | port_guard.environment(env)
    with one_at_a_time():
        remove_ended(paths)
        info = ClusterInfo(
            paths.name, size, created=time.time(), python=python, cwd=folder,
            auto_restart=auto_restart, allocation=granted, reached_from=reached_from,
            preload=preload, host=socket.gethostname(), space=str(pid_space.here()),
        )  # fmt: skip
        try:
            paths.make(size)
            paths.write(info)
            return paths, spawn(SUPERVISOR, paths, env, str(devices), python=python)
        except BaseException as error:
            paths.remove()
            if isinstance(error, OSError):
                raise _not_made(paths, error) from None
            raise


@contextlib.contextmanager
def one_at_a_time() -> Iterator[None]:
    """Serialize starts, so that the second of two clients that start one cluster finds the first
    start. Goes on without a lock if the file system has none, or another start hangs."""
    with contextlib.suppress(OSError):  # the next step fails for the same reason, and reports it
        config.make_private(config.home())
    with file_lock.locked_briefly(config.home() / "start.lock", TURN_S):
        yield


def wait_closed(paths: ClusterPaths) -> None:
    """Wait until the supervisor of a failed or stopped cluster has ended, as it records that state
    before it ends."""
    info = paths.read()
    if info is not None and info.state in ("failed", "stopped"):
        poll_until(lambda: not _supervisor(paths), CLOSES_S)


def _not_made(paths: ClusterPaths, error: OSError) -> StartError:
    return StartError(NOT_MADE.format(folder=paths.folder, error=with_remedy(error)))


def working_folder(cwd: str | os.PathLike[str] | None) -> str:
    """Return the absolute path of the folder where ranks start, by default the current directory.
    Raises UsageError if it does not exist.

    The supervisor, which passes it on, runs in `/`: a relative path would be another folder there.
    """
    folder = config.current_folder() if cwd is None else Path(cwd)
    if not folder.is_absolute():
        folder = config.current_folder() / folder
    if not folder.is_dir():
        raise UsageError(NO_FOLDER.format(folder=folder))
    return str(folder)


def spawn(
    module: str,
    paths: ClusterPaths,
    env: dict[str, str],
    *words: str,
    python: str = sys.executable,
) -> subprocess.Popen[bytes]:
    """Start the process that manages the cluster in this folder. Raises OSError."""
    with paths.supervisor_log.open("ab") as log:
        return subprocess.Popen(
            python_command.command(module, str(paths.folder), *words, python=(python,)),
            stdin=subprocess.DEVNULL, stdout=log, stderr=subprocess.STDOUT,
            start_new_session=True, cwd="/", env=env,
        )  # fmt: skip


def room_for(
    ranks: int | None, env: Mapping[str, str] = os.environ
) -> tuple[Allocation | None, int, int]:
    """Return the allocation that this environment is in, if any, the number of GPUs to use on this
    machine (0 in an allocation), and the number of ranks.

    Raises UsageError for a number of ranks that is invalid here.
    """
    granted = allocation.granted(ranks, env, partial(visible_gpus, env))
    if granted is None:
        devices = visible_gpus(env)
        size = ranks if ranks is not None else (devices or 2)
        where, cores = "this machine", control_groups.cores()
    else:
        devices, size = 0, sum(node.ranks for node in granted.nodes)
        where, cores = f"job {granted.job}", sum(node.cores for node in granted.nodes)
    if size < 1:
        raise UsageError(f"--ranks {size}: a cluster needs at least 1 rank")
    if size > (most := most_ranks(cores)):
        raise UsageError(f"--ranks {size}: {where} has {cores} cores, for {most} ranks at most")
    return granted, devices, size


def most_ranks(cores: int) -> int:
    """Return the limit for ranks on so many cores: a larger number is taken for a typing error."""
    return max(64, 4 * cores)


def wait_ready(
    paths: ClusterPaths, supervisor: subprocess.Popen[bytes], progress: Progress
) -> ClusterInfo:
    """Wait until all ranks are ready, and return the cluster's state.

    `progress(words)` is called as the start proceeds. Raises StartError with the cause and the end
    of the log that shows it, or after `start_timeout_s` seconds.
    """
    begun = time.monotonic()
    limit = start_timeout_s(paths.read())
    tell = skip_repeats(progress)
    missing: list[int] = []
    while time.monotonic() - begun < limit:
        info = paths.read()
        if info is None:
            raise StartError(with_log(f"cluster {paths.name} is gone", paths.supervisor_log))
        if info.exits:
            rank = min(map(int, info.exits))
            raise ended_while_starting(paths, rank, info.exits[str(rank)])
        if info.state == "failed":
            raise StartError(info.message)
        if supervisor.poll() is not None:
            raise StartError(with_log("the cluster's supervisor has ended", paths.supervisor_log))
        missing = sorted(set(range(info.size)) - set(info.ready))
        words = f"{len(info.ready)} of {info.size} ranks ready"
        tell(words if info.ranks else info.message or STARTING)
        # The pid of a rank on another node is known a moment after the rank is ready.
        if not missing and all(rank.pid for rank in info.ranks):
            return info
        time.sleep(0.01)
    raise timed_out(paths, missing)


def ended_while_starting(paths: ClusterPaths, rank: int, how: str) -> StartError:
    """Return the error for a rank that ended before it was ready."""
    return StartError(with_log(f"rank {rank} {how} while starting", paths.rank_log(rank)))


def timed_out(paths: ClusterPaths, missing: list[int]) -> StartError:
    """Return the error for a start that took too long: which ranks are missing, and their log."""
    info = paths.read()
    logs = [paths.rank_log(missing[0] if missing else 0), paths.controller_log]
    log = next(filter(tail, logs), paths.supervisor_log)
    late = name_ranks(missing) if missing else "the cluster was"
    words = f"{late} not ready after {start_timeout_s(info):.0f} s"
    if info is not None and not info.ranks and info.message:
        words += f", as {info.message}"
    return StartError(with_log(f"{words} (RANKROOM_START_SECONDS)", log))


def wait_end(paths: ClusterPaths, seconds: float = 16.0, asked: ClusterInfo | None = None) -> None:
    """Wait until the supervisor that was `asked` to stop has ended; then end whatever is left of
    its cluster, unless another one has its name by now."""

    def has_left() -> bool:
        info = paths.read()
        return info is None or is_another(info, asked) or liveness.process_state(info) == "gone"

    poll_until(has_left, seconds, 0.02)
    with one_at_a_time():  # a start under its name must not lose its processes or its folder
        if is_another(paths.read(), asked):
            return
        process_tree.end(own_processes(paths))
        if has_left() and not paths.unfinished():
            paths.remove()


def is_another(now: ClusterInfo | None, before: ClusterInfo | None) -> bool:
    """Return whether the cluster that has a name now is not the one that had it before."""
    return now is not None and before is not None and now.created != before.created


def start_timeout_s(info: ClusterInfo | None) -> float:
    """Return how long a start may take."""
    return start_limit.seconds(info) if info else config.start_seconds(start_limit.START_TIMEOUT_S)


def own_processes(paths: ClusterPaths) -> list[psutil.Process]:
    """Return the processes that provably belong to this cluster.

    Those that its supervisor started, and what they started, have its folder in their environment;
    the supervisor itself has it in its command.
    """
    found = process_tree.marked(process_tree.CLUSTER_MARK, paths.folder) | set(supervisors(paths))
    return sorted(found, key=lambda process: process.pid)


def remove_ended(paths: ClusterPaths) -> None:
    """Remove what an ended cluster left, as its name is used again; move aside what its ranks hold
    of unfinished runs.

    Raises UsageError if it has a supervisor, whatever its file says, or may go on at a site:
    InUseError if it is running or another client is just starting it. Raises StartError if what
    ranks hold cannot be moved aside.
    """
    before = paths.read()
    if before is not None and liveness.alive(before) and liveness.is_elsewhere(before):
        raise UsageError(ELSEWHERE.format(name=paths.name, where=liveness.where(before)))
    if before is not None and (liveness.alive(before) or liveness.remote_on(before)):
        raise InUseError(IN_USE.format(name=paths.name))
    # If another node of a job is starting it, its processes cannot be seen here.
    is_begun = before is not None and is_unclaimed(before) and is_in_time(before)
    if before is not None and is_begun and not liveness.here(before.host, before):
        raise InUseError(STARTS.format(name=paths.name))
    if not paths.is_removed() and (found := supervisors(paths, doubtful=True)):
        if is_begun:
            raise InUseError(STARTS.format(name=paths.name))
        raise UsageError(SUPERVISED.format(name=paths.name, pid=found[0].pid, path=paths.info))
    if paths.unfinished():
        try:
            paths.folder.rename(paths.folder.with_name(f"{paths.name}.{secrets.token_hex(2)}"))
        except OSError as error:
            raise _not_made(paths, error) from None
    paths.remove()


def is_unclaimed(info: ClusterInfo) -> bool:
    """Return whether no supervisor has recorded yet that it manages the cluster."""
    return info.state == "starting" and not info.supervisor


def is_in_time(info: ClusterInfo) -> bool:
    """Return whether its start may still be in progress, as far as the clock tells, which may have
    been set since."""
    return time.time() - info.created < start_timeout_s(info)


def supervisors(paths: ClusterPaths, doubtful: bool = False) -> list[psutil.Process]:
    """Return the processes on this machine that were started to manage the cluster in this folder;
    not those of a container in which this path is another folder.

    A process in another session of a container, or of another group, may not be open to inspection.
    It counts if the cluster's file names it, and with `doubtful` in any case.
    """
    wanted = [[each, str(paths.folder)] for each in SUPERVISORS]
    own = _supervisor(paths)
    return [
        process
        for process in psutil.process_iter(["cmdline"])
        if python_command.arguments(process.info["cmdline"] or [])[:2] in wanted
        and path_views.is_same(process.pid, paths.folder, doubtful or process.pid == own)
    ]


def _supervisor(paths: ClusterPaths) -> int:
    """Return the pid that the cluster's file names, if that process is alive here; 0 if not."""
    with contextlib.suppress(UnreadableError):
        info = paths.read()
        if info is not None and liveness.here(info.host, info):
            return info.supervisor if process_tree.lives(info.supervisor, info.began) else 0
    return 0


def own_environment() -> dict[str, str]:
    """Return this process's environment without the marks of a cluster: a cluster that a cell of a
    rank starts does not belong to that rank."""
    marks = (
        process_tree.CLUSTER_MARK, process_tree.SPOOL_MARK, process_tree.START_MARK,
        process_tree.AGENT_MARK, process_tree.JOB_MARK,
    )  # fmt: skip
    return {name: value for name, value in config.environment().items() if name not in marks}


NO_FOLDER = "ranks cannot run in {folder}: there is no such folder"
NOT_MADE = "cannot start a cluster in {folder}: {error}"
STARTING = "starting the controller"
IN_USE = "a cluster named {name} is running: `%cluster attach {name}`, or choose another --name"
STARTS = (
    "a cluster named {name} is being started: `%cluster attach {name}` once it is ready, or choose "
    "another --name"
)
ELSEWHERE = (
    "a cluster named {name} was started on {where} and may still be running there: choose another "
    "--name"
)
SUPERVISED = (
    "a supervisor of a cluster named {name} is running (pid {pid}), although {path} does not "
    "record it: choose another --name, or end that process first"
)
