"""Ranks that are restarted: asked for, waited for, and reported once."""

from __future__ import annotations

import time
from collections.abc import Sequence

from rankroom.cluster import launch, lookup
from rankroom.errors import NoClusterError, UsageError
from rankroom.record.cluster_file import ClusterInfo, ClusterPaths
from rankroom.rpc.client import ask
from rankroom.run.engine_client import Link


class Restarts:
    """The restarts of one cluster's ranks, as one process knows them."""

    def __init__(self, paths: ClusterPaths, info: ClusterInfo, link: Link) -> None:
        self._paths = paths
        self._link = link
        self._told = dict(info.restarts)

    def restart(self, ranks: Sequence[int]) -> None:
        """Restart these ranks and wait until they are ready."""
        before = lookup.living(self._paths)
        if not before.rpc:
            raise NoClusterError(EARLIER.format(name=before.name))
        known = {rank: self._link.identity(rank) for rank in ranks}
        try:
            answer = ask(before.rpc, before.rpc_key, do="restart", ranks=list(ranks))
        except OSError:
            why = "it does not answer"
            raise NoClusterError(lookup.GONE.format(name=before.name, why=why)) from None
        if refused := answer.get("refused"):
            raise UsageError(refused)
        deadline = time.monotonic() + launch.start_s(before)
        while waiting := self._unready(ranks, before, known):
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

    def _unready(
        self, ranks: Sequence[int], before: ClusterInfo, known: dict[int, bytes]
    ) -> list[int]:
        """Which of the ranks that are restarted are not ready; StartError if one will not be."""
        info = lookup.living(self._paths)
        waiting = []
        for rank in ranks:
            key = str(rank)
            again = info.restarts.get(key, 0) > before.restarts.get(key, 0)
            if again and key in info.exits:
                raise launch.ended_while_starting(self._paths, rank, info.exits[key])
            is_new = self._link.identity(rank) not in (b"", known[rank])
            if not again or rank in info.starting or not is_new:
                waiting.append(rank)
        return waiting


EARLIER = (
    "cluster {name} was started by an earlier version of Rankroom: single ranks of it cannot be "
    "restarted, `%cluster restart` restarts all of them"
)
RESTARTED = "rank {rank} was restarted{why}: its variables are gone"
