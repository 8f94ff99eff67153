"""What a real rank finds in its environment is enough to train alone."""

import pytest

from cells import finish, values
from rankroom.cluster.local import Cluster


@pytest.mark.cluster
def test_one_rank_alone_needs_nobody(home, monkeypatch):
    monkeypatch.setenv("OMP_NUM_THREADS", "1")
    monkeypatch.setenv("MKL_NUM_THREADS", "1")
    cluster = Cluster.local(ranks=1)
    try:
        source = """
        import os, torch, torch.distributed as dist, horovod.torch as hvd
        hvd.init(); hvd.init()
        dist.init_process_group("gloo")
        dist.all_reduce(x := torch.ones(1))
        [hvd.size(), hvd.allreduce(x, op=hvd.Sum).item(), torch.get_num_threads(),
         "TF_NUM_INTRAOP_THREADS" in os.environ]
        """
        assert values(cluster, source) == [[1, 1.0, 1, False]]
        finish(cluster, "raise ValueError")
        assert values(cluster, "hvd.allreduce(x, op=hvd.Sum).item()") == [1.0]
    finally:
        cluster.stop()
