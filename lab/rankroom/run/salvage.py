"""Records whose kernel is gone, looked after by whoever reads them.

Where nobody will write any more, the record is completed from what the ranks left on disk. While
ranks go on, the run is no lost one, though nobody takes up what they say: a kernel that attaches
does, and can then wait for it or interrupt it.
"""

from __future__ import annotations

import contextlib
import socket
import time
from collections.abc import Callable, Sequence
from concurrent.futures import Future
from dataclasses import replace
from functools import partial
from typing import TYPE_CHECKING, Any, cast

import psutil

from rankroom.cluster import launch
from rankroom.errors import RecordError, UnreadableError
from rankroom.record.cluster_file import ClusterInfo, ClusterPaths, clusters_folder
from rankroom.record.model import RankInfo, RunInfo
from rankroom.record.store import Store
from rankroom.record.tail import Events, line_near_end
from rankroom.run.late_output import add_late

if TYPE_CHECKING:
    from rankroom.run.engine_client import Link

LAST_LINE = 4096  # bytes at the end of a spool in which its last event is found


class TendedStore(Store):
    """A store in which a run is lost only when nothing more can be had of it."""

    def load(self, run_id: str) -> RunInfo:
        """The run; its record is completed first if its kernel is gone and its ranks have ended."""
        run = super().load(run_id)
        if run.state == "lost":
            return tend(Store(self.root), run)
        add_late(self, run)
        return run

    def _may_be_live(self, run_id: str) -> bool:
        if super()._may_be_live(run_id):
            return True
        with contextlib.suppress(RecordError):
            return self.load(run_id).state == "running"
        return False


def salvage(store: Store) -> None:
    """Look after all runs of which ranks hold something; remove clusters kept for this only."""
    folder = clusters_folder()
    for each in sorted(folder.iterdir()) if folder.is_dir() else []:
        paths = ClusterPaths(each.name)
        for run_id in _held(paths):
            with contextlib.suppress(RecordError):
                run = store.load(run_id)
                if run.state == "lost":
                    tend(store, run)
                add_late(store, run)
        with contextlib.suppress(UnreadableError):
            if (info := paths.read()) is not None:
                _let_go(paths, info)


def tend(store: Store, run: RunInfo) -> RunInfo:
    """What a lost run is by now: complete, or going on without a kernel, or lost indeed."""
    if run.owner is None:
        return run
    elsewhere = run.owner.host != socket.gethostname()
    for folder in clusters_folder().glob(f"*/spool/*/{run.id}.jsonl"):
        paths = ClusterPaths(folder.parents[2].name)
        try:
            info = paths.read()
        except UnreadableError:
            return run
        if info is None:
            continue
        if elsewhere and (info.allocation is None or launch.alive(info)):
            return run  # nobody here can tell whether its kernel lives, and its ranks go on
        if not all(_has_ended(paths, info, run.id, rank) for rank in run.ranks):
            return replace(run, state="running", notes=[*run.notes, GOES_ON])
        # Not before it is needed: ipyparallel would slow the start of every Jupyter server.
        from rankroom.run.adopt import adopt

        how_ended = partial(_how_ended, info)
        with contextlib.suppress(RecordError):
            adopt(run.id, cast("Link", NoLink()), store, paths.spool, how_ended, elsewhere)
            _let_go(paths, info)
        return store.load(run.id)
    return run


def _let_go(paths: ClusterPaths, info: ClusterInfo) -> None:
    """Remove the folder of a cluster that is kept for its runs only, when it holds none any more.

    Its name is another's by now, or it ended with its job.
    """
    ended = info.allocation is not None and info.state == "stopped"
    if (info.name != paths.name or ended) and not _held(paths):
        paths.remove()


def _held(paths: ClusterPaths) -> list[str]:
    """The runs of which ranks hold what their records may lack."""
    return sorted({file.stem for file in paths.folder.glob("spool/*/*.jsonl")})


def _has_ended(paths: ClusterPaths, info: ClusterInfo, run_id: str, rank: RankInfo) -> bool:
    """Whether a rank of the run will say nothing more: its process is gone, or it has said so."""
    if launch.here(rank.host, info):
        if not psutil.pid_exists(rank.pid):
            return True
    elif not launch.alive(info):
        return True
    spool = paths.spool(rank.rank) / f"{run_id}.jsonl"
    try:
        begin = line_near_end(spool, LAST_LINE)
        last = [event for event in Events(spool, begin) if event["kind"] == "status"]
    except OSError:
        return False
    return bool(last) and last[-1]["state"] != "running"


def _how_ended(info: ClusterInfo, rank: int) -> str:
    job, why = info.allocation, info.message
    if not why and job is not None and job.until and time.time() > job.until:
        why = f"the time of job {job.job} is over"
    return info.exits.get(str(rank)) or f"ended with its cluster{f': {why}' if why else ''}"


class NoLink:
    """The link to ranks that say nothing more: nobody is there, nobody answers."""

    ranks: tuple[int, ...] = ()

    def subscribe(self, run: str, receive: Callable[..., None]) -> None: ...

    def unsubscribe(self, run: str) -> None: ...

    def later(self, seconds: float, call: Callable[[], None]) -> None: ...

    def signal(self, ranks: Sequence[int], signal: str) -> None: ...

    def request(self, ranks: Sequence[int], **content: Any) -> list[Future[Any]]:
        return []


GOES_ON = "it goes on, but its kernel is gone: `%cluster attach` in a notebook takes it up"
