"""PyTorch's own data parallelism."""

from __future__ import annotations

from typing import Any

from rankroom.course.exercise import Learner, Wrong, exercise
from rankroom.course.exercises.horovod_exercises import another_size, demand_disjoint
from rankroom.course.exercises.precision_exercises import RowsHeld


@exercise("ddp.1", answer="epoch_of", ranks=1)
def sampler(learner: Learner) -> None:
    """Check which images a DistributedSampler gives each rank in each epoch."""
    import torch.distributed as dist

    ask = learner.function("epoch_of")
    own = _try_epochs(ask, learner.size, learner.chance.randrange(8, 20))[learner.rank]
    _try_epochs(ask, another_size(learner.size), learner.chance.randrange(8, 20))
    if dist.is_initialized():
        ranks: list[list[int]] = [[]] * learner.size
        dist.all_gather_object(ranks, own)
        demand_disjoint(ranks)


def _try_epochs(ask: Any, size: int, each: int) -> list[list[int]]:
    """Return the shards of epoch 1 by rank, all computed in this process. Raises Wrong."""
    count, orders = size * each, []
    for epoch in (0, 1):
        parts = [[int(i) for i in ask(count, epoch, rank, size)] for rank in range(size)]
        together = [each for part in parts for each in part]
        if sorted(together) != list(range(count)):
            raise Wrong(
                f"the ranks' parts of epoch {epoch} hold {len(set(together))} different images "
                f"of {count}"
            )
        orders.append(parts[0])
    if orders[0] == orders[1]:
        raise Wrong("both epochs come in the same order: the sampler has to be told the epoch")
    if orders[0] == sorted(orders[0]):
        raise Wrong("the images are still in their original order: shuffle=True")
    return parts


@exercise("ddp.2", answer="accumulate")
def no_sync(learner: Learner) -> None:
    """Check that the gradients of several small batches are averaged by a single all-reduce."""
    import torch
    import torch.distributed as dist
    from torch.nn.parallel import DistributedDataParallel

    accumulate = learner.function("accumulate")
    torch.manual_seed(learner.seed)
    model = DistributedDataParallel(torch.nn.Linear(4, 2, bias=False, device=learner.device))
    reduced: list[int] = []

    # DDP rejects hooks with annotations other than its own.
    def hook(state, bucket):  # type: ignore[no-untyped-def]
        reduced.append(bucket.index())
        transfer = dist.all_reduce(bucket.buffer().div_(learner.size), async_op=True)
        return transfer.get_future().then(lambda done: done.value()[0])

    model.register_comm_hook(None, hook)
    mine = torch.Generator().manual_seed(learner.seed * 31 + learner.rank)
    batches = [torch.randn(3, 4, generator=mine).to(learner.device) for _ in range(4)]
    with torch.no_grad():
        wanted = sum(batch.new_ones(2, 3) @ batch for batch in batches)
    dist.all_reduce(wanted)
    wanted /= learner.size
    held = RowsHeld(model.module)
    accumulate(model, batches)
    held.demand(len(batches[0]), "batch")
    if not reduced:
        raise Wrong("the gradients are never averaged: the last batch has to synchronise")
    if len(reduced) > 1:
        raise Wrong(
            f"there are {len(reduced)} all-reduces for {len(batches)} batches, and one is enough: "
            "all batches but the last belong inside `with model.no_sync():`"
        )
    found = model.module.weight.grad
    if found is None or not torch.allclose(found, wanted, rtol=1e-4, atol=1e-5):
        raise Wrong(
            "the gradient is not the sum over the batches, averaged over the ranks: call "
            "backward() on model(batch).sum() for each, and do not divide"
        )


@exercise("ddp.3", answer="unwrapped", ranks=1)
def state(learner: Learner) -> None:
    """Check that a model without DDP can load the state dict."""
    import torch
    from torch.nn.parallel import DistributedDataParallel

    unwrapped = learner.function("unwrapped")
    torch.manual_seed(learner.seed)
    plain = torch.nn.Sequential(torch.nn.Linear(3, 2), torch.nn.Linear(2, 1))
    found = unwrapped(DistributedDataParallel(plain.to(learner.device)))
    if not isinstance(found, dict):
        raise Wrong(f"unwrapped gives {type(found).__name__}, and should give a state dict")
    if any(name.startswith("module.") for name in found):
        raise Wrong("the names begin with `module.`: a model without DDP cannot load them")
    fresh = torch.nn.Sequential(torch.nn.Linear(3, 2), torch.nn.Linear(2, 1))
    try:
        fresh.load_state_dict(found)
    except (RuntimeError, TypeError) as error:
        raise Wrong(f"a model without DDP does not take it: {error}"[:300]) from None
    pairs = zip(fresh.parameters(), plain.cpu().parameters(), strict=True)
    if not all(torch.equal(a, b) for a, b in pairs):
        raise Wrong("the loaded values are not the model's weights")
