"""Which rank is late, and how to help."""

from __future__ import annotations

import time
from typing import Any

from rankroom.course.exercise import Learner, Wrong, exercise
from rankroom.course.planted import planted

_PIECE_S = 0.03
_PIECES = 8


@exercise("straggler.1", answer="culprit", ranks=2)
def culprit(learner: Learner) -> None:
    """Check that the answer names the rank that was slowed down."""
    found = learner.get("culprit")
    truth = planted()
    if truth is None:
        raise Wrong("no rank has been slow yet: run the cell with the planted loader first")
    if isinstance(found, bool) or not isinstance(found, int):
        raise Wrong(f"culprit is {found!r}: it should be the number of a rank")
    if found != truth:
        raise Wrong(
            f"it was not rank {found}: look for the rank that waits for no other, while the others "
            "wait for it"
        )


@exercise("straggler.2", answer="prefetched", ranks=1)
def prefetch(learner: Learner) -> None:
    """Check that the next batch is loaded while the current one is being processed."""
    ahead = learner.function("prefetched")
    import torch

    values = [learner.chance.randrange(1000) for _ in range(_PIECES)]

    def slowly() -> Any:
        for value in values:
            time.sleep(_PIECE_S)
            yield torch.tensor([value, value])  # like the lesson's batches, it has no truth value

    best = float("inf")
    for _ in range(3):
        seen, begun = [], time.perf_counter()
        for value in ahead(slowly()):
            time.sleep(_PIECE_S)
            seen.append(int(value[0]))
        best = min(best, time.perf_counter() - begun)
        if seen != values:
            raise Wrong(f"given the batches {values}, it yields {seen}")
    serial = 2 * _PIECES * _PIECE_S
    if best > 0.85 * serial:
        raise Wrong(
            f"{_PIECES} batches that take {_PIECE_S * 1000:.0f} ms to load and as long to work on "
            f"took {best * 1000:.0f} ms; one after the other it is {serial * 1000:.0f} ms, and "
            f"with loading ahead {(_PIECES + 1) * _PIECE_S * 1000:.0f} ms"
        )


@exercise("straggler.3", answer="fused", ranks=2)
def fusion(learner: Learner) -> None:
    """Check that many small tensors are averaged by a single all-reduce."""
    import horovod.torch as hvd
    import torch

    fused = learner.function("fused")
    shapes = [(learner.chance.randrange(1, 6), learner.chance.randrange(1, 6)) for _ in range(7)]
    mine = torch.Generator().manual_seed(learner.seed + learner.rank)
    tensors = [torch.rand(shape, generator=mine) for shape in shapes]
    every = [
        torch.Generator().manual_seed(learner.seed + rank) for rank in range(learner.size)
    ]  # fmt: skip
    wanted = [
        sum(torch.rand(shape, generator=chance) for chance in every) / learner.size
        for shape in shapes
    ]
    calls: list[str] = []
    ways = ("allreduce", "allreduce_async", "allreduce_", "allreduce_async_")
    # A grouped all-reduce counts as one.
    kept = {name: getattr(hvd, name) for way in ways for name in (way, f"grouped_{way}")}

    def counted(name: str) -> Any:
        def call(*args: Any, **kwargs: Any) -> Any:
            calls.append(name)
            return kept[name](*args, **kwargs)

        return call

    try:
        for name in kept:
            setattr(hvd, name, counted(name))
        found = fused(tensors)
    finally:
        for name, own in kept.items():
            setattr(hvd, name, own)
    if not isinstance(found, (list, tuple)) or len(found) != len(tensors):
        raise Wrong(f"there were {len(tensors)} tensors: as many averages, please")
    for got, right in zip(found, wanted, strict=True):
        if tuple(got.shape) != tuple(right.shape):
            raise Wrong(f"a tensor of shape {list(right.shape)} came back as {list(got.shape)}")
        if not torch.allclose(got, right, atol=1e-5):
            raise Wrong(f"the tensors on rank {learner.rank} are not the averages over all ranks")
    if not calls:
        raise Wrong("no all-reduce of Horovod was seen: call it by its module, hvd.allreduce(…)")
    if len(calls) != 1:
        raise Wrong(f"{len(calls)} all-reduces for {len(tensors)} tensors: one is enough")
