"""What clusters and runs have left behind on this machine, and how to clean up each of it.

Only what is provably ours counts: folders in our own home, and processes that have one of them in
their environment or their command.
"""

from __future__ import annotations

import shutil
import socket
import time
from collections.abc import Callable, Collection, Iterator
from dataclasses import dataclass
from pathlib import Path

import psutil

from rankroom.cluster import launch, liveness, repair
from rankroom.errors import RecordError, UnreadableError, UnreadableRecordError, UsageError
from rankroom.record.blank import BLANK_SUFFIX, forsaken
from rankroom.record.cluster_file import (
    UNLISTED,
    ClusterInfo,
    ClusterPaths,
    all_paths,
    clusters_folder,
    is_past,
)
from rankroom.record.store import Store
from rankroom.scheduler import ended_jobs
from rankroom.supervisor.lease import held
from rankroom.system import pid_space, process_tree
from rankroom.text.rank_ranges import count_ranks

NEW_FOLDER_AGE_S = 5.0  # from the creation of a cluster's folder to that of its file, at most


@dataclass(frozen=True)
class Finding:
    """One thing that was found: `remedy` is what `clean` would do about it, `done` what it did."""

    what: str
    remedy: str = ""
    done: str = ""
    clean: Callable[[], None] | None = None


def findings(store: Store, gone: Collection[str] = ()) -> list[Finding]:
    """Return everything that exists: clusters, dead or alive, then what belongs to none.

    `gone` are the names of clusters that the user says are gone: see `demand_untold`.
    """
    found = [each for paths in all_paths() for each in _of_cluster(paths, store, gone)]
    return [*found, *_without_folder(clusters_folder()), *_blanks(store)]


def demand_untold(name: str) -> str:
    """Raise UsageError unless there is a cluster of this name of which it cannot be told from here
    whether it is running: for any other one, the user need not say so. Returns what to ask before
    it is taken for gone."""
    paths = ClusterPaths(name)
    if name not in (names := [each.name for each in all_paths()]):
        raise UsageError(NO_SUCH.format(name=name, names=", ".join(names) or "none"))
    info = paths.read()
    how = liveness.state(info)
    if info is None or how != "unknown":
        raise UsageError((IT_RUNS if how == "runs" else NOT_NEEDED).format(name=name))
    if seen := launch.own_processes(paths):  # such as in a container on this machine
        raise UsageError(SEEN.format(name=name, processes=_processes(seen)))
    if liveness.in_job(info) and info.allocation and ended_jobs.state(info.allocation) == "on":
        raise UsageError(JOB_ON.format(name=name, job=info.allocation.job))
    return (SURE_OF_AGENT if _has_job(info) else SURE).format(name=name)


def _has_job(info: ClusterInfo) -> bool:
    """Return whether a cluster on a site may have a job that goes on, which another agent can
    follow."""
    remote = info.remote if liveness.remote_on(info) else None
    return remote is not None and not is_past(remote.until)


def _of_cluster(paths: ClusterPaths, store: Store, gone: Collection[str] = ()) -> Iterator[Finding]:
    try:
        info = paths.read()
    except UnreadableError as error:
        yield Finding(str(error))
        return
    if info is None and (kept_by := launch.supervisors(paths, doubtful=True)):
        yield Finding(NO_FILE.format(name=paths.name, pid=kept_by[0].pid, path=paths.info))
        return
    if info is None and _is_new(paths):  # its file is about to be written
        return
    how = liveness.state(info)
    if info is not None and how == "unknown" and paths.name in gone:
        what = SAID_GONE.format(name=paths.name, where=liveness.where(info))
        if _has_job(info):
            yield Finding(what, *AGENT_ONLY, lambda: _forget_agent(paths, info))
        else:
            yield Finding(what, *WITH_RECORDS, lambda: _remove_gone(paths, info, store))
        return
    if info is not None and how != "gone" and liveness.is_elsewhere(info):
        said = RUNS_THERE if how == "runs" else MAY_RUN
        yield Finding(said.format(name=paths.name, where=liveness.where(info)))
        return
    job = _job_elsewhere(info) if info is not None and how != "runs" else ""
    is_up = how == "runs" or (how == "unknown" and not job)
    if info is not None and (is_up or _is_young(paths, info)):
        since = time.strftime("%Y-%m-%d %H:%M", time.localtime(info.created))
        use = "in use" if held(paths.folder / "lease") else "unused"
        ranks = count_ranks(info.size)
        where = f" in job {info.remote.job} on {info.remote.site}" if info.remote else ""
        yield Finding(f"cluster {paths.name}: {ranks}{where}, up since {since}, {use}")
        return
    if info is not None and info.remote is not None and _has_job(info):
        about = {"job": info.remote.its_job, "site": info.remote.site}
        yield Finding(UNKEPT.format(name=paths.name, **about))
        return
    if info is not None and job:
        yield Finding(
            f"cluster {paths.name}: does not answer from here; it was started on {info.host} in "
            f"job {job}, and is kept until that is over"
        )
        return
    left = launch.own_processes(paths)
    kept = [run for run in paths.unfinished() if run == UNLISTED or _lacks(store, run)]
    what = f"cluster {paths.name}: {_why(info)}"
    if left:
        what += f"; {_processes(left)} left"
    if kept:
        what += f"; it holds what may be missing from the record of {', '.join(kept)}"
    if kept and not left:
        yield Finding(f"{what}, so its folder is kept")
        return

    def clean() -> None:
        launch.wait_closed(paths)
        with launch.one_at_a_time():  # a start under its name must not lose its folder
            _demand_unchanged(paths, info)
            process_tree.end(left)
            if not kept:
                paths.remove()

    if kept:
        yield Finding(what, "ends what is left", "ended what was left", clean)
    elif left:
        yield Finding(what, *ALL_OF_IT, clean)
    else:
        yield Finding(what, "removes its folder", "removed its folder", clean)


def _remove_gone(paths: ClusterPaths, info: ClusterInfo, store: Store) -> None:
    """Complete the records of a cluster whose machine is gone, then remove its folder.

    Raises RecordError if a record cannot be completed: what it may lack is kept.
    """
    info.state, info.message = "failed", info.message or MACHINE_GONE
    repair.complete_gone(store, paths, info)
    kept = [run for run in paths.unfinished() if run == UNLISTED or _lacks(store, run)]
    if kept:
        raise RecordError(NOT_COMPLETE.format(name=paths.name, runs=", ".join(kept)))
    paths.remove()


def _forget_agent(paths: ClusterPaths, info: ClusterInfo) -> None:
    """Forget the agent of a cluster on a site, which is gone with its machine: another one, here,
    may follow the job, or cancel it."""
    info.supervisor, info.began, info.locked = 0, 0, False
    info.host, info.space = socket.gethostname(), str(pid_space.here())
    paths.write(info)


def _is_young(paths: ClusterPaths, info: ClusterInfo) -> bool:
    """Return whether the cluster is only just starting."""
    return launch.is_unclaimed(info) and (
        launch.is_in_time(info) or bool(launch.supervisors(paths))
    )


def _is_new(paths: ClusterPaths) -> bool:
    """Return whether its folder was created or changed a moment ago."""
    try:
        return time.time() - paths.folder.stat().st_mtime < NEW_FOLDER_AGE_S
    except OSError:
        return False


def _demand_unchanged(paths: ClusterPaths, before: ClusterInfo | None) -> None:
    """Raise UsageError if the dead cluster that was found no longer has its name."""
    now = paths.read()
    if now is None or before is None:
        is_same = now is before and not _is_new(paths)
    else:
        is_same = not launch.is_another(now, before) and liveness.state(now) == "gone"
    if not is_same:
        raise UsageError(CHANGED.format(name=paths.name))


def _job_elsewhere(info: ClusterInfo) -> str:
    """Return the job of a cluster that may be cut off rather than gone, as its job is not over."""
    granted = info.allocation if liveness.in_job(info) else None
    if granted is None or liveness.here(info.host, info) or info.state in ("failed", "stopped"):
        return ""
    return "" if ended_jobs.is_over(granted) else granted.job


def _why(info: ClusterInfo | None) -> str:
    if info is None:
        return "a folder without a cluster"
    if info.state == "stopped":
        return "stopped"
    return f"failed: {info.message or 'its supervisor is gone'}"


def _lacks(store: Store, run: str) -> bool:
    """Return whether the record of `run` may lack something; one that does not exist does not."""
    try:
        info = store.load(run)
    except UnreadableRecordError:
        return True
    except RecordError:  # it does not exist, or is damaged or of a newer version
        return (store.runs / run).is_dir()
    return info.state in ("running", "lost") or info.may_lack_output


def _without_folder(folder: Path) -> Iterator[Finding]:
    """Yield processes of clusters of which nothing else is left."""
    left: dict[Path, list[psutil.Process]] = {}
    if not folder.is_dir():  # all folders are absent, as when a home is not mounted
        return
    for process, value in process_tree.belonging(process_tree.CLUSTER_MARK):
        if Path(value).parent == folder and ClusterPaths(Path(value).name, folder).is_removed():
            left.setdefault(Path(value), []).append(process)
    for cluster, processes in sorted(left.items()):
        yield Finding(
            f"cluster {cluster.name}: its folder is gone; {_processes(processes)} left",
            "ends what is left",
            "ended what was left",
            lambda processes=processes: process_tree.end(processes),  # type: ignore[misc]
        )


def _blanks(store: Store) -> Iterator[Finding]:
    for folder in sorted(forsaken(store.runs)):
        name = folder.name.removeprefix(".").removesuffix(BLANK_SUFFIX)
        yield Finding(
            f"record {name}: made for a run that never began",
            "removes it",
            "removed it",
            lambda folder=folder: shutil.rmtree(folder, ignore_errors=True),  # type: ignore[misc]
        )


def _processes(processes: list[psutil.Process]) -> str:
    pids = ", ".join(str(each.pid) for each in processes)
    return f"process {pids} is" if len(processes) == 1 else f"processes {pids} are"


CHANGED = "cluster {name} was started again or removed in the meantime, so it is left alone"
ALL_OF_IT = (
    "ends what is left and removes its folder",
    "ended what was left and removed its folder",
)
RUNS_THERE = "cluster {name}: runs on {where}, and is left alone"
WITH_RECORDS = (
    "completes its records and removes its folder",
    "completed its records and removed its folder",
)
AGENT_ONLY = (
    "lets it be attached to from here, as its job may go on",
    "it can be attached to from here now, by `%cluster attach`",
)
MAY_RUN = (
    "cluster {name}: was started on {where}; whether it runs cannot be told from here, so it is "
    "left alone: use `rankroom doctor` there, or, if that machine or container is gone for good, "
    "`rankroom doctor --clean --gone {name}` here"
)
SAID_GONE = "cluster {name}: was started on {where}, which you say is gone for good"
MACHINE_GONE = "its machine is gone"
NO_SUCH = "--gone {name}: there is no cluster of this name; there are: {names}"
IT_RUNS = "--gone {name}: this cluster runs, and is left alone"
NOT_NEEDED = "--gone {name}: this cluster is known to be gone: `rankroom doctor --clean` is enough"
JOB_ON = (
    "--gone {name}: its scheduler says that job {job} goes on, so the cluster is left alone: "
    "cancel the job first"
)
SURE = (
    "Complete the records of cluster {name} and remove its folder? If the cluster is still "
    "running, this breaks it."
)
SURE_OF_AGENT = (
    "Start a new agent for cluster {name} here? If the one on the other machine is still running, "
    "this breaks it."
)
SEEN = "--gone {name}: {processes} still there, so the cluster is left alone"
NOT_COMPLETE = (
    "cluster {name} is kept: the record of {runs} may lack output that its folder holds, and could "
    "not be completed. A record that was written to within the last minute may still have a "
    "writer: try again later"
)
NO_FILE = (
    "cluster {name}: its supervisor is running (pid {pid}), but {path} is missing, so it is left "
    "alone"
)
UNKEPT = (
    "cluster {name}: its local agent is gone, but {job} on {site} may still be running: "
    "`%cluster attach {name}` in a notebook attaches to it again"
)
