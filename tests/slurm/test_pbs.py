"""Ranks on two machines in a simulated PBS job, with fakes of qstat and mpiexec."""

from __future__ import annotations

import json

from job_python import JobPython
from machines import CHECKOUT, Machines

FAKES = CHECKOUT / "tests" / "support" / "fakes" / "pbs"
# Slurm allocates the nodes; its variables are then removed.
BECOME_PBS = f"""
import os
from pathlib import Path
from cells import values
from rankroom.cluster.local import Cluster
for name in [name for name in os.environ if name.startswith("SLURM")]:
    del os.environ[name]
os.environ.update(
    PBS_JOBID="42.pbs-01", PBS_NODEFILE=str(Path.home() / "nodes"), FAKE_NODES="yes",
    FAKE_SCHEDULER=str(Path.home() / "pbs"), PATH="{FAKES}:" + os.environ["PATH"],
)
"""


def test_a_pbs_job_places_ranks_on_its_nodes_and_restarts_one_in_place(machines: Machines):
    about = {
        "job_state": "R",
        "Resource_List": {"walltime": "01:00:00"},
        "exec_vnode": "(c1:ncpus=2)+(c2:ncpus=2)",
    }
    machines.put("alice", "nodes", "c1.example.org\nc2.example.org\nc2.example.org\n")
    machines.run("c1", ["mkdir", "-p", "pbs/jobs"], "alice")
    machines.put("alice", "pbs/jobs/42", json.dumps(about)[1:-1])
    with JobPython(machines, "alice", "--nodes=2", "--ntasks-per-node=1") as job:
        job.do(f"{BECOME_PBS}\ncluster = Cluster.local()")
        where = "(rank, size, local_rank, __import__('socket').gethostname())"
        assert job.do(f"values(cluster, {where!r})") == [
            [0, 3, 0, "c1"],
            [1, 3, 0, "c2"],
            [2, 3, 1, "c2"],
        ]
        together = (
            "import torch.distributed as d; import torch; d.init_process_group('gloo'); "
            "t = torch.ones(1); d.all_reduce(t); t.item()"
        )
        assert job.do(f"values(cluster, {together!r})") == [3.0] * 3
        # A restarted rank returns to its place.
        job.do("cluster.restart([2])")
        assert job.do(f"values(cluster, {where!r})")[2] == [2, 3, 1, "c2"]
        job.do("cluster.stop()")
        job.until_gone(60)
