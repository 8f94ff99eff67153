"""Ranks and GPUs, without any: what is counted, what each rank is told, what is warned about."""

from types import SimpleNamespace

import pytest

from rankroom.cluster.local import Cluster
from rankroom.record.cluster_file import ClusterInfo
from rankroom.record.model import RankInfo
from rankroom.system.gpus import visible_gpus


@pytest.fixture
def four_gpus(monkeypatch):
    fake = SimpleNamespace(
        nvmlInit=lambda: None, nvmlDeviceGetCount=lambda: 4, nvmlShutdown=lambda: None
    )
    monkeypatch.setitem(__import__("sys").modules, "pynvml", fake)
    monkeypatch.delenv("CUDA_VISIBLE_DEVICES", raising=False)


@pytest.mark.parametrize(
    ("visible", "count"), [(None, 4), ("0,1", 2), ("", 0), ("-1", 0), ("0,1,2,3,4,5", 4)]
)
def test_gpus_are_counted_as_cuda_would(four_gpus, monkeypatch, visible, count):
    if visible is not None:
        monkeypatch.setenv("CUDA_VISIBLE_DEVICES", visible)
    assert visible_gpus() == count


def test_no_driver_is_no_gpu(monkeypatch):
    def broken():
        raise OSError("no driver")

    monkeypatch.setitem(__import__("sys").modules, "pynvml", SimpleNamespace(nvmlInit=broken))
    assert visible_gpus() == 0


@pytest.mark.parametrize(
    ("devices", "words"),
    [(["cuda:0", "cuda:1"], ""), (["cpu", "cpu"], ""), (["cuda:0", "cuda:0"], "2 ranks share 1")],
)
def test_sharing_a_gpu_is_warned_about(devices, words):
    ranks = [RankInfo(rank, "here", 1, device) for rank, device in enumerate(devices)]
    cluster = object.__new__(Cluster)
    cluster.info = ClusterInfo("x", len(ranks), ranks=ranks)
    assert cluster.warning().startswith(words)
    assert bool(cluster.warning()) == bool(words)
