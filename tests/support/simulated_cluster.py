"""A cluster of simulated ranks: a real supervisor, with an agent whose ranks are simulated.

`cluster(ranks)` starts one. This module is also the supervisor's program, which replaces the
controller and the agent.
"""

from __future__ import annotations

import contextlib
import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import psutil
import pytest

from rankroom.cluster import launch
from rankroom.cluster.local import Cluster
from rankroom.scheduler import step_launcher
from rankroom.supervisor import supervisor
from rankroom.supervisor.processes.cluster_processes import Processes


class SimulatedProcesses(Processes):
    """Starts a placeholder instead of the controller."""

    def start_controller(self) -> None:
        self.controller = subprocess.Popen(["sleep", "infinity"], start_new_session=True)


@contextlib.contextmanager
def cluster(ranks: int) -> Iterator[Cluster]:
    """A cluster of `ranks` simulated ranks, in RANKROOM_HOME."""
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
    """The supervisor's process, whose work is measured."""
    return psutil.Process(cluster.refresh().supervisor)


if __name__ == "__main__":
    supervisor.Processes = SimulatedProcesses  # type: ignore[misc]
    step_launcher.AGENT_MODULE = "simulated_agent"
    supervisor.main(sys.argv)
