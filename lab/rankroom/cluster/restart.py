"""Ranks that are restarted: asked for, waited for, and reported once to each process."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence

from rankroom.cluster import launch, lookup
from rankroom.errors import UsageError
from rankroom.record.cluster_file import ClusterInfo, ClusterPaths
from rankroom.record.model import Json


class Restarts:
    """The restarts of one cluster's ranks, as one process knows them."""

    def __init__(self, paths: ClusterPaths, info: ClusterInfo, ask: Callable[..., Json]) -> None:
        self._paths = paths
        self._ask = ask
        self.told = dict(info.restarts)  # how often each rank was, as far as this process was told

    def restart(self, ranks: Sequence[int]) -> None:
        """Restart these ranks and wait until they are ready."""
        before = lookup.living(self._paths)
        if refused := self._ask("restart", ranks=list(ranks)).get("refused"):
            raise UsageError(refused)
        deadline = time.monotonic() + launch.start_s(before)
        while waiting := self._unready(ranks, before):
            if time.monotonic() > deadline:
                raise launch.timed_out(self._paths, waiting)
            time.sleep(0.02)
        # The client that asked for it needs no note.
        now = lookup.living(self._paths).restarts
        self.told |= {str(rank): now[str(rank)] for rank in ranks}

    def _unready(self, ranks: Sequence[int], before: ClusterInfo) -> list[int]:
        """Which of the ranks that are restarted are not ready; StartError if one will not be."""
        info = lookup.living(self._paths)
        waiting = []
        for rank in ranks:
            key = str(rank)
            again = info.restarts.get(key, 0) > before.restarts.get(key, 0)
            if again and key in info.exits:
                raise launch.ended_while_starting(self._paths, rank, info.exits[key])
            if not again or rank in info.starting or rank not in info.ready:
                waiting.append(rank)
        return waiting
