"""Ranks that are restarted: asked for, waited for, and reported once."""

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
        self._told = dict(info.restarts)

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
        # Whoever asked for it needs no telling.
        now = lookup.living(self._paths).restarts
        self._told = {**self._told, **{str(rank): now[str(rank)] for rank in ranks}}

    def news(self, info: ClusterInfo, ranks: Sequence[int]) -> list[str]:
        """What to tell once of ranks that were restarted since the last cell."""
        told = self._told
        self._told = {**told, **{k: n for k, n in info.restarts.items() if int(k) in ranks}}
        return [
            RESTARTED.format(rank=rank, why=f" after it {past}" if past else "")
            for rank in ranks
            if info.restarts.get(str(rank), 0) > told.get(str(rank), 0)
            for past in [info.past.get(str(rank), "")]
        ]

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


RESTARTED = "rank {rank} was restarted{why}: its variables are gone"
