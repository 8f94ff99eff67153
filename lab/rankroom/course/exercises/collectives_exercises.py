"""What collectives do, checked with random numbers."""

from __future__ import annotations

import math
from typing import Any

from rankroom.course.exercise import Learner, Wrong, exercise


@exercise("collectives.1", answer="mean_of_all")
def mean_of_all(learner: Learner) -> None:
    """Check the mean over the values of all ranks, which hold different numbers of values."""
    mean = learner.function("mean_of_all")
    for empty in (-1, learner.chance.randrange(learner.size)):
        lists = [
            [learner.chance.uniform(0, 10) for _ in range(0 if rank == empty else 2 + 3 * rank)]
            for rank in range(learner.size)
        ]
        every = [value for values in lists for value in values]
        wanted = sum(every) / len(every)
        found = mean(list(lists[learner.rank]))
        lengths = ", ".join(str(len(values)) for values in lists)
        if not _is_close(found, wanted):
            means = [sum(values) / len(values) for values in lists if values]
            hint = ""
            if _is_close(found, sum(means) / len(means)):
                hint = ": that is the mean of the ranks' means"
            raise Wrong(
                f"with lists of {lengths} values the mean is {wanted:.4f}, and you have "
                f"{_short(found)}{hint}"
            )


@exercise("collectives.2", answer="best")
def best(learner: Learner) -> None:
    """Check that all ranks find the rank with the smallest loss."""
    find = learner.function("best")
    for winner in (learner.chance.randrange(learner.size), learner.size - 1, 0):
        losses = [1 + learner.chance.random() for _ in range(learner.size)]
        losses[winner] = learner.chance.random()
        found = find(losses[learner.rank])
        if not _is_close(found, winner):
            raise Wrong(
                f"rank {winner} has the smallest loss, but best() returns {_short(found)} "
                f"on rank {learner.rank}"
            )
    found = find(0.5)
    if not _is_close(found, 0):
        raise Wrong(f"if all losses are equal, the answer is rank 0, not {_short(found)}")


@exercise("collectives.3", answer="columns")
def columns(learner: Learner) -> None:
    """Check that rows are turned into columns, block by block."""
    import torch

    turn = learner.function("columns")
    for width in (1, learner.chance.randrange(2, 5)):
        table = torch.tensor(
            [[learner.chance.randrange(1000) for _ in range(learner.size * width)]
             for _ in range(learner.size)]
        )  # fmt: skip
        found = turn(table[learner.rank].clone(), width)
        begin = learner.rank * width
        wanted = table[:, begin : begin + width]
        is_tensor = isinstance(found, torch.Tensor)
        shape = list(found.shape) if is_tensor else type(found).__name__
        if shape != list(wanted.shape):
            raise Wrong(
                f"columns() should give a tensor of shape {list(wanted.shape)}, and gives {shape}"
            )
        if not torch.equal(found.to(wanted.dtype), wanted):
            raise Wrong(
                f"rank {learner.rank} should get {wanted.tolist()}, block {learner.rank} of every "
                f"row, and has {found.tolist()}"
            )


@exercise("collectives.4", answer="report")
def report(learner: Learner) -> None:
    """Check a collective that all ranks join, although only one uses its result."""
    tell = learner.function("report")
    losses = [learner.chance.random() for _ in range(learner.size)]
    found = tell(losses[learner.rank])
    wanted = sum(losses) / learner.size
    if learner.rank == 0 and not _is_close(found, wanted):
        raise Wrong(f"rank 0 should report {wanted:.4f}, and reports {_short(found)}")
    if learner.rank != 0 and found is not None:
        raise Wrong(f"rank {learner.rank} should return None, and returns {_short(found)}")


def _is_close(found: Any, wanted: float) -> bool:
    try:
        return math.isclose(float(found), wanted, rel_tol=1e-5)
    except (TypeError, ValueError):
        return False


def _short(value: Any) -> str:
    return f"{value:.4f}" if isinstance(value, float) else repr(value)[:80]
