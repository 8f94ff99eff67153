"""The node agents of a real job: each imports once, forks its ranks, and ends with them."""

from __future__ import annotations

import re
import time
from collections.abc import Iterator

import pytest

from job_python import JobPython
from machines import Machines

MODULE = """
import os, pathlib, socket
by = os.getpid()
with open(pathlib.Path.home() / "imported", "a") as file:
    file.write(socket.gethostname() + "\\n")
"""
WHERE = "import os, socket, slow; [socket.gethostname(), slow.by, os.getppid(), os.getpid()]"


@pytest.fixture(scope="module")
def job(machines: Machines) -> Iterator[JobPython]:
    """Four ranks on two nodes, whose agents have imported a module."""
    machines.put("alice", "slow.py", MODULE)
    with JobPython(machines, "alice", "--nodes=2", "--ntasks-per-node=2") as job:
        job.do(
            "import os, time\nfrom cells import failure, finish, log, states, values\n"
            "from rankroom.cluster.local import Cluster\n"
            "os.environ['PYTHONPATH'] += ':/home/alice'\n"
            "cluster = Cluster.local(preload='slow')"
        )
        yield job


def agents(job: JobPython) -> dict[str, int]:
    """The process id of each node's agent, found as the parent of its ranks."""
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


def test_each_node_has_an_agent_that_imports_once(job: JobPython):
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


def test_a_restarted_rank_is_forked_on_its_node(job: JobPython):
    before = agents(job)
    pids = job.do("[rank.pid for rank in cluster.ranks]")
    job.do("cluster.restart([2])")
    found = job.do(f"values(cluster, {WHERE!r})")
    assert agents(job) == before
    assert [each[2] for each in found] == [before[each[0]] for each in found]
    now = [each[3] for each in found]
    assert now[2] != pids[2] and [now[i] for i in (0, 1, 3)] == [pids[i] for i in (0, 1, 3)]
    assert sorted((job.machines.home("alice") / "imported").read_text().split()) == ["c1", "c2"]


def test_ranks_of_a_killed_agent_end_and_are_restarted_by_a_new_one(job: JobPython):
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


def test_an_interrupted_run_gives_up_a_silent_node_whose_ranks_survive(job: JobPython):
    """The agent is stopped, but Slurm still hears from the node and the step: neither has ended."""
    before = agents(job)
    job.do(
        """
run = cluster.run('''
import itertools, time
kept = rank
for number in itertools.count():
    print("line", number, flush=True)
    time.sleep(0.05)
''')
while not all(log(run, rank) for rank in range(4)): time.sleep(0.05)
"""
    )
    job.machines.run("c2", ["kill", "-STOP", str(before["c2"])])
    try:
        said = job.do("while not run.info.hang: time.sleep(0.05)\nrun.info.hang.text")
        assert re.match(r"ranks 2–3 may be cut off: node c2 has been silent for 2\d s; ", said)
        ended, failed, exits = job.do(
            "run.interrupt()\nrun.wait(20)\n[states(run), failure(run), cluster.refresh().exits]"
        )
        assert ended == {"0": "interrupted", "1": "interrupted", "2": "lost", "3": "lost"}
        assert "was given up when the run was interrupted: node c2 has been silent" in failed
        assert exits == {}
    finally:
        job.machines.run("c2", ["kill", "-CONT", str(before["c2"])])
    # The ranks are interrupted now, and run cells with their variables kept.
    assert job.do("values(cluster, 'kept')") == [0, 1, 2, 3]
    assert agents(job) == before
    # What they wrote in the meantime is added to the record.
    joined = job.do(
        """
from numbered import assert_numbered
def late(): return {event["rank"] for event in cluster.store.events(run.id)
                    if event["kind"] == "mark" and event["name"] == "late"}
deadline = time.monotonic() + 60
while late() != {2, 3} and time.monotonic() < deadline: time.sleep(0.2)
[assert_numbered(cluster.store, run.id, rank) for rank in range(4)]
"""
    )
    assert min(joined[2:]) >= min(joined[:2]), "they went on until they heard of it"


@pytest.mark.thorough  # the agent checks on its supervisor after a minute of silence
def test_ranks_survive_a_minute_of_silence_between_supervisor_and_agent(job: JobPython):
    """The srun that connects supervisor and agent is stopped."""
    before = agents(job)
    job.do("values(cluster, 'kept = rank')")
    lines = job.machines.run("c1", ["ps", "-u", "alice", "-o", "pid=,args="]).splitlines()
    pids = [line.split()[0] for line in lines if " srun " in line and "--nodelist=c2" in line]
    assert pids, lines
    job.do("run = cluster.run('import time; time.sleep(100); kept')")
    job.machines.run("c1", ["kill", "-STOP", *pids])
    try:
        time.sleep(80)
        said = job.do("run.info.hang.text")
        assert re.match(r"ranks 2–3 may be cut off: node c2 has been silent for \d\d s; ", said)
    finally:
        job.machines.run("c1", ["kill", "-CONT", *pids])
    assert job.do("run.wait(60)\nrun.results") == {str(rank): str(rank) for rank in range(4)}
    assert job.do("[run.state, cluster.refresh().exits]") == ["done", {}]
    assert agents(job) == before


def test_agents_end_with_their_supervisor(job: JobPython):
    job.do("import signal; os.kill(cluster.info.supervisor, signal.SIGKILL)")
    job.until_gone()
    job.do("cluster.stop()")


def test_with_preloading_off_ranks_are_not_forked_and_can_be_restarted(machines: Machines):
    options = ("--nodes=2", "--ntasks-per-node=1", "--nodelist=c3,c4")
    with JobPython(machines, "alice", *options) as job:
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
