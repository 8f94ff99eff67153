"""The agents of a real job's two nodes: each imports once, forks its ranks, and ends with them."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from inside import Inside
from machines import Machines

MODULE = """
import os, pathlib, socket
by = os.getpid()
with open(pathlib.Path.home() / "imported", "a") as file:
    file.write(socket.gethostname() + "\\n")
"""
WHERE = "import os, socket, slow; [socket.gethostname(), slow.by, os.getppid(), os.getpid()]"


@pytest.fixture(scope="module")
def job(machines: Machines) -> Iterator[Inside]:
    """Four ranks on two nodes, whose agents have imported a module."""
    machines.put("alice", "slow.py", MODULE)
    with Inside(machines, "alice", "--nodes=2", "--ntasks-per-node=2") as job:
        job.do(
            "import os, time\nfrom cells import failure, finish, log, states, values\n"
            "from rankroom.cluster.local import Cluster\n"
            "os.environ['PYTHONPATH'] += ':/home/alice'\n"
            "cluster = Cluster.local(preload='slow')"
        )
        yield job


def agents(job: Inside) -> dict[str, int]:
    """The agent of each node, by what ps says there."""
    found = {}
    for node in ("c1", "c2"):
        lines = job.machines.run(node, ["ps", "-u", "alice", "-o", "pid=,ppid=,comm=,args="])
        assert lines
        own = [
            line.split()
            for line in lines.splitlines()
            if "rankroom.agent.node_agent /" in line and " srun " not in line
        ]
        ranks = [line for line in own if line[2] == "rank"]
        assert len(ranks) == 2, lines
        [found[node]] = {int(line[1]) for line in ranks}
    return found


def test_each_node_has_an_agent_that_imports_once(job: Inside):
    machines = job.machines
    found = job.do(f"values(cluster, {WHERE!r})")
    by_node = agents(job)
    assert [each[0] for each in found] == ["c1", "c1", "c2", "c2"]
    assert [each[1:3] for each in found] == [[by_node[each[0]]] * 2 for each in found]
    assert len({each[3] for each in found if each[0] == "c1"}) == 2
    imported = (machines.home("alice") / "imported").read_text().split()
    assert sorted(imported) == ["c1", "c2"]
    steps = machines.run("ctl", ["squeue", "-s", "-h", "-j", job.job, "-o", "%j %N"])
    assert sorted(line for line in steps.splitlines() if "agent" in line) == [
        "agent-c1 c1",
        "agent-c2 c2",
    ]


def test_a_restarted_rank_is_forked_on_its_node(job: Inside):
    before = agents(job)
    pids = job.do("[rank.pid for rank in cluster.ranks]")
    job.do("cluster.restart([2])")
    found = job.do(f"values(cluster, {WHERE!r})")
    assert agents(job) == before
    assert [each[2] for each in found] == [before[each[0]] for each in found]
    now = [each[3] for each in found]
    assert now[2] != pids[2] and [now[i] for i in (0, 1, 3)] == [pids[i] for i in (0, 1, 3)]
    assert sorted((job.machines.home("alice") / "imported").read_text().split()) == ["c1", "c2"]


def test_the_ranks_of_a_killed_agent_end_and_come_back_with_another(job: Inside):
    before = agents(job)
    job.do("run = cluster.run('import time; print(rank, flush=True); time.sleep(1000)')")
    job.do("while not all(log(run, rank) for rank in range(4)): time.sleep(0.05)")
    job.machines.run("c2", ["kill", "-KILL", str(before["c2"])])
    said = job.do(
        """
while not {"2", "3"} <= cluster.refresh().exits.keys(): time.sleep(0.05)
run.interrupt()
run.wait(60)
[cluster.info.exits, states(run)]
"""
    )
    how = "ended with its node's agent, which was killed by SIGKILL"
    assert said == [
        {"2": how, "3": how},
        {"0": "interrupted", "1": "interrupted", "2": "lost", "3": "lost"},
    ]
    job.do("cluster.restart([2, 3])")
    found = job.do(f"values(cluster, {WHERE!r})")
    now = agents(job)
    assert now["c1"] == before["c1"] and now["c2"] != before["c2"]
    assert [each[2] for each in found] == [now[each[0]] for each in found]
    summed = "import torch, horovod.torch as hvd; hvd.init(); hvd.allreduce(torch.ones(1)).item()"
    assert job.do(f"values(cluster, {summed!r})") == [1.0] * 4


def test_agents_end_with_their_supervisor(job: Inside):
    job.do("import signal; os.kill(cluster.info.supervisor, signal.SIGKILL)")
    job.until_gone()
    job.do("cluster.stop()")


def test_ranks_that_are_not_forked_have_an_agent_as_well(machines: Machines):
    options = ("--nodes=2", "--ntasks-per-node=1", "--nodelist=c3,c4")
    with Inside(machines, "alice", *options) as job:
        job.do(
            "import os\nfrom cells import values\nfrom rankroom.cluster.local import Cluster\n"
            "cluster = Cluster.local(preload='none')"
        )
        told = "import sys; [rank, 'rankroom.rank.engine' in sys.orig_argv]"
        assert job.do(f"values(cluster, {told!r})") == [[0, True], [1, True]]
        job.do("cluster.restart([1])")
        assert job.do(f"values(cluster, {told!r})") == [[0, True], [1, True]]
        job.do("cluster.stop()")
        job.until_gone()
