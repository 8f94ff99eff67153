"""Training code written for `hvd.elastic.run`, in cells."""

import pytest

from cells import failure, finish, log, values

pytestmark = pytest.mark.cluster

TRAINING = """
import torch
import horovod.torch as hvd
from horovod.common.exceptions import HorovodInternalError
hvd.init()
torch.manual_seed(rank)
model = torch.nn.Linear(1, 1)
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
optimizer = hvd.DistributedOptimizer(optimizer, named_parameters=model.named_parameters())
resets, seen = [], []

@hvd.elastic.run
def train(state):
    while state.batch < 6:
        seen.append(state.batch)
        optimizer.zero_grad()
        model(torch.ones(1, 1)).sum().backward()
        {trouble}
        optimizer.step()
        state.batch += 1
        if state.batch % 2 == 0:
            state.commit()
    return state.batch

state = hvd.elastic.TorchState(model, optimizer, batch=0)
state.register_reset_callbacks([lambda: resets.append(hvd.size())])
"""
SHOWN = """
[train(state), seen, resets, hvd.allgather(model.weight.detach()).flatten().tolist()]
"""


@pytest.mark.parametrize("trouble", ["none", "once"])
def test_elastic_training_resumes_from_the_last_commit(frameworks, trouble):
    broken = "if state.batch == 3 and not resets: raise HorovodInternalError('a link is down')"
    source = TRAINING.format(trouble="pass" if trouble == "none" else broken)
    ranks = values(frameworks, source + SHOWN)
    assert ranks[0] == ranks[1]
    batches, seen, resets, weights = ranks[0]
    assert batches == 6 and weights[0] == weights[1]
    assert seen == ([0, 1, 2, 3, 4, 5] if trouble == "none" else [0, 1, 2, 3, 2, 3, 4, 5])
    assert resets == ([] if trouble == "none" else [2])
    # The same cell runs again: nothing is left over that would disturb it.
    assert values(frameworks, source + SHOWN)[0][:3] == ranks[0][:3]


def test_an_exception_on_one_rank_ends_elastic_training_on_all(frameworks):
    source = TRAINING.format(trouble="if rank == 1 and state.batch == 3: raise ValueError('mine')")
    run = finish(frameworks, source + SHOWN)
    assert failure(run) == "rank 1: ValueError: mine"
    assert {rank.state for rank in run.info.ranks} == {"error", "released"}
    assert "Traceback" not in log(run, 0)
    assert values(frameworks, TRAINING.format(trouble="pass") + SHOWN)[0][0] == 6


def test_grouped_gradients_resume_after_a_rank_failed_in_backward(frameworks):
    source = """
        import horovod.torch.optimizer as module
        optimizer = hvd.DistributedOptimizer(
            torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9),
            named_parameters=model.named_parameters(), groups=1,
        )
        state = hvd.elastic.TorchState(model, optimizer, batch=0)
        enqueue, failed = module.grouped_allreduce_async_, []
        def fail_once(*args, **kwargs):
            if rank == 1 and state.batch == 3 and not failed:
                failed.append(True)
                raise HorovodInternalError("Horovod has been shut down")
            return enqueue(*args, **kwargs)
        module.grouped_allreduce_async_ = fail_once
        seen.clear()
        try:
            trained = train(state)
        finally:
            module.grouped_allreduce_async_ = enqueue
        [trained, seen, failed]
    """
    finish(frameworks, TRAINING.format(trouble="pass"))
    seen = [0, 1, 2, 3, 2, 3, 4, 5]
    assert values(frameworks, source) == [[6, seen, []], [6, seen, [True]]]
