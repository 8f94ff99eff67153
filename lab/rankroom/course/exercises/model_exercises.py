"""Models that are split over ranks."""

from __future__ import annotations

import math

from rankroom.course.exercise import Learner, Wrong, exercise


@exercise("model.1", answer="split_sum")
def by_layer(learner: Learner) -> None:
    """Check y = w0·x0 + w1·x1 + …, with each term computed on its own rank."""
    import torch
    import torch.distributed as dist

    ask = learner.function("split_sum")
    weights = [learner.chance.uniform(-2, 2) for _ in range(learner.size)]
    inputs = [learner.chance.uniform(-2, 2) for _ in range(learner.size)]
    wanted = sum(w * x for w, x in zip(weights, inputs, strict=True))
    collectives = (
        "all_reduce", "reduce", "broadcast", "gather", "all_gather", "all_gather_into_tensor",
        "all_gather_object", "gather_object", "broadcast_object_list", "reduce_scatter_tensor",
    )  # fmt: skip
    kept = {name: getattr(dist, name) for name in collectives}
    # Collectives imported by name, as by `from torch.distributed import all_reduce`.
    named = [getattr(ask, "__globals__", {}).get(name) for name in _names_in(ask)]

    def refused(*args: object, **kwargs: object) -> None:
        raise Wrong("a device talks to its neighbours only: use dist.recv and dist.send")

    if any(each is own for each in named for own in kept.values()):
        refused()
    try:
        for name in kept:
            setattr(dist, name, refused)
        found = ask(torch.tensor(weights[learner.rank]), torch.tensor(inputs[learner.rank]))
    finally:
        for name, own in kept.items():
            setattr(dist, name, own)
    last = learner.rank == learner.size - 1
    if last and (found is None or not math.isclose(float(found), wanted, abs_tol=1e-4)):
        shown = None if found is None else round(float(found), 4)
        raise Wrong(f"the last rank should have {wanted:.4f}, and has {shown!r}")
    if not last and found is not None:
        raise Wrong(f"rank {learner.rank} passes its sum on: only the last rank returns it")


def _names_in(function: object) -> tuple[str, ...]:
    """Return the names of globals and attributes that a function uses."""
    code = getattr(function, "__code__", None)
    return () if code is None else tuple(code.co_names)


@exercise("model.2", answer="bubble", ranks=2)
def pipeline(learner: Learner) -> None:
    """Check the share of time in which a pipeline stage is idle: counted on these ranks, then
    computed for other pipelines."""
    ask = learner.function("bubble")
    micro = learner.chance.randrange(2, 9)
    slots = _slots(learner, micro)
    found = ask(learner.size, micro)
    if not isinstance(found, (int, float)) or not math.isclose(found, 1 - micro / slots):
        raise Wrong(
            f"{micro} micro-batches have gone through {learner.size} stages in {slots} slots, "
            f"{slots - micro} of which were empty on each stage: that is {1 - micro / slots:.3f}, "
            f"and you predict {found!r}"
        )
    for _ in range(4):
        stages, micro = learner.chance.randrange(2, 12), learner.chance.randrange(1, 40)
        wanted = (stages - 1) / (micro + stages - 1)
        found = ask(stages, micro)
        if not isinstance(found, (int, float)) or not math.isclose(found, wanted, rel_tol=1e-6):
            raise Wrong(
                f"{stages} stages and {micro} micro-batches: {micro + stages - 1} slots, in "
                f"{stages - 1} of which a stage waits: {wanted:.3f}, and you have {found!r}"
            )


def _slots(learner: Learner, micro: int) -> int:
    """Return how many time slots `micro` micro-batches need with one stage per rank. A clock that
    counts slots travels with each micro-batch: a stage works in the first slot after both are
    ready."""
    import torch
    import torch.distributed as dist

    clock = torch.zeros(1, dtype=torch.int64)
    for _ in range(micro):
        if learner.rank > 0:
            before = torch.zeros_like(clock)
            dist.recv(before, src=learner.rank - 1)
            clock = torch.maximum(clock, before)
        clock = clock + 1
        if learner.rank < learner.size - 1:
            dist.send(clock, dst=learner.rank + 1)
    dist.all_reduce(clock, op=dist.ReduceOp.MAX)
    return int(clock)


@exercise("model.3", answer="column_linear")
def columns(learner: Learner) -> None:
    """Check a linear layer whose outputs are sharded over the ranks."""
    import torch

    ask = learner.function("column_linear")
    made = torch.Generator().manual_seed(learner.seed)
    x = torch.randn(3, 4, generator=made)
    weight = torch.randn(4, 2 * learner.size, generator=made)
    found = ask(x, weight.chunk(learner.size, dim=1)[learner.rank].contiguous())
    wanted = x @ weight
    if getattr(found, "shape", None) != wanted.shape:
        shape = list(getattr(found, "shape", [])) or found
        raise Wrong(f"the whole output has shape {list(wanted.shape)}, and yours is {shape!r}")
    if not torch.allclose(found, wanted, atol=1e-4):
        raise Wrong(f"on rank {learner.rank} the columns are not those of x @ weight")


@exercise("model.4", answer="row_linear")
def rows(learner: Learner) -> None:
    """Check a linear layer whose inputs are sharded over the ranks."""
    import torch

    ask = learner.function("row_linear")
    made = torch.Generator().manual_seed(learner.seed)
    x = torch.randn(3, 2 * learner.size, generator=made)
    weight = torch.randn(2 * learner.size, 5, generator=made)
    own = x.chunk(learner.size, dim=1)[learner.rank].contiguous()
    found = ask(own, weight.chunk(learner.size)[learner.rank].contiguous())
    wanted = x @ weight
    if getattr(found, "shape", None) != wanted.shape:
        shape = list(getattr(found, "shape", [])) or found
        raise Wrong(f"the whole output has shape {list(wanted.shape)}, and yours is {shape!r}")
    if not torch.allclose(found, wanted, atol=1e-4):
        part = torch.allclose(found, own @ weight.chunk(learner.size)[learner.rank], atol=1e-4)
        hint = ": it is this rank's part of the sum" if part else ""
        raise Wrong(f"on rank {learner.rank} that is not x @ weight{hint}")
