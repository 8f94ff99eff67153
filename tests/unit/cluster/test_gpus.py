"""Ranks and GPUs, with simulated GPUs: counts, the environment of ranks, warnings and samples."""

from types import SimpleNamespace

import pytest

from eight_gpus import pretend_gpus
from rankroom.agent.node_ranks import NodeRanks
from rankroom.cluster.local import Cluster
from rankroom.record.cluster_file import ClusterInfo, ClusterPaths
from rankroom.record.model import RankInfo
from rankroom.reporting.samples import Sampler
from rankroom.scheduler import allocation
from rankroom.system.gpus import gpus_of_driver, visible_gpus

# Slurm's description of a job on two nodes with 8 GPUs each.
TWO_NODES = (
    "JobState=RUNNING EndTime=Unknown   Nodes=c[1-2] CPU_IDs=0-63 Mem=0 GRES=gpu:a100:8(IDX:0-7) "
)
INSTANCES = "MIG-4e7f,MIG-81a0"


@pytest.mark.parametrize(
    ("visible", "count"),
    [
        (None, 8), ("0,1", 2), ("", 0), ("-1", 0), ("NoDevFiles", 0), (" 2, 5", 2),
        # As in CUDA, an entry without a GPU hides all that follow.
        ("0,1,2,3,4,5,6,7,8,9", 8), ("9", 0), ("3,9,4", 1), ("3,-1,4", 1),
        ("GPU-4,GPU-6", 2), (INSTANCES, 2),
    ],
)  # fmt: skip
def test_gpus_are_counted_as_cuda_would(monkeypatch, visible, count):
    pretend_gpus(monkeypatch, visible)
    assert visible_gpus() == count
    assert gpus_of_driver() == 8


@pytest.mark.parametrize("visible", [None, "0", INSTANCES])
def test_without_a_driver_no_gpu_is_visible(monkeypatch, visible):
    def broken():
        raise OSError("no driver")

    pretend_gpus(monkeypatch, visible)
    monkeypatch.setitem(__import__("sys").modules, "pynvml", SimpleNamespace(nvmlInit=broken))
    assert visible_gpus() == 0


@pytest.mark.parametrize(
    ("devices", "words"),
    [
        (["cuda:0", "cuda:1"], ""), (["cpu", "cpu"], ""),
        (["cuda:0", "cuda:0"], "2 ranks share 1 GPU: one rank per GPU"),
        (["cuda:0", "cuda:0", "cuda:1"], "3 ranks share 2 GPUs: one rank per GPU"),
    ],
)  # fmt: skip
def test_sharing_a_gpu_is_warned_about(devices, words, monkeypatch):
    ranks = [RankInfo(rank, "here", 1, device) for rank, device in enumerate(devices)]
    cluster = object.__new__(Cluster)
    cluster.info = ClusterInfo("x", len(ranks), ranks=ranks)
    monkeypatch.setattr(cluster, "refresh", lambda: cluster.info)
    assert cluster.warning().startswith(words)
    assert bool(cluster.warning()) == bool(words)
    assert ("sharing GPUs" in cluster.describe()) == bool(words)


def two_nodes(ranks=None):
    """The environment and the device of each rank, node by node."""
    granted = allocation.read(TWO_NODES, "7", ranks, [1, 1])
    size = sum(node.ranks for node in granted.nodes)
    info = ClusterInfo("two", size, rpc="tcp://127.0.0.1:4000", allocation=granted)
    found = []
    for node in range(2):
        own = NodeRanks(info, ClusterPaths("two"), node, 0)
        found.append([(own.environment(rank, 1), own.device(rank)) for rank in own.ranks])
    return found


def test_two_nodes_have_a_rank_for_each_gpu(home, monkeypatch):
    pretend_gpus(monkeypatch)
    for node in two_nodes():
        devices = [f"cuda:{number}" for number in range(8)]
        assert [env["RANKROOM_DEVICE"] for env, _ in node] == devices == [own for _, own in node]
        assert [int(env["LOCAL_RANK"]) for env, _ in node] == list(range(8))
        # Each rank sees all GPUs of its node, in their order.
        assert not any("CUDA_VISIBLE_DEVICES" in env for env, _ in node)


def test_ranks_keep_the_gpus_that_slurm_made_visible(home, monkeypatch):
    for visible in ("4,5", "GPU-4,GPU-5"):
        pretend_gpus(monkeypatch, visible)
        [(first, _), (second, _)] = two_nodes(ranks=4)[0]
        assert (first["RANKROOM_DEVICE"], second["RANKROOM_DEVICE"]) == ("cuda:0", "cuda:1")
        assert "CUDA_VISIBLE_DEVICES" not in first | second


def test_each_rank_has_its_own_mig_instance(home, monkeypatch):
    pretend_gpus(monkeypatch, INSTANCES)
    [(first, one), (second, other)] = two_nodes(ranks=4)[0]
    seen = [env["CUDA_VISIBLE_DEVICES"] for env in (first, second)]
    assert ",".join(seen) == INSTANCES and one != other
    assert first["RANKROOM_DEVICE"] == second["RANKROOM_DEVICE"] == "cuda:0"


@pytest.mark.parametrize(
    ("visible", "number", "load"),
    [
        (None, 3, {"gpu": 30, "gpu_memory": 4 << 30}),
        ("4,5", 1, {"gpu": 50, "gpu_memory": 6 << 30}),
        ("GPU-6,GPU-2", 0, {"gpu": 60, "gpu_memory": 7 << 30}), ("4,5", 2, {}), ("GPU-9", 0, {}),
        (INSTANCES, 1, {"gpu_memory": 5 << 30}),  # no utilization of a MIG instance
    ],
)  # fmt: skip
def test_a_sample_is_of_the_ranks_own_gpu(monkeypatch, visible, number, load):
    pretend_gpus(monkeypatch, visible)
    sample = Sampler(f"cuda:{number}").sample()
    assert {name: sample[name] for name in sample if name.startswith("gpu")} == load
