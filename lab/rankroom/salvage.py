"""Completing records whose kernel and cluster are both gone, from what their ranks left on disk."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Sequence
from concurrent.futures import Future
from typing import Any, cast

import psutil

from rankroom import local
from rankroom.adopt import AdoptedRun, adopt
from rankroom.clusterfile import ClusterInfo, ClusterPaths, clusters_folder
from rankroom.errors import RecordError
from rankroom.link import Link
from rankroom.store import Store


def salvage(store: Store) -> list[AdoptedRun]:
    """Complete the records of clusters that have ended, as far as the ranks' spools go."""
    folder = clusters_folder()
    names = sorted(path.name for path in folder.iterdir()) if folder.is_dir() else []
    found = []
    for name in names:
        paths = ClusterPaths(name)
        info = paths.read()
        # A rank that still runs may write more.
        if info is not None and not local.alive(info) and not _runs(info):
            found += _complete(store, paths, info)
            if info.name != name and not _spooled(paths):  # set aside for this only
                paths.remove()
    return found


def _complete(store: Store, paths: ClusterPaths, info: ClusterInfo) -> list[AdoptedRun]:
    def how_ended(rank: int) -> str:
        return info.exits.get(str(rank)) or "ended with its cluster"

    found = []
    for run_id in _spooled(paths):
        with contextlib.suppress(RecordError):
            if store.load(run_id).state == "lost":
                link = cast(Link, NoLink())
                found.append(adopt(run_id, link, store, paths.spool, how_ended))
    return found


def _spooled(paths: ClusterPaths) -> list[str]:
    """The runs of which ranks hold what their records may lack."""
    return sorted({file.stem for file in paths.folder.glob("spool/*/*.jsonl")})


def _runs(info: ClusterInfo) -> bool:
    return any(psutil.pid_exists(rank.pid) for rank in info.ranks)


class NoLink:
    """The link to a cluster that is gone: no ranks, and nobody who answers."""

    ranks: tuple[int, ...] = ()

    def subscribe(self, run: str, receive: Callable[..., None]) -> None: ...

    def unsubscribe(self, run: str) -> None: ...

    def later(self, seconds: float, call: Callable[[], None]) -> None: ...

    def signal(self, ranks: Sequence[int], signal: str) -> None: ...

    def request(self, ranks: Sequence[int], **content: Any) -> list[Future[Any]]:
        return []
