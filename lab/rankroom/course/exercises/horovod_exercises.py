"""The steps of data-parallel training with Horovod and PyTorch."""

from __future__ import annotations

import io
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from functools import partial
from itertools import pairwise
from pathlib import Path
from typing import Any

from rankroom import config
from rankroom.course.exercise import Learner, Wrong, exercise
from rankroom.text.rank_ranges import count_ranks

HALF_SAVE_PAUSE_S = 0.5


@exercise("horovod.1", answer="device_of", ranks=1)
def pin(learner: Learner) -> None:
    """Check the device chosen for a rank, on any number of nodes, and without GPUs."""
    choose = learner.function("device_of")
    gpus = learner.chance.choice([2, 4, 6, 8])
    for each in (gpus, gpus - 1):  # ranks per node: a job need not use all GPUs
        for rank in range(3 * each):
            wanted = f"cuda:{rank % each}"
            found = str(choose(rank, rank % each, gpus))
            if found != wanted:
                raise Wrong(
                    f"with {gpus} GPUs and {count_ranks(each)} on each node, rank {rank} is local "
                    f"rank {rank % each} of node {rank // each} and uses {wanted}: you have {found}"
                )
    if (found := str(choose(5, 5, 0))) != "cpu":
        raise Wrong(f"without GPUs every rank computes on the cpu: you have {found}")


@exercise("horovod.2", answer="my_part", ranks=1)
def shard(learner: Learner) -> None:
    """Check the ranks' shards of an epoch: disjoint, equal in size, and reshuffled each epoch."""
    part = learner.function("my_part")
    own = _try_parts(part, learner.size, learner.chance.randrange(20, 40))[learner.rank]
    _try_parts(part, another_size(learner.size), learner.chance.randrange(20, 40))
    hvd = sys.modules.get("horovod.torch")
    if hvd is not None and hvd.is_initialized():
        demand_disjoint(hvd.allgather_object(own))


def _try_parts(part: Any, size: int, each: int) -> list[list[int]]:
    """Return the shards of epoch 1 by rank, all computed in this process. Raises Wrong."""
    count = size * each + max(0, size - 1)
    epochs = []
    for epoch in (0, 1):
        parts = [[int(i) for i in part(count, epoch, rank, size)] for rank in range(size)]
        together = [each for indices in parts for each in indices]
        if any(not 0 <= each < count for each in together):
            raise Wrong(f"there are images 0 to {count - 1}, but a rank's part has others")
        if len(set(together)) < len(together):
            raise Wrong(f"epoch {epoch}: some image is in the parts of two ranks")
        lengths = [len(indices) for indices in parts]
        if len(set(lengths)) > 1:
            raise Wrong(
                f"of {count} images the ranks get {lengths}: a rank that has more steps than the "
                "others waits for them forever"
            )
        if lengths[0] < count // size:
            raise Wrong(f"each rank could have {count // size} images, and has {lengths[0]}")
        epochs.append(parts)
    if epochs[0][0] == epochs[1][0]:
        raise Wrong("epoch 1 has the same images in the same order as epoch 0: shuffle by `epoch`")
    for epoch, parts in enumerate(epochs):
        if not _is_shuffled(parts[0], count):
            raise Wrong(
                f"epoch {epoch} of rank 0 is {parts[0][:6]}, …: the images are in their original "
                "order, perhaps rotated; shuffle them with `epoch` as the seed"
            )
    again = [int(i) for i in part(count, 1, 0, size)]
    if again != epochs[1][0]:
        raise Wrong(
            "called twice for the same epoch, my_part returns two different orders: the ranks "
            "would not agree"
        )
    return epochs[1]


def another_size(size: int) -> int:
    """Return another number of ranks, to catch an answer that works only for the actual one."""
    return 2 if size != 2 else 3


def demand_disjoint(parts: list[list[int]]) -> None:
    """Raise Wrong if shards that the ranks computed, each its own, overlap. Shards computed in a
    single process may be disjoint although those of different processes are not."""
    together = [each for part in parts for each in part]
    if len(set(together)) < len(together):
        raise Wrong(
            "where each rank asks for its own part, some numbers are in the parts of two ranks: "
            "what you shuffle by has to be the same on all ranks"
        )


def _is_shuffled(indices: list[int], count: int) -> bool:
    """Return whether no difference between neighboring indices makes up more than half of all; in a
    list that was only rotated, all differences are the same."""
    steps = [(b - a) % count for a, b in pairwise(indices)]
    return max(map(steps.count, steps)) <= len(steps) / 2


@exercise("horovod.3", answer="accuracy")
def metric(learner: Learner) -> None:
    """Check the accuracy over the test images of all ranks."""
    ask = learner.function("accuracy")
    counts = [learner.chance.randrange(20, 30) * (rank + 1) for rank in range(learner.size)]
    rights = [learner.chance.randrange(1, count) for count in counts]
    wanted = sum(rights) / sum(counts)
    found = ask(rights[learner.rank], counts[learner.rank])
    own = rights[learner.rank] / counts[learner.rank]
    if not isinstance(found, float) or abs(found - wanted) > 1e-5:
        hint = ": that is this rank's own" if found == own else ""
        raise Wrong(
            f"{sum(rights)} of {sum(counts)} images were right, which is {wanted:.4f}: you have "
            f"{found!r} on rank {learner.rank}{hint}"
        )


@exercise("horovod.4", answer="save")
def checkpoint(learner: Learner) -> None:
    """Check that one rank writes the checkpoint, and all ranks can read it when `save` returns."""
    import horovod.torch as hvd
    import torch

    save = learner.function("save")
    folder = config.home() / "course-checks"  # visible on all nodes, unlike /tmp
    config.make_private(folder)
    path = folder / f"model-{learner.seed}.pt"
    if learner.rank == 0:
        for old in folder.glob("model-*.pt"):  # left by earlier checks
            old.unlink(missing_ok=True)
    writers: list[int] = []
    before = torch.save

    def watched(obj: object, f: Any, *args: Any, **kwargs: Any) -> None:
        writers.append(learner.rank)
        content = io.BytesIO()
        before(obj, content, *args, **kwargs)
        _write_slowly(content.getvalue(), f)

    torch.save = watched
    try:
        state = {"step": learner.seed, "weight": torch.ones(3) * learner.seed}
        with one_node_per_rank(hvd, learner):
            save(state, path)
        there = path.exists()
        whole = there and _is_whole(path)
    finally:
        torch.save = before
    if writers and learner.rank != 0:
        raise Wrong(f"rank {learner.rank} writes the checkpoint as well: only rank 0 should{NODES}")
    if learner.rank == 0 and not writers:
        raise Wrong("rank 0 does not write the checkpoint: use torch.save(state, path)")
    if not there:
        raise Wrong(NOT_THERE.format(rank=learner.rank))
    if hvd.is_initialized():
        hvd.barrier()  # a rank that wrote the file as well has raised Wrong by now
    _demand_saved(path, state)
    if not whole:
        raise Wrong(NOT_THERE.format(rank=learner.rank))


@contextmanager
def one_node_per_rank(hvd: Any, learner: Learner) -> Iterator[None]:
    """Within the block, make Horovod report that each rank is on a node of its own: an answer that
    saves on local rank 0 works on one machine only."""
    says = {
        "local_rank": 0, "local_size": 1, "cross_rank": learner.rank, "cross_size": learner.size,
    }  # fmt: skip
    kept = {name: getattr(hvd, name) for name in says}
    try:
        for name, number in says.items():
            setattr(hvd, name, partial(int, number))
        yield
    finally:
        for name, own in kept.items():
            setattr(hvd, name, own)


def _write_slowly(content: bytes, file: Any) -> None:
    """Write in two halves with a pause, to expose a rank that does not wait for the whole file."""
    if not hasattr(file, "write"):
        with Path(file).open("wb") as opened:
            _write_slowly(content, opened)
        return
    half = len(content) // 2
    file.write(content[:half])
    file.flush()
    time.sleep(HALF_SAVE_PAUSE_S)
    file.write(content[half:])


def _is_whole(path: Path) -> bool:
    import torch

    try:
        torch.load(path)
    except Exception:  # raised by torch, pickle or zipfile
        return False
    return True


def _demand_saved(path: Path, state: dict[str, Any]) -> None:
    """Raise Wrong unless the file holds the complete state."""
    import torch

    try:
        found = torch.load(path)
    except Exception as error:  # raised by torch, pickle or zipfile: the file may hold anything
        said = f"{type(error).__name__}: {error}".partition("\n")[0]
        raise Wrong(f"torch.load cannot read what you saved: {said}"[:300]) from None
    if not isinstance(found, dict) or set(found) != set(state):
        told = f"{sorted(map(str, found))}" if isinstance(found, dict) else type(found).__name__
        raise Wrong(f"the file should hold `state`, with {sorted(state)}, and holds {told}")
    if found["step"] != state["step"] or not torch.equal(found["weight"], state["weight"]):
        raise Wrong("the file holds other values than `state`: save the state as it is")


NODES = ", also where each rank has a node of its own and local_rank() is 0 on all of them"
NOT_THERE = (
    "when save returns on rank {rank}, the file is not there yet, or not all of it: let all ranks "
    "wait for rank 0 with hvd.barrier()"
)
