"""Ranks on a machine with 8 simulated GPUs: one rank per visible GPU."""

import pytest

from cells import finish, values
from eight_gpus import pretend_gpus
from rankroom.cluster import actions
from rankroom.cluster.local import Cluster

pytestmark = pytest.mark.cluster

ABOUT = """
import os
device, os.environ["CUDA_VISIBLE_DEVICES"], int(os.environ["LOCAL_RANK"])
"""
NCCL = """
import os
os.environ.get("NCCL_HOSTID"), os.environ["NCCL_SOCKET_IFNAME"]
"""
SAMPLED = "import time; time.sleep(2.5)"  # there is one sample per second


@pytest.fixture
def start(home, monkeypatch):
    made = []

    def start(visible, ranks=None):
        pretend_gpus(monkeypatch, visible)
        made.append(Cluster.local(ranks=ranks))
        return made[-1]

    yield start
    for cluster in made:
        cluster.stop()


def test_ranks_have_the_gpus_that_are_visible(start):
    cluster = start("GPU-2,GPU-5")
    assert cluster.size == 2 and cluster.describe().endswith("(one GPU each)")
    assert values(cluster, ABOUT) == [("cuda:0", "GPU-2,GPU-5", 0), ("cuda:1", "GPU-2,GPU-5", 1)]
    assert cluster.warning() == ""
    run = finish(cluster, SAMPLED)
    for rank, gpu in enumerate((2, 5)):
        own = [each for each in run.events if (each["kind"], each["rank"]) == ("sample", rank)]
        assert own and {each["gpu"] for each in own} == {10 * gpu}
        assert {each["gpu_memory"] for each in own} == {(1 + gpu) << 30}
    memory = cluster.memory()
    assert [each.device for each in memory.values()] == ["cuda:0", "cuda:1"]
    assert [(each.used, each.total) for each in memory.values()] == [
        ((1 + gpu) << 30, 80 << 30) for gpu in (2, 5)
    ]
    assert all(each.resident > 1 << 20 for each in memory.values())
    profile = run.profile()
    assert [row.gpu_peak for row in profile.memory] == [(1 + gpu) << 30 for gpu in (2, 5)]
    assert "per rank, 3.2 GB to 6.4 GB on its GPU" in str(profile)
    assert values(cluster, NCCL) == [(None, "=lo"), (None, "=lo")]
    cluster.restart([1])
    assert values(cluster, ABOUT)[1] == ("cuda:1", "GPU-2,GPU-5", 1)


def test_each_rank_sees_its_own_mig_instance(start):
    cluster = start("MIG-a,MIG-b")
    assert values(cluster, ABOUT) == [("cuda:0", "MIG-a", 0), ("cuda:0", "MIG-b", 1)]
    assert cluster.warning() == ""
    loads = actions.look(cluster.name)["ranks"]
    assert {load["gpu_memory"] for load in loads.values()} == {5 << 30} and len(loads) == 2


def test_two_ranks_on_one_gpu_are_warned_about(start):
    cluster = start("6", ranks=2)
    assert [rank.device for rank in cluster.ranks] == ["cuda:0", "cuda:0"]
    assert cluster.warning().startswith("2 ranks share 1 GPU: one rank per GPU")
    hosts = [host for host, _ in values(cluster, NCCL)]
    assert all(hosts) and hosts[0] != hosts[1]
    cluster.restart([1])
    assert [host for host, _ in values(cluster, NCCL)] == hosts
