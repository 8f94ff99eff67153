"""Completes records whose writer is gone, from what ranks left on disk.

The ranks of a supervisor that is killed end with it, and leave their spools behind; so did kernels,
which wrote records before this version. Reading a record never completes it: that is done when a
cluster is started or attached to, when Jupyter starts, and by `rankroom runs repair`.
"""

from __future__ import annotations

import contextlib
import threading
import time
from pathlib import Path
from types import SimpleNamespace
from typing import cast

from rankroom.cluster import launch, liveness, lookup
from rankroom.errors import (
    RankroomError,
    RecordError,
    UnreadableError,
    UnreadableRecordError,
)
from rankroom.record.cluster_file import ClusterInfo, ClusterPaths, all_paths, clusters_folder
from rankroom.record.model import Owner, RankInfo, RunInfo
from rankroom.record.owner import is_gone, is_here, no_process
from rankroom.record.store import Store
from rankroom.record.tail import Events, line_near_end
from rankroom.record.takeover import take_over
from rankroom.scheduler import ended_jobs
from rankroom.supervisor.late_output import add_late
from rankroom.supervisor.rank_connections import RankConnections
from rankroom.supervisor.recorder import Recorder
from rankroom.system import process_tree

LAST_LINE = 4096  # bytes at the end of a spool in which its last event is found
# Stands in for the connections to ranks that have ended: nothing is sent, and none replies.
NO_RANKS = SimpleNamespace(
    ranks=(), unsubscribe=lambda run: None, later=lambda seconds, call: None,
    signal=lambda ranks, name: None, request=lambda ranks, **question: [],
)  # fmt: skip
KEEP_S = 3600.0  # without a write, before a failed run's spool is removed if its cluster is gone


def begin(store: Store, prunes: bool = False) -> None:
    """Complete all records in a thread, then remove old ones if `prunes`."""

    def work() -> None:
        with contextlib.suppress(RankroomError, OSError):
            complete_all(store)
        with contextlib.suppress(RankroomError, OSError):
            if prunes:
                store.prune(by_itself=True)

    threading.Thread(target=work, name="rankroom-repair", daemon=True).start()


def complete_all(store: Store) -> list[str]:
    """Complete all records for which spools hold something; return the ids of those completed.

    Removes the folders of clusters that were kept only for this. If a record cannot be completed
    now, raises the OSError or RankroomError after the others were.
    """
    found = []
    failed: OSError | RankroomError | None = None
    for paths in all_paths():
        for run_id in paths.unfinished():
            try:
                if complete(store, store.load(run_id)):
                    found.append(run_id)
            except UnreadableRecordError as error:
                failed = failed or error
            except RecordError:
                continue
            except (OSError, RankroomError) as error:
                failed = failed or error
        with contextlib.suppress(UnreadableError):
            if (info := paths.read()) is not None:
                _remove(paths, info)
    if failed is not None:
        raise failed
    return found


def complete(store: Store, run: RunInfo) -> bool:
    """Complete the record of a run; return False if it is complete, or may still be written to."""
    done = False
    for spool in clusters_folder().glob(f"[!.]*/spool/*/{run.id}.jsonl"):
        paths = ClusterPaths(spool.parents[2].name)
        try:
            info = paths.read()
        except UnreadableError:
            continue
        if run.state in ("running", "lost") and not done:
            done = info is not None and _complete(store, run, paths, info)
        elif run.state not in ("running", "lost"):
            done = (run.state == "failed" and add_late(store, run, spool) > 0) or done
            _let_go(spool, run, info)
    return done


def complete_gone(store: Store, paths: ClusterPaths, info: ClusterInfo) -> None:
    """Complete the records of a cluster whose machine the user says is gone for good, except those
    that were written to recently. `info` says that the cluster has failed."""
    for run_id in paths.unfinished():
        with contextlib.suppress(RecordError):
            run = store.load(run_id)
            if run.state == "lost":
                _complete(store, run, paths, info, is_said_gone=True)
            elif run.state == "failed":
                for spool in sorted(paths.folder.glob(f"spool/*/{run_id}.jsonl")):
                    add_late(store, run, spool)


def _complete(
    store: Store, run: RunInfo, paths: ClusterPaths, info: ClusterInfo, is_said_gone: bool = False
) -> bool:
    owner = run.owner
    elsewhere = owner is not None and not (is_here(owner) or is_gone(owner))
    is_said_gone = is_said_gone and owner is not None and owner.space == info.space
    if elsewhere and not (is_said_gone or _supervisor_is_gone(run, info)):
        return False  # whether its writer lives cannot be told from here
    if run.state == "running" and not elsewhere:
        return False
    if not all(_has_ended(paths, info, run.id, rank) for rank in run.ranks):
        return False
    source = store.source(run.id)
    why = f"ended with its cluster: {lookup.why_gone(info)}"
    try:
        known, writer = take_over(store, run.id, owner if elsewhere else None)
    except RecordError:  # another process has taken it over first
        return False
    recorder: Recorder | None = None
    try:
        recorder = Recorder(source, known, cast(RankConnections, NO_RANKS), store, paths.spool)
        recorder.complete(writer, lambda rank: info.exits.get(str(rank)) or why)
    except BaseException:
        if recorder is None or not recorder.is_over:
            # This process lives on, but no longer writes the record, which is lost again.
            known.owner = no_process()
            with contextlib.suppress(RecordError):
                writer.update(known)
            writer.close()
        raise
    _remove(paths, info)
    return True


def _supervisor_is_gone(run: RunInfo, info: ClusterInfo) -> bool:
    """Return whether a record's writer on another machine is known to be gone, which can be told
    only if it is the cluster's supervisor."""
    if run.state == "running":
        # It was written to recently, maybe by a process that completes it; and the supervisors of
        # some jobs cannot be reached from here.
        supervisor = Owner(info.host, info.supervisor, info.space, info.began)
        if run.owner != supervisor:
            return False
        # Once its job is over, all of its processes have ended.
        granted = info.allocation if liveness.in_job(info) else None
        if granted and ended_jobs.state(granted) != "over":
            return False
    if liveness.in_job(info):
        return not liveness.alive(info)
    is_writer = run.owner is not None and run.owner.space == info.space
    return is_writer and liveness.process_state(info) == "gone"


def _remove(paths: ClusterPaths, info: ClusterInfo) -> None:
    """Remove the folder of a cluster that is kept only for its runs, once it holds none.

    Such a cluster has ended, or another one has its name by now.
    """
    was_moved = info.name != paths.name
    if not (was_moved or info.state == "stopped"):
        return
    with launch.one_at_a_time():  # a start under its name must not lose its folder
        if launch.is_another(paths.read(), info) or paths.unfinished():
            return
        if was_moved or not launch.supervisors(paths, doubtful=True):
            paths.remove()


def _let_go(spool: Path, run: RunInfo, info: ClusterInfo | None) -> None:
    """Remove a spool of a run that is over, once the record has all of it, and no rank can write to
    it any more."""
    with contextlib.suppress(OSError):
        may_go = not run.may_lack_output
        if run.state == "failed":
            may_go = may_go and time.time() - spool.stat().st_mtime > KEEP_S
        if may_go and not liveness.alive(info):
            spool.unlink()


def _has_ended(paths: ClusterPaths, info: ClusterInfo, run_id: str, rank: RankInfo) -> bool:
    """Return whether a rank will write no more of the run: its process is gone, or it says so."""
    if liveness.here(rank.host, info):
        # Processes of a folder that was moved aside are marked with its former name.
        folder = ClusterPaths(info.name).folder
        of_cluster = process_tree.is_marked(rank.pid, process_tree.CLUSTER_MARK, folder)
        if not (process_tree.lives(rank.pid) and of_cluster):
            return True
    elif not liveness.alive(info):
        return True
    spool = paths.spool(rank.rank) / f"{run_id}.jsonl"
    try:
        begin = line_near_end(spool, LAST_LINE)
        last = [event for event in Events(spool, begin) if event["kind"] == "status"]
    except OSError:
        return False
    return bool(last) and last[-1]["state"] != "running"
