"""Actions on a cluster of which only the name is known: start, stop, resize, restart, …

The supervisor carries them out; callers follow the cluster's status. Nothing here connects to
ranks, so that a Jupyter server need not load ipyparallel.
"""

from __future__ import annotations

import contextlib
import dataclasses
import os
import subprocess
import sys
import time
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import psutil

from rankroom import errors
from rankroom.cluster import launch, liveness, lookup, start_request
from rankroom.errors import (
    NoClusterError,
    NotYoursError,
    RankroomError,
    RunOverError,
    SshError,
    StartError,
    UsageError,
)
from rankroom.record.cluster_file import NAME_PATTERN, ClusterInfo, ClusterPaths, tail
from rankroom.record.model import RunInfo
from rankroom.record.owner import is_gone
from rankroom.record.store import Store
from rankroom.remote import start as remote
from rankroom.rpc.client import RpcError, ask
from rankroom.scheduler import site
from rankroom.supervisor.processes import start_limit
from rankroom.system.polling import poll_until
from rankroom.text.rank_ranges import choose_ranks, name_ranks

# Reply timeout of a supervisor on this machine: threads do what takes longer.
REPLY_TIMEOUT_S = 10.0
# Timeout for a site's agent to end its job; it replies when it takes longer.
REMOTE_END_TIMEOUT_S = 40.0
# Reply timeout of a restart, as a site's agent replies when it is done.
RESTART_REPLY_TIMEOUT_S = 120.0
END_TIMEOUT_S = 120.0  # beyond that, for a cluster to end that is to be started again
LOG_LINES = 500


def start(name: str, asked: Mapping[str, str], cwd: str | None) -> str:
    """Start ranks on the site called `name`; return the cluster's name while they start.

    Raises StartRequestError with what is invalid, by field; UsageError and StartError.
    """
    where = start_request.granted(site.load(name), asked)
    called = asked.get("name") or None
    again = start_request.auto_restart(asked)
    if where is not None:
        return remote.launch(where, called, again, cwd).name
    paths, _ = launch.launch(start_request.ranks(asked), called, cwd, again)
    return paths.name


def stop(name: str) -> str:
    """End a cluster and all that belongs to it; remove what is left of one that has failed.

    Returns what the user should know, if anything.
    """
    return end(*find(name))


def end(paths: ClusterPaths, info: ClusterInfo) -> str:
    """End the cluster `info` as `stop` does; another one that has its name by now is left alone."""
    if launch.is_another(paths.read(), info):
        return ""
    lookup.require_in_reach(info)
    if not liveness.alive(info) and liveness.remote_on(info):
        remote.relaunch(paths)  # only its agent can end its job
        poll_until(lambda: _is_kept(paths.read()), start_limit.START_TIMEOUT_S)
        info = paths.read() or info
    if info.remote is not None and liveness.alive(info):
        # Its agent here must not be ended before the job is; how long that takes depends on the
        # site.
        said = str(_ask(info, REMOTE_END_TIMEOUT_S, do="stop").get("text", ""))
        if said or not poll_until(lambda: liveness.process_state(info) == "gone", REPLY_TIMEOUT_S):
            return said
    left = paths.read()
    if left is not None and left.remote is not None and liveness.remote_on(left):
        job, where = left.remote.its_job, left.remote.site
        log = tail(paths.supervisor_log)
        raise StartError(JOB_NOT_CANCELLED.format(name=paths.name, job=job, site=where, log=log))
    lookup.end(paths, info)
    left = paths.read()
    if left is None or launch.is_another(left, info) or not liveness.alive(left):
        return ""
    if left.state == "ending":
        return ENDING.format(name=paths.name)
    raise StartError(NOT_STOPPED.format(name=paths.name, where=left.host or "another node"))


def _is_kept(info: ClusterInfo | None) -> bool:
    """Return whether a cluster whose agent is being started again has one, or is over by now."""
    return info is None or liveness.alive(info) or not liveness.remote_on(info)


def _wait_over(paths: ClusterPaths, said: str, stopped: ClusterInfo) -> None:
    """Wait until a cluster that was `stopped` to be started again has ended, and its supervisor.

    `said` is what the stop reported, if anything. Raises StartError after `END_TIMEOUT_S`.
    """

    def is_over() -> bool:
        info = paths.read()
        if launch.is_another(info, stopped):
            return True  # another client has started it meanwhile
        is_on = info is not None and (liveness.alive(info) or liveness.remote_on(info))
        return not is_on and not launch.supervisors(paths)

    if not poll_until(is_over, END_TIMEOUT_S):
        raise StartError(NOT_AGAIN.format(name=paths.name, said=said).rstrip())


def restart(name: str, ranks: Sequence[int] | None = None) -> str:
    """Restart ranks, by default all of them; start a cluster that has failed again.

    Returns what was done, in words.
    """
    paths, info = find(name)
    lookup.require_in_reach(info)
    if not liveness.alive(info):
        if liveness.remote_on(info):
            remote.relaunch(paths)  # its job may go on
        else:
            prepare_restart(paths, info, {})()
        return f"{name} was restarted"
    chosen = choose_ranks(ranks, info.size)
    if refused := _ask(info, do="restart", ranks=chosen).get("refused"):
        raise UsageError(refused)
    are = "are" if len(chosen) > 1 else "is"
    return f"{name_ranks(chosen)} of {name} {are} being restarted"


def resize(name: str, asked: Mapping[str, str]) -> None:
    """Restart a cluster with another number of ranks; their variables are gone."""
    paths, info = find(name)
    if info.remote is None and start_request.ranks(asked) is None:
        raise start_request.StartRequestError({"ranks": "must be the new number of ranks"})
    lookup.require_in_reach(info)
    start_again(paths, info, asked, lambda: end(paths, info), _environment(info))


def start_again(
    paths: ClusterPaths,
    info: ClusterInfo,
    asked: Mapping[str, str],
    stop: Callable[[], str],
    env: Mapping[str, str] | None = None,
) -> subprocess.Popen[bytes] | None:
    """Stop a cluster and start it again under its name, unchanged except for what is asked for.

    `stop()` ends it, and returns what the user should know. Ranks on this machine run under the
    same Python as before, with this process's environment or with `env`. Returns their supervisor
    while they start. An invalid request is refused before anything is stopped: with
    StartRequestError by field, UsageError, NoClusterError, and at a site SchedulerError, or
    SshError while its scheduler cannot be asked. Raises StartError if the end takes too long.
    """
    lookup.require_in_reach(info)
    begin = prepare_restart(paths, info, asked, env)
    try:
        _wait_over(paths, stop(), info)
    except KeyboardInterrupt:
        raise StartError(NOT_AGAIN.format(name=paths.name, said="").rstrip()) from None
    return begin()


def prepare_restart(
    paths: ClusterPaths,
    info: ClusterInfo,
    asked: Mapping[str, str],
    env: Mapping[str, str] | None = None,
) -> Callable[[], subprocess.Popen[bytes] | None]:
    """Check a request to start a cluster again; return what starts it once it is stopped."""
    if info.remote is not None:
        if paths.read() is None:
            raise NoClusterError(errors.CLUSTER_STOPPED.format(name=paths.name))
        there = start_request.granted(remote.site_of(paths), asked)
        assert there is not None  # a site that has run a job has a scheduler
        if any(asked.values()) and liveness.alive(info):
            _ask(info, remote.ACCEPT_CHECK_TIMEOUT_S, do="accepts", site=dataclasses.asdict(there))

        def submit() -> None:
            remote.launch(there, paths.name, info.auto_restart, info.cwd or None)

        return submit
    if info.allocation is None:
        start_request.granted(site.load("local"), asked)
    given = os.environ if env is None else env
    ranks = start_request.ranks(asked)
    granted, _, size = launch.room_for(ranks, given)
    if info.allocation is not None and granted is None:
        raise UsageError(NOT_IN_JOB.format(name=paths.name, job=info.allocation.job))
    if ranks is None and size != info.size:
        # Only if it is not the default, which gives unequal nodes as many ranks as before.
        ranks = info.size
        launch.room_for(ranks, given)
    python = info.python or sys.executable
    if not os.access(python, os.X_OK):
        raise UsageError(NO_PYTHON.format(name=paths.name, python=python))
    folder = launch.working_folder(info.cwd)
    return lambda: launch.launch(
        ranks, paths.name, folder, info.auto_restart, preload=info.preload, python=python, env=env
    )[1]


def _environment(info: ClusterInfo) -> dict[str, str] | None:
    """Return the environment that a cluster was started with, which may differ from this process's;
    None unless its supervisor runs on this machine."""
    with contextlib.suppress(psutil.Error, OSError):
        if liveness.alive(info) and liveness.here(info.host, info):
            return psutil.Process(info.supervisor).environ() or None
    return None


def interrupt(name: str, run: str | None = None) -> None:
    """Raise KeyboardInterrupt on every rank, whatever it runs; return when all are free, or soon.

    With the id of a `run`, only on the ranks of that run: RunOverError if it is not in progress.
    """
    _ask(find(name)[1], do="interrupt", run=run)


def release(name: str, run: str | None = None) -> str:
    """Release blocked collectives, only of `run` if one is named; return what was released."""
    return str(_ask(find(name)[1], do="release", run=run)["text"])


def answer(run: RunInfo, text: str, prompts: Mapping[int, int]) -> list[int]:
    """Answer prompts of a run in progress, by rank and number; return the ranks that took it.

    Raises UsageError if none did.
    """
    info = find(run.cluster)[1]
    asked = {str(rank): number for rank, number in prompts.items()}
    if not asked:
        raise UsageError(errors.NOT_ASKED)
    taken: list[int] = _ask(info, do="answer", run=run.id, text=text, prompts=asked)["ranks"]
    if not taken:
        raise UsageError(errors.ALREADY_ANSWERED)
    return taken


def complete(run: RunInfo, text: str, rank: int, prompt: int) -> tuple[int, list[str]]:
    """Return completions of a line for a rank's debugger, and where the completed word begins."""
    info = find(run.cluster)[1]
    said = _ask(info, do="complete", run=run.id, text=text, rank=rank, prompt=prompt)
    return said["begin"], said["matches"]


def stacks(name: str) -> dict[int, str]:
    """Return the stacks of each rank's threads, as text."""
    said = _ask(find(name)[1], do="stacks", ranks=None)["stacks"]
    return {int(rank): str(text) for rank, text in said.items()}


def restart_and_wait(name: str, ranks: Sequence[int], run: str | None = None) -> None:
    """Restart ranks, and wait until they are ready; if a `run` is named, only while it goes on.

    Raises StartError if one does not start, RunOverError if the run is over.
    """
    paths, _ = find(name)
    lookup.read_supervised(paths)

    def request(do: str, **more: Any) -> dict[str, Any]:
        return _ask(find(name)[1], RESTART_REPLY_TIMEOUT_S, do=do, run=run, **more)

    restart_by(request, paths, ranks)


def restart_by(
    ask: Callable[..., Mapping[str, Any]], paths: ClusterPaths, ranks: Sequence[int]
) -> dict[str, int]:
    """Restart ranks with requests sent by `ask`, and wait until they are ready; return how often
    each has been restarted by now."""
    before = lookup.read_supervised(paths)
    if refused := ask("restart", ranks=list(ranks)).get("refused"):
        raise UsageError(refused)
    deadline = time.monotonic() + launch.start_timeout_s(before)
    while waiting := _unready(paths, ranks, before):
        if time.monotonic() > deadline:
            raise launch.timed_out(paths, waiting)
        time.sleep(0.02)
    now = lookup.read_supervised(paths).restarts
    return {str(rank): now[str(rank)] for rank in ranks}


def _unready(paths: ClusterPaths, ranks: Sequence[int], before: ClusterInfo) -> list[int]:
    """Return which of the restarted ranks are not ready. Raises StartError if one ended instead."""
    info = lookup.read_supervised(paths)
    waiting = []
    for rank in ranks:
        key = str(rank)
        again = info.restarts.get(key, 0) > before.restarts.get(key, 0)
        if again and key in info.exits:
            raise launch.ended_while_starting(paths, rank, info.exits[key])
        if not again or rank in info.starting or rank not in info.ready:
            waiting.append(rank)
    return waiting


def running_run(store: Store, run_id: str) -> RunInfo:
    """Return a run in progress, to act on it. Raises RunOverError if it is over or lost.

    One that only seems lost, as nothing has been heard of a process that cannot be looked up from
    here, may be stuck: its supervisor, if there is one, knows.
    """
    run = store.load(run_id)
    if run.state == "lost" and (run.owner is None or is_gone(run.owner)):
        raise RunOverError(LOST.format(id=run.id))
    if run.state not in ("running", "lost"):
        raise RunOverError(OVER.format(id=run.id, state=run.state))
    return run


def look(name: str) -> dict[str, Any]:
    """Return the load of each rank; empty if it cannot be known now."""
    _, info = find(name)
    try:
        return _ask(info, do="look")
    except (NoClusterError, SshError):  # elsewhere, gone, or not connected: its card says so
        return {}


def log(name: str) -> str:
    """Return what the job of a cluster has written; for one here, the end of each process's log.

    For a job that is over, or no longer followed from here, what is stored here.
    """
    paths, info = find(name)
    if info.remote is not None and liveness.alive(info):
        return str(_ask(info, do="log").get("text", ""))
    logs = [paths.supervisor_log, paths.controller_log, *map(paths.rank_log, range(info.size))]
    if info.remote is not None:
        logs = [paths.job_log, paths.supervisor_log]
    ends = [f"── {each.name}\n{tail(each, LOG_LINES) or '(empty)'}" for each in logs]
    return "\n\n".join([f"in {paths.logs}", *ends])


def find(name: str) -> tuple[ClusterPaths, ClusterInfo]:
    """Return a cluster by a name that is untrusted. Raises NoClusterError, NotYoursError."""
    if not NAME_PATTERN.fullmatch(name):
        raise NoClusterError(f"{name!r} is not a valid cluster name")
    paths = ClusterPaths(name)
    with contextlib.suppress(FileNotFoundError):  # reported below
        # An administrator's server sees the clusters of others, and leaves them alone.
        if (owner := paths.folder.stat().st_uid) != os.geteuid():
            raise NotYoursError(NOT_YOURS.format(name=paths.name, uid=owner))
    info = paths.read()
    if info is None:
        raise NoClusterError(NO_SUCH.format(name=name))
    return paths, info


def _ask(info: ClusterInfo, patience: float = REPLY_TIMEOUT_S, **question: Any) -> dict[str, Any]:
    lookup.require_in_reach(info)
    if not liveness.alive(info):
        gone = AGENT_GONE if liveness.remote_on(info) else GONE
        raise NoClusterError(gone.format(name=info.name))
    if info.remote and not info.rpc:
        raise NoClusterError(errors.EARLIER_SITE.format(name=info.name, pid=info.supervisor))
    try:
        answer = ask(info.rpc, info.rpc_key, patience, **question)
    except TimeoutError:  # it may well be running
        raise StartError(NO_REPLY.format(name=info.name, seconds=patience)) from None
    except RpcError as error:
        raise RankroomError(errors.SUPERVISOR_FAILED.format(name=info.name, error=error)) from None
    except (ConnectionRefusedError, FileNotFoundError):  # it no longer listens
        raise NoClusterError(SUPERVISOR_UNREACHABLE.format(name=info.name)) from None
    except OSError as error:  # of this process, or the network: the supervisor may be fine
        words = REQUEST_FAILED.format(name=info.name, error=errors.with_remedy(error))
        raise RankroomError(words) from None
    errors.raise_reported(answer)
    return answer


NO_SUCH = "there is no cluster named {name}: it was stopped, or never started"
GONE = "the supervisor of cluster {name} is gone: `rankroom cluster restart {name}` starts it again"
NOT_AGAIN = (
    "{name} is still being stopped, so it was not started again: start it once it has ended. {said}"
)
NOT_IN_JOB = (
    "cluster {name} belongs to job {job}, and this process is outside that job: restart it from "
    "within the job while that is running, or stop it and start another one"
)
ENDING = "cluster {name} is still being stopped"
NOT_STOPPED = (
    "cluster {name} could not be reached on {where}, and may still be running: stop it from a node "
    "of its job, or cancel the job"
)
JOB_NOT_CANCELLED = (
    "the local agent of cluster {name} did not start, or was ended, so {job} on {site} has not "
    "been cancelled: try again, or cancel it there; the agent's log ends with:\n{log}"
)
AGENT_GONE = (
    "the local agent of cluster {name} is gone, but its job may still be running: `%cluster "
    "attach {name}` or Reconnect in the sidebar starts a new agent"
)
NO_PYTHON = (
    "cluster {name} cannot be started again, as its Python, {python}, is no longer there: stop "
    "it, and start one from another environment"
)
NOT_YOURS = "cluster {name} belongs to another user (uid {uid}): only they can act on it"
OVER = "run {id} is over ({state}): there is nothing left to act on"
LOST = (
    "run {id} is lost, as the supervisor of its cluster is gone: `rankroom runs repair` completes "
    "its record with what its ranks left"
)
SUPERVISOR_UNREACHABLE = (
    "the supervisor of cluster {name} does not accept connections: `%cluster stop {name}` ends it"
)
REQUEST_FAILED = "the request to the supervisor of cluster {name} failed: {error}"
NO_REPLY = (
    "the supervisor of cluster {name} did not answer within {seconds:.0f} s: try again; if it "
    "stays silent, `%cluster stop {name}` ends it"
)
