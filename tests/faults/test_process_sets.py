"""A rank is killed while Horovod has process sets: the other ranks must survive."""

import pytest

from cells import finish, log, states, values

pytestmark = [
    pytest.mark.cluster,
    pytest.mark.fault("a rank is killed while there are process sets", "the others live on"),
]


def test_the_surviving_rank_keeps_its_variables(cluster, tmp_path):
    values(
        cluster,
        """
        import os, signal, time
        import torch, horovod.torch as hvd
        hvd.init()
        alone = [hvd.add_process_set([each]) for each in range(2)][rank]
        kept = ["precious", rank]
        hvd.allreduce(torch.ones(2), op=hvd.Sum).tolist()
        """,
    )
    run = finish(
        cluster,
        f"""
        there = {str(tmp_path / "there")!r}
        if rank == 1:
            while not os.path.exists(there):
                time.sleep(0.01)
            time.sleep(0.3)  # from there it is one step to the allreduce
            os.kill(os.getpid(), signal.SIGKILL)
        open(there, "w").close()
        hvd.allreduce(torch.ones(2))
        """,
    )
    assert states(run)[1] == "lost"
    assert "HorovodInternalError" in str(run.events)
    after = cluster.run("print(kept)", ranks=[0])
    assert after.wait(60) and after.state == "done"
    assert log(after, 0) == "['precious', 0]\n"


def test_a_restarted_rank_gets_the_process_sets_of_the_other_ranks(cluster):
    """Horovod does not initialize if ranks name different process sets, and then waits forever."""
    if 1 not in cluster.alive:  # after the previous test
        cluster.restart([1])
    source = """
    import torch, horovod.torch as hvd
    hvd.init()
    alone = [hvd.add_process_set([each]) for each in range(2)][rank]
    own = hvd.allreduce(torch.ones(1) * (rank + 1), op=hvd.Sum, process_set=alone)
    [own.item(), hvd.allreduce(torch.ones(1), op=hvd.Sum).item(), alone.process_set_id]
    """
    assert values(cluster, source) == [[1.0, 2.0, 1], [2.0, 2.0, 2]]
    for rank in (1, 0):
        cluster.restart([rank])
        assert values(cluster, source) == [[1.0, 2.0, 1], [2.0, 2.0, 2]]
