"""A cluster of simulated ranks: a real supervisor, and processes that speak as many ranks each.

`cluster(ranks)` starts one. This module is also the supervisor's program, with other processes in
the place of controller and engines.
"""

from __future__ import annotations

import contextlib
import os
import sys
from collections.abc import Iterator
from pathlib import Path

import psutil
import pytest

from rankroom.cluster import launch
from rankroom.cluster.local import Cluster
from rankroom.supervisor import supervisor
from rankroom.supervisor.processes import Processes

EACH = 128  # ranks in one process


class SimulatedProcesses(Processes):
    """Processes that speak as EACH ranks; ending one ends them all."""

    def start_controller(self) -> None:
        self.controller = self.spawn(
            ["sleep", "infinity"], dict(os.environ), self.paths.controller_log
        )

    def start_rank(self, rank: int) -> None:
        self.placement.start(rank)
        self.born[rank] = 0.0
        first = rank - rank % EACH
        if rank == first:
            count = min(EACH, self.info.size - first)
            about = [str(self.paths.folder), str(first), str(count)]
            argv = [sys.executable, "-m", "simulated_ranks", *about]
            self.ranks[rank] = self.spawn(argv, dict(os.environ), self.paths.rank_log(rank))
        self.ranks[rank] = self.ranks[first]


@contextlib.contextmanager
def cluster(ranks: int) -> Iterator[Cluster]:
    """A cluster of so many simulated ranks, in RANKROOM_HOME."""
    with pytest.MonkeyPatch.context() as patch:
        path = [str(Path(__file__).parent), os.environ.get("PYTHONPATH", "")]
        patch.setenv("PYTHONPATH", os.pathsep.join(filter(None, path)))
        patch.setattr(launch, "SUPERVISOR", "simulated_cluster")
        patch.setattr(launch, "SUPERVISORS", ("simulated_cluster",))
        patch.setattr(launch, "most_ranks", lambda cores: ranks)
        made = Cluster.local(ranks, preload="none")
        try:
            yield made
        finally:
            made.stop()


def supervisor_of(cluster: Cluster) -> psutil.Process:
    """The process that is measured."""
    return psutil.Process(cluster.refresh().supervisor)


if __name__ == "__main__":
    supervisor.Processes = SimulatedProcesses  # type: ignore[misc]
    supervisor.main(sys.argv)
