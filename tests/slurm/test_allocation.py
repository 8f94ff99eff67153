"""`Cluster.local` inside a job: ranks on all of its nodes work like those on one machine."""

from __future__ import annotations

import json
import sys
import time
from collections.abc import Iterator

import pytest

from job_python import JobPython, cluster_folder
from machines import CHECKOUT, Machines

TESTS = str(CHECKOUT / "tests" / "support")
PYTHON = sys.executable
START = """
import time
from cells import failure, finish, log, states, values
from rankroom.cluster.local import Cluster
begun = time.monotonic()
cluster = Cluster.local({how})
time.monotonic() - begun
"""


@pytest.fixture(scope="module")
def job(machines: Machines) -> Iterator[JobPython]:
    """Four ranks on two nodes with two GPUs each."""
    with JobPython(
        machines, "alice", "--nodes=2", "--ntasks-per-node=1", "--gpus-per-node=2"
    ) as job:
        job.do(START.format(how=""))
        yield job


def test_ranks_are_placed_node_by_node(job: JobPython):
    found = job.do(
        """
values(cluster, '''
import os, socket
names = "LOCAL_SIZE CROSS_RANK CROSS_SIZE GLOO_IFACE".split()
own = [os.environ["HOROVOD_" + name] for name in names]
[rank, size, local_rank, device, socket.gethostname(), os.environ["MASTER_ADDR"],
 os.environ["SLURM_PROCID"], os.environ["CUDA_VISIBLE_DEVICES"], *own]
''')
"""
    )
    master = job.machines.address("c1")
    for rank, (local, node, cross) in enumerate([(0, 1, 0), (1, 1, 0), (0, 2, 1), (1, 2, 1)]):
        device, host = f"cuda:{local}", f"c{node}"
        assert found[rank][:6] == [rank, 4, local, device, host, master]
        assert found[rank][6:] == [str(rank), "0,1", "2", str(cross), "2", "eth0"]


def test_tensorflows_workers_are_on_their_nodes(job: JobPython):
    config = job.do(
        "import json; values(cluster, 'import os; os.environ[\"TF_CONFIG\"]', ranks=[0])"
    )
    workers = json.loads(config[0])["cluster"]["worker"]
    hosts = [worker.partition(":")[0] for worker in workers]
    assert hosts == [job.machines.address(node) for node in ("c1", "c1", "c2", "c2")]
    assert len(set(workers)) == 4


def test_a_cluster_describes_its_job_nodes_and_processes(job: JobPython):
    words = job.do("cluster.describe()")
    assert words.startswith(f"job-{job.job}-")
    assert words.endswith("4 ranks on c1, c2 (one GPU each)")
    named = job.do("[[rank.host, rank.pid] for rank in cluster.ranks]")
    seen = job.do("values(cluster, 'import os, socket; [socket.gethostname(), os.getpid()]')")
    assert named == seen


def test_collectives_cross_nodes(job: JobPython):
    found = job.do(
        """
values(cluster, '''
import torch, horovod.torch as hvd, torch.distributed as dist
hvd.init()
dist.init_process_group("gloo")
dist.all_reduce(x := torch.ones(1) * rank)
[hvd.cross_rank(), hvd.allreduce(torch.ones(1) * rank, op=hvd.Sum).item(), x.item()]
''')
"""
    )
    assert found == [[0, 6.0, 6.0], [0, 6.0, 6.0], [1, 6.0, 6.0], [1, 6.0, 6.0]]


def test_an_interrupt_reaches_all_nodes(job: JobPython):
    ended = job.do(
        """
run = cluster.run('''
import time
print("here", flush=True)
if rank == 3:
    time.sleep(1000)
hvd.allreduce(torch.ones(1))
''')
while not all(log(run, rank) for rank in range(4)):
    time.sleep(0.05)
run.interrupt()
run.wait(60)
[states(run)[rank] for rank in range(4)]
"""
    )
    assert ended[3] == "interrupted"
    assert "running" not in ended
    assert job.do("values(cluster, 'hvd.allreduce(torch.ones(1), op=hvd.Sum).item()')") == [4.0] * 4


def test_a_rank_killed_on_another_node_is_reported_and_restarted(job: JobPython):
    first, ended, said = job.do(
        """
run = finish(cluster, '''
kept = rank
print("last words of", rank, flush=True)
if rank == 3:
    os.kill(os.getpid(), 9)
hvd.allreduce(torch.ones(1))
''')
[failure(run), states(run)[3], [log(run, rank) for rank in range(4)]]
"""
    )
    assert "rank 3" in first
    assert "SIGKILL" in first
    assert ended == "lost"
    assert said == [f"last words of {rank}\n" for rank in range(4)]
    pids = job.do("before = [rank.pid for rank in cluster.ranks]; cluster.restart([3]); before")
    again = job.do(
        """
values(cluster, '''
import os, torch, horovod.torch as hvd
hvd.init()
[os.getpid(), globals().get("kept"), hvd.allreduce(torch.ones(1), op=hvd.Sum).item()]
''')
"""
    )
    assert [each[1:] for each in again] == [[0, 4.0], [1, 4.0], [2, 4.0], [None, 4.0]]
    assert [each[0] for each in again][:3] == pids[:3]


def test_cpu_and_memory_use_of_ranks_on_all_nodes_is_reported(job: JobPython):
    looked = job.do(
        """
from rankroom.rpc.client import ask
run = cluster.run('''
if rank == 3:
    while True: pass
__import__("time").sleep(1000)
''')
info = cluster.refresh()
deadline = time.monotonic() + 60
while time.monotonic() < deadline:
    looked = ask(info.rpc, info.rpc_key, do="look")["ranks"]
    if len(looked) == 4 and looked["3"]["cpu"] > 2 * looked["2"]["cpu"] + 5:
        break
    time.sleep(0.2)
run.interrupt()
run.wait(60)
looked
"""
    )
    assert sorted(looked) == ["0", "1", "2", "3"]
    assert looked["3"]["cpu"] > 2 * looked["2"]["cpu"] + 5
    assert all(each["memory"] > 10 << 20 for each in looked.values())


def test_ranks_know_how_much_time_their_job_has(job: JobPython):
    left = job.do("values(cluster, 'import rankroom; [rankroom.time_left()]')")
    assert len(left) == 4 and all(0 < each[0] <= 600 for each in left)
    called = job.do(
        """
values(cluster, '''
import time
called = []
rankroom.on_time_limit(lambda: called.append(rank), before=3600)
while not called:
    time.sleep(0.01)
called
''')
"""
    )
    assert called == [[0], [1], [2], [3]]
    # Ten minutes are left at most, so the first warning was due: one run has the note.
    notes = job.do(
        """
from rankroom.record.store import Store
[note for run in Store().newest() for note in run.notes if "the time limit of job" in note]
"""
    )
    [note] = notes
    assert note.startswith(f"the time limit of job {job.job} is reached at ")


def test_stop_leaves_nothing_on_any_node(job: JobPython):
    assert set(job.processes()) == {"c1", "c2"}
    job.do("cluster.stop()")
    job.until_gone()
    assert list((job.machines.home("alice") / ".local/share/rankroom/clusters").iterdir()) == []


def test_ranks_without_their_supervisor_end(job: JobPython):
    job.do(START.format(how="ranks=3"))
    assert job.do("[rank.host for rank in cluster.ranks]") == ["c1", "c1", "c2"]
    state, words = job.do(
        """
import os, signal
run = cluster.run("print('before', flush=True); import time; time.sleep(1000)")
while not log(run, 2):
    time.sleep(0.05)
os.kill(cluster.info.supervisor, signal.SIGKILL)
run.wait(60)
[states(run)[2], log(run, 2)]
"""
    )
    assert (state, words) == ("lost", "before\n")
    job.until_gone()
    job.do("cluster.stop()")


def test_the_end_of_the_job_ends_everything(machines: Machines):
    with JobPython(machines, "bob", "--nodes=2", "--ntasks-per-node=1", "--gpus-per-node=0") as job:
        job.do(START.format(how=""))
        found = job.do("[[rank.device, rank.host] for rank in cluster.ranks]")
        assert [device for device, _ in found] == ["cpu", "cpu"]
        assert len({host for _, host in found}) == 2
    begun = time.monotonic()
    while left := {node: machines.processes(node, "bob") for node in machines.nodes}:
        if not any(left.values()):
            break
        assert time.monotonic() - begun < 60, left
        time.sleep(0.2)


@pytest.mark.parametrize(
    "asked",
    [
        ("--nodes=1", "--ntasks-per-node=2", "--gpus-per-task=1"),
        pytest.param(("--nodes=2", "--ntasks-per-node=1", "--gpus=4"), marks=pytest.mark.thorough),
    ],
    ids=["by task", "in all"],
)
def test_ranks_see_all_gpus_however_their_job_asked_for_them(machines: Machines, asked):
    with JobPython(machines, "bob", *asked) as job:
        job.do(START.format(how=""))
        found = job.do(
            "values(cluster, 'import os; [device, os.environ[\"CUDA_VISIBLE_DEVICES\"]]')"
        )
        nodes = int(asked[0].partition("=")[2])
        assert found == [["cuda:0", "0,1"], ["cuda:1", "0,1"]] * nodes
        job.do("cluster.stop()")
        job.until_gone()


def test_python_on_the_login_node_uses_the_node_that_salloc_got(machines: Machines):
    file = machines.put(
        "bob",
        "one.py",
        START.format(how="") + "print(values(cluster, '''\nimport os, socket\n"
        "[socket.gethostname(), size, os.environ['GLOO_SOCKET_IFNAME']]\n'''))\ncluster.stop()\n",
    )
    words = ["salloc", "--nodes=1", "--ntasks-per-node=2", "--time=5"]
    path = f"import sys; sys.path.insert(0, {TESTS!r}); exec(open({str(file)!r}).read())"
    said = machines.run("login", [*words, PYTHON, "-c", path], "bob", 180)
    host = said.split("'")[1] if "'" in said else ""
    assert host in machines.nodes, said
    assert said.count(f"['{host}', 2, 'eth0']") == 2, said
    begun = time.monotonic()
    while left := machines.processes(host, "bob"):
        assert time.monotonic() - begun < 60, left
        time.sleep(0.2)


@pytest.mark.thorough  # Slurm takes up to a minute to report the node idle again
def test_a_node_that_is_cut_off_is_named_and_what_its_ranks_wrote_joins_the_record(
    machines: Machines,
):
    options = ("--nodelist=c3,c4", "--nodes=2", "--ntasks-per-node=1", "--no-kill")
    with JobPython(machines, "alice", *options) as job:
        job.do(START.format(how=""))
        job.do(
            """
run = cluster.run('''
import itertools, time
for i in itertools.count():
    print(i, flush=True)
    time.sleep(0.1)
''')
while not log(run, 1):
    time.sleep(0.1)
"""
        )
        machines.unplug("c4")
        try:
            first = job.do(
                """
deadline = time.monotonic() + 60
while states(run)[1] == "running" and time.monotonic() < deadline:
    time.sleep(0.2)
[states(run), failure(run)]
"""
            )
            assert first[0] == {"0": "running", "1": "lost"}
            # Slurm reported that to the step's srun or to the supervisor.
            assert first[1] == "rank 1: RankLost: rank 1 was given up: its node c4 has failed"
            known = job.do("run.interrupt(); run.wait(20); log(run, 1)")
        finally:
            machines.plug("c4")
        begun = time.monotonic()
        while left := machines.processes("c4", "alice"):
            assert time.monotonic() - begun < 90, left
            time.sleep(0.2)
        told = job.do(
            """
from rankroom.cluster.repair import complete_all
complete_all(cluster.store)
log(run, 1)
"""
        )
        assert told.startswith(known)
        assert len(told) > len(known), "it went on while it was cut off"
        numbers = [int(line) for line in told.splitlines()]
        assert numbers == list(range(len(numbers))), "each line once"
    machines.until_idle("c3", "c4")  # the module's own job is on the others


@pytest.mark.thorough  # as before
def test_a_crashed_node_is_named_and_ranks_of_other_nodes_are_released(machines: Machines):
    options = ("--nodelist=c3,c4", "--nodes=2", "--ntasks-per-node=1", "--no-kill")
    with JobPython(machines, "alice", *options) as job:
        job.do(START.format(how=""))
        job.do(
            "values(cluster, 'import torch, horovod.torch as hvd; hvd.init(); kept = rank; [1]')"
        )
        job.do(
            """
run = cluster.run('''
print("last words of", rank, flush=True)
while True:
    hvd.allreduce(torch.ones(1))
''')
while not (log(run, 0) and log(run, 1)):
    time.sleep(0.05)
"""
        )
        machines.crash("c4")
        try:
            ended, why, said = job.do(
                """
run.wait(90)
[states(run), failure(run), [log(run, rank) for rank in range(2)]]
"""
            )
            assert ended["1"] == "lost"
            assert ended["0"] in ("released", "error")
            assert why.startswith("rank 1: RankLost: rank 1 ")
            assert "c4" in why
            assert said == ["last words of 0\n", "last words of 1\n"]
            # The other rank still runs cells, with its variables kept.
            assert job.do("values(cluster, '[kept]', ranks=[0])") == [[0]]
        finally:
            machines.boot("c4")
    machines.until_idle("c3", "c4")  # the module's own job is on the others


@pytest.mark.thorough  # as before
def test_a_cluster_whose_job_is_requeued_ends_and_records_the_reason(machines: Machines):
    options = ("--nodelist=c3,c4", "--nodes=2", "--ntasks-per-node=1", "--requeue")
    with JobPython(machines, "alice", *options) as job:
        job.do(START.format(how="name='mine'"))
        job.do("run = cluster.run('import time; print(rank, flush=True); time.sleep(1000)')")
        folder = cluster_folder(machines, "alice", "mine")
        record = folder.parent.parent / "runs" / job.do("run.id") / "run.json"
        machines.run("login", ["scontrol", "requeue", job.job])
        job.until_gone(60)
        machines.run("login", ["scancel", job.job], "alice")
        deadline = time.monotonic() + 60
        while folder.exists():  # it is removed once the whole record is on disk
            assert time.monotonic() < deadline
            time.sleep(0.2)
        about = json.loads(record.read_text())
        assert about["state"] == "failed"
        words = f"job {job.job} was requeued"
        assert words in about["failure"]["evalue"], about
