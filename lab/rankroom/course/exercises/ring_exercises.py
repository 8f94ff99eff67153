"""Ring all-reduce, step by step."""

from __future__ import annotations

from typing import Any

from rankroom.course.exercise import Learner, Wrong, exercise


@exercise("ring.1", answer="neighbours", ranks=2)
def neighbours(learner: Learner) -> None:
    """Check which rank a rank sends to, and which it receives from, in a ring of any size."""
    ask = learner.function("neighbours")
    for size in (2, learner.size, learner.chance.randrange(5, 40)):
        for rank in range(size):
            found = ask(rank, size)
            wanted = ((rank + 1) % size, (rank - 1) % size)
            if not isinstance(found, (tuple, list)) or tuple(found) != wanted:
                raise Wrong(
                    f"in a ring of {size}, rank {rank} sends to rank {wanted[0]} and receives from "
                    f"rank {wanted[1]}: you have {found!r}"
                )


@exercise("ring.2", answer="reduce_scatter", ranks=2)
def reduce_scatter(learner: Learner) -> None:
    """Check that after the first half, rank r holds the sum of chunk (r + 1) % size."""
    import torch

    half = learner.function("reduce_scatter")
    rows = _rows(learner, 3 * learner.size)
    message = rows[learner.rank].clone()
    chunks = list(message.chunk(learner.size))
    _without_library_collectives(lambda: half(chunks), "reduce_scatter")
    own = (learner.rank + 1) % learner.size
    wanted = rows.sum(0).chunk(learner.size)[own]
    if len(chunks) != learner.size:
        raise Wrong(f"there are {len(chunks)} chunks left of {learner.size}: change them in place")
    if not torch.equal(chunks[own], wanted):
        mine = rows[learner.rank].chunk(learner.size)[own]
        hint = " (it is still what it was)" if torch.equal(chunks[own], mine) else ""
        raise Wrong(
            f"chunk {own} of rank {learner.rank} should be {wanted.tolist()}, the sum of all "
            f"ranks, and is {chunks[own].tolist()}{hint}"
        )
    if not torch.equal(message.chunk(learner.size)[own], wanted):
        raise Wrong(CHUNK_REPLACED.format(own))


@exercise("ring.3", answer="all_gather", ranks=2)
def all_gather(learner: Learner) -> None:
    """Check that after the second half, all ranks hold all chunks."""
    import torch

    half = learner.function("all_gather")
    rows = _rows(learner, 2 * learner.size)
    whole = rows.sum(0)
    own = (learner.rank + 1) % learner.size
    message = torch.full_like(whole, -1)
    chunks = list(message.chunk(learner.size))
    chunks[own].copy_(whole.chunk(learner.size)[own])
    _without_library_collectives(lambda: half(chunks), "all_gather")
    missing = [
        place
        for place, wanted in enumerate(whole.chunk(learner.size))
        if not torch.equal(chunks[place], wanted)
    ]
    if missing:
        raise Wrong(
            f"rank {learner.rank} began with the finished chunk {own}, and does not have chunk "
            f"{', '.join(map(str, missing))} of the others at the end"
        )
    kept = message.chunk(learner.size)
    for place, wanted in enumerate(whole.chunk(learner.size)):
        if not torch.equal(kept[place], wanted):
            raise Wrong(CHUNK_REPLACED.format(place))


@exercise("ring.4", answer="bytes_sent", ranks=2)
def bytes_sent(learner: Learner) -> None:
    """Check what a rank sends in a ring all-reduce: counted in the reader's own ring, then computed
    for others."""
    ask = learner.function("bytes_sent")
    length = 4 * learner.size * learner.chance.randrange(8, 1000)
    counted = _sent_by(learner, length)
    found = ask(length, learner.size)
    # A send function that was imported by name is not counted.
    if counted and (not isinstance(found, (int, float)) or abs(found - counted) > 1):
        raise Wrong(
            f"of a message of {length} bytes, rank {learner.rank} has sent {counted} bytes in your "
            f"ring, and bytes_sent predicts {found!r}"
        )
    for _ in range(4):
        ranks = learner.chance.randrange(3, 200)
        length = ranks * learner.chance.randrange(8, 10_000)
        wanted = 2 * (ranks - 1) * length / ranks
        found = ask(length, ranks)
        if not isinstance(found, (int, float)) or abs(found - wanted) > 1:
            raise Wrong(
                f"for {length} bytes on {ranks} ranks each sends {wanted:.0f} bytes, and "
                f"bytes_sent gives {found!r}"
            )


def _sent_by(learner: Learner, length: int) -> int:
    """Return the bytes that this rank sends while the reader's two halves reduce `length` bytes."""
    import torch
    import torch.distributed as dist

    if not {"reduce_scatter", "all_gather"} <= set(learner.variables):
        raise Wrong("solve ring.2 and ring.3 first: what is counted goes through your own ring")
    chunks = list(torch.ones(length // 4).chunk(learner.size))
    sent: list[int] = []
    within: list[str] = []  # send and isend may call each other: only the outer call counts
    own = {name: getattr(dist, name) for name in ("isend", "send")}
    # batch_isend_irecv compares its operations with those of the second module.
    places = dist, dist.distributed_c10d

    def counted(name: str) -> Any:
        def call(tensor: Any, *args: Any, **kwargs: Any) -> Any:
            if not within:
                sent.append(tensor.nbytes)
            within.append(name)
            try:
                return own[name](tensor, *args, **kwargs)
            finally:
                within.pop()

        return call

    try:
        for name in own:
            call = counted(name)
            for place in places:
                setattr(place, name, call)
        learner.function("reduce_scatter")(chunks)
        learner.function("all_gather")(chunks)
    finally:
        for name, call in own.items():
            for place in places:
                setattr(place, name, call)
    return sum(sent)


def _rows(learner: Learner, length: int) -> Any:
    import torch

    return torch.tensor(
        [[learner.chance.randrange(1000) for _ in range(length)] for _ in range(learner.size)]
    )


def _without_library_collectives(call: Any, name: str) -> None:
    """Call the reader's half of the ring while the library's own collectives raise Wrong."""
    import torch.distributed as dist

    forbidden = (
        "all_reduce", "reduce", "reduce_scatter", "reduce_scatter_tensor", "broadcast", "scatter",
        "gather", "all_gather", "all_gather_into_tensor", "all_gather_object", "all_to_all",
        "all_to_all_single",
    )  # fmt: skip
    kept = {each: getattr(dist, each) for each in forbidden}

    def refuse(*args: Any, **kwargs: Any) -> None:
        raise Wrong(f"{name} should use only send and receive, not the library's own collectives")

    try:
        for each in forbidden:
            setattr(dist, each, refuse)
        call()
    finally:
        for each, own in kept.items():
            setattr(dist, each, own)


CHUNK_REPLACED = "chunks[{}] was replaced by another tensor: change it in place, with += or copy_"
