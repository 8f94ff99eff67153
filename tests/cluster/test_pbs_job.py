"""Ranks in a PBS job: reading its allocation, and agents that `mpiexec` starts on its nodes."""

import json
import socket
import time
from pathlib import Path

import pytest

from cells import values
from fake_scheduler import FakeScheduler
from rankroom.cluster.local import Cluster
from rankroom.errors import StartError, UsageError
from rankroom.record.cluster_file import ClusterInfo
from rankroom.scheduler import allocation, jobs, pbs_job, step_launcher
from rankroom.scheduler.site import Container, Site

HERE = socket.gethostname().partition(".")[0]
# As on Polaris: one line per process, with the fully qualified host name.
NODE_FILE = "".join(f"x3006c0s{n}b0n0.hsn.cm.polaris.alcf.anl.gov\n" for n in (13, 13, 19, 19))
RUNS = {
    "job_state": "R",
    "stime": "Fri Nov 20 12:00:00 2026",
    "Resource_List": {"walltime": "01:00:00"},
    "exec_vnode": "(x3006c0s13b0n0:ncpus=64)+(x3006c0s19b0n0:ncpus=32)",
}
PARTS = "(x1[0]:ncpus=4:ngpus=2+x1[1]:ncpus=4:ngpus=2)+(x2:mem=8gb:ncpus=8:ngpus=4)"


def said(job: str = "42.polaris-pbs-01", **about: object) -> str:
    return json.dumps({"timestamp": 1795176000, "Jobs": {job: RUNS | about}})


def read(text: str = NODE_FILE, ranks: int | None = None, here=(4, 64), **about: object):
    return allocation.read_pbs(said(**about), "42.polaris-pbs-01", ranks, text, here)


def test_one_rank_per_gpu_and_unlisted_gpu_counts_are_assumed_equal():
    found = read()
    assert [(node.name, node.ranks, node.devices, node.cores) for node in found.nodes] == [
        ("x3006c0s13b0n0", 4, 4, 64),
        ("x3006c0s19b0n0", 4, 4, 32),
    ]
    assert (found.job, found.scheduler, found.until) == ("42", "pbs", 1795176000 + 3600)


def test_a_node_without_gpus_beside_one_with_some_has_none():
    vnodes = "(x3006c0s13b0n0:ncpus=64:ngpus=4)+(x3006c0s19b0n0:ncpus=32)"
    assert [node.devices for node in read(exec_vnode=vnodes).nodes] == [4, 0]


def test_nodes_without_gpus_get_one_rank_per_requested_process():
    found = read(here=(0, 8), exec_vnode="(x3006c0s13b0n0:ncpus=4)+(x3006c0s19b0n0:ncpus=4)")
    assert [(node.ranks, node.devices) for node in found.nodes] == [(2, 0), (2, 0)]


def test_ranks_are_shared_out_as_in_a_slurm_job():
    assert [node.ranks for node in read(ranks=3).nodes] == [2, 1]
    assert [node.name for node in read(ranks=1).nodes] == ["x3006c0s13b0n0"]
    with pytest.raises(UsageError, match="at least 1 rank"):
        read(ranks=0)


def test_chunks_of_one_pbs_node_are_merged():
    nodes, _, _ = pbs_job.read(said(exec_vnode=PARTS), "42", "x1\nx2\n", (0, 1))
    assert [(node.name, node.devices, node.cores) for node in nodes] == [("x1", 4, 8), ("x2", 4, 8)]


@pytest.mark.parametrize(
    ("text", "node_file", "words"),
    [
        (said(job_state="Q"), NODE_FILE, "(PBS_JOBID) is not running (it is waiting in the queue"),
        (
            said("43.other"),
            NODE_FILE,
            "is not running (it is unknown to qstat): start a new one, or",
        ),
        ("qstat: cannot connect", NODE_FILE, "qstat returned no JSON; its output:\nqstat: cannot"),
        (said(), "", "lists no nodes of job 42"),
    ],
)
def test_an_unreadable_pbs_job_is_refused_with_the_cause(text: str, node_file: str, words: str):
    with pytest.raises(StartError) as caught:
        pbs_job.read(text, "42", node_file, (0, 1))
    assert words in str(caught.value)


def test_a_missing_qstat_is_reported_with_a_remedy(monkeypatch, tmp_path: Path):
    monkeypatch.setenv("PATH", "/usr/bin:/bin")
    with pytest.raises(StartError, match=r"`qstat`, .* is not found here: .* unset PBS_JOBID"):
        allocation.granted(None, {"PBS_JOBID": "42.pbs-01"})


def test_an_allocation_of_pbs_is_read_back():
    import dataclasses

    info = ClusterInfo("x", 4, allocation=read())
    assert ClusterInfo.from_json(json.loads(json.dumps(dataclasses.asdict(info)))) == info


def test_an_agent_is_started_on_its_node_with_mpiexec(monkeypatch):
    words = step_launcher.command(read(), "x3006c0s19b0n0", "/work", ["FOLDER"])
    assert words[:9] == [
        "mpiexec", "-n", "1", "--ppn", "1", "--hosts", "x3006c0s19b0n0", "--cpu-bind", "none",
    ]  # fmt: skip
    assert words[-2:] == ["rankroom.agent.node_agent", "FOLDER"]


def test_ranks_of_a_site_with_a_container_are_started_in_it(monkeypatch):
    site = Site("x", container=Container("shifter", "img:1", ("--module=gpu",), "python3"))
    [line] = [line for line in jobs.body(site, []) if line.startswith("export")]
    name, _, value = line.removeprefix("export ").partition("=")
    monkeypatch.setenv(name, value.strip("'"))
    words = step_launcher.command(read(), "c1", "/work", [])
    assert words[9:13] == ["shifter", "--image=img:1", "--module=gpu", "python3"]
    assert not any(step_launcher.PYTHON_VARIABLE in line for line in jobs.body(Site("x"), []))


@pytest.mark.cluster
def test_ranks_start_and_restart_in_a_pbs_job(fake: FakeScheduler, tmp_path: Path, monkeypatch):
    """Two ranks of an agent that mpiexec starts, one of them restarted; PBS is simulated."""
    (tmp_path / "nodes").write_text(f"{HERE}.example.org\n" * 2)
    about = RUNS | {"exec_vnode": f"({HERE}:ncpus=4)"}
    fake.set("42", json.dumps(about)[1:-1])
    monkeypatch.setenv("PBS_JOBID", "42.pbs-01")
    monkeypatch.setenv("PBS_NODEFILE", str(tmp_path / "nodes"))
    cluster = Cluster.local()
    try:
        assert cluster.info.allocation is not None
        assert cluster.info.allocation.scheduler == "pbs"
        told = "(rank, size, local_rank, __import__('os').environ.get('SLURM_PROCID'))"
        assert values(cluster, told) == [(0, 2, 0, None), (1, 2, 1, None)]
        cluster.restart([1])
        assert values(cluster, "rank") == [0, 1]
        assert len(fake.calls("mpiexec")) == 1
    finally:
        cluster.stop()
    deadline = time.monotonic() + 60
    while cluster.paths.folder.exists() and time.monotonic() < deadline:
        time.sleep(0.05)
    assert not cluster.paths.folder.exists()
