"""The status that this account's seat reports, from the files that its notebooks, clusters and runs
write anyway.

It is read about every second for hours, so files are read only if their times or sizes have
changed.
"""

from __future__ import annotations

import contextlib
import os
import socket
import time
from pathlib import Path
from typing import Any

from rankroom.cluster import cluster_status, liveness
from rankroom.cluster.cluster_status import ClusterStatus
from rankroom.course import progress
from rankroom.course.exercise import Wrong
from rankroom.course.exercise_list import exercises_of
from rankroom.course.lessons import LESSONS
from rankroom.errors import RankroomError
from rankroom.record.cluster_file import ClusterInfo, ClusterPaths, all_clusters, clusters_folder
from rankroom.record.model import RunInfo
from rankroom.record.store import Store
from rankroom.workshop.seat import MOST_TEXT, SeatStatus, State

MAX_CACHE_AGE_S = 5.0  # until clusters and a live run are read again though no file has changed


class StatusReader:
    """Reads the status repeatedly; what has not changed is cached.

    What ended before `since` (epoch s) is left out: it predates the workshop, and is none of the
    teacher's business.
    """

    def __init__(self, since: float = 0.0) -> None:
        self._since = since
        self._store = Store()
        self._seen: dict[str, tuple[Any, float, Any]] = {}

    def read(self) -> SeatStatus:
        """Return the current status, except for what the seat itself adds. Reads files: do not call
        it on an event loop."""
        done = self._latest("progress", _stamp(progress.file()), progress.read)
        cluster = self._latest("cluster", _clusters_stamp(), lambda: _cluster(self._since))
        run = self._run()
        state, why, since = _state(cluster, run)
        return SeatStatus(
            state=state,
            why=why[:MOST_TEXT],
            since=since,
            lesson=_lesson(done),
            exercise={
                "name": done.last, "passed": done.last_passed,
                "tries": done.tries.get(done.last, 0), "at": done.last_at,
            } if done.last else {},
            progress={"tries": done.tries, "passed": done.passed} if done.tries else {},
            ranks={
                "alive": sum(rank.state == "ready" for rank in cluster.ranks), "of": cluster.size,
            } if cluster else {},
            run={
                "id": run.id, "title": run.title[:MOST_TEXT], "state": run.state,
                "since": run.start / 1e6,
            } if run else {},
            host=socket.gethostname(),
            job=os.environ.get("SLURM_JOB_ID") or os.environ.get("PBS_JOBID", "").split(".")[0],
            ends_at=cluster.until if cluster else 0.0,
        )  # fmt: skip

    def _run(self) -> RunInfo | None:
        """Return the newest run, unless it ended before `since`."""
        ids = self._latest("runs", _stamp(self._store.runs), self._store.ids)
        if not ids:
            return None
        file = self._store.paths(ids[0]).run
        found = self._latest("run", (ids[0], _stamp(file)), lambda: self._store.load(ids[0]))
        if not isinstance(found, RunInfo):
            return None
        ended = (found.end or found.start) / 1e6
        return found if found.state == "running" or ended >= self._since else None

    def _latest(self, what: str, stamp: Any, read: Any) -> Any:
        """Return what `read` returns, or its last result if the `stamp` has not changed and
        MAX_CACHE_AGE_S have not passed; None if it fails."""
        known, until, value = self._seen.get(what, (None, 0.0, None))
        if known != stamp or time.monotonic() > until:
            value = None
            with contextlib.suppress(OSError, RankroomError):
                value = read()
            self._seen[what] = (stamp, time.monotonic() + MAX_CACHE_AGE_S, value)
        return value


def _cluster(since: float) -> ClusterStatus | None:
    """Return the newest cluster that runs, or that has failed since then; None without one."""
    for info in all_clusters():
        failed = info.state == "failed" and _written(info) >= since
        if failed or liveness.alive(info):
            return cluster_status.status_of(info)
    return None


def _written(info: ClusterInfo) -> float:
    """Return when a cluster's file was last written (epoch s); if the cluster has failed, when it
    did."""
    with contextlib.suppress(OSError):
        return ClusterPaths(info.name).info.stat().st_mtime
    return 0.0


def _state(cluster: ClusterStatus | None, run: RunInfo | None) -> tuple[State, str, float]:
    """Return the state, its reason, and when it began (epoch s)."""
    if run is not None and run.state == "running":
        begun = run.start / 1e6
        if run.hang is None:
            return "running", "", begun
        state: State = "running" if run.hang.is_held else "stuck"
        return state, run.hang.text, begun + run.hang.since / 1e6
    ended = (run.end or run.start) / 1e6 if run is not None else 0.0
    if cluster is not None and (down := [r for r in cluster.ranks if r.state == "down"]):
        return "failed", f"{cluster.words}; {down[0].note}".rstrip("; "), ended
    if cluster is not None and cluster.state in ("failed", "lost"):
        return "failed", cluster.words, ended
    if run is not None and run.state == "failed" and run.failure is not None:
        broken = run.failure
        if broken.ename == Wrong.__name__:  # a wrong answer to an exercise: nothing is broken
            return "idle", f"not yet: {broken.evalue}", ended
        line = f", cell line {broken.cell_line}" if broken.cell_line else ""
        said = f"{broken.ename}: {broken.evalue}".partition("\n")[0]
        return "failed", f"rank {broken.rank}{line}: {said}", ended
    if run is not None and run.state == "lost":
        return "failed", "its supervisor was killed", ended
    if cluster is None:
        return ("not started" if run is None else "idle"), "", ended
    return "idle", "", ended


def _lesson(done: progress.Progress) -> int | None:
    """Return the lesson that was begun last; if an earlier version recorded none, that of the
    exercise tried last."""
    if done.lesson >= 0:
        return done.lesson
    return next((each.number for each in LESSONS if done.last in exercises_of(each)), None)


def _stamp(path: Path) -> tuple[int, int, int]:
    try:
        about = path.stat()
    except OSError:
        return (0, 0, 0)
    return (about.st_mtime_ns, about.st_ino, about.st_size)


def _clusters_stamp() -> tuple[Any, ...]:
    folder = clusters_folder()
    with contextlib.suppress(OSError):
        names = sorted(each.name for each in folder.iterdir())
        return tuple((name, _stamp(folder / name / "cluster.json")) for name in names)
    return ()
