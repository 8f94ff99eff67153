"""Resuming interrupted training: what belongs in a checkpoint, and how to write it."""

from __future__ import annotations

import io
import tempfile
from pathlib import Path
from typing import Any

from rankroom.course.audited import watch_replacement
from rankroom.course.exercise import Learner, Wrong, exercise


@exercise("checkpoint.1", answer="pack", ranks=1)
def pack(learner: Learner) -> None:
    """Check that a checkpoint holds all that training needs to resume without a difference."""
    import torch

    pack, unpack = learner.function("pack"), learner.function("unpack")
    old, optimizer = _training(learner.seed)
    _steps(old, optimizer, 3)
    epoch = learner.chance.randrange(2, 9)
    kept = io.BytesIO()
    torch.save(pack(old, optimizer, epoch), kept)
    _steps(old, optimizer, 2)
    begun, _ = _training(learner.seed + 1)
    fresh, other = _training(learner.seed + 1)
    torch.manual_seed(learner.seed + 2)
    kept.seek(0)
    found = unpack(torch.load(kept, weights_only=False), fresh, other)
    if found != epoch:
        raise Wrong(f"the checkpoint was written after epoch {epoch}: unpack returns {found!r}")
    if _same(fresh, begun):
        raise Wrong("the model has the weights it was made with, and not those of the checkpoint")
    _steps(fresh, other, 2)
    if not _same(fresh, old):
        raise Wrong(
            "two steps after resuming, the weights differ from those of uninterrupted training: "
            "the optimizer's state (momentum) or that of torch's random numbers (dropout) is "
            "missing"
        )


@exercise("checkpoint.2", answer="write", ranks=1)
def write(learner: Learner) -> None:
    """Check that there is a complete checkpoint whenever the job may be killed."""
    import torch

    write = learner.function("write")
    before = torch.save
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "checkpoint.pt"
        write({"epoch": 1}, path)
        if not path.exists():
            raise Wrong(f"there is no {path.name} after the first write")
        torch.save = _cut_off
        try:
            write({"epoch": 2}, path)
        except _Ended:
            pass
        else:
            raise Wrong(
                "a job that is killed while it writes must end: call torch.save by that name, and "
                "do not catch its errors"
            )
        finally:
            torch.save = before
        try:
            found = torch.load(path)
        except Exception:
            raise Wrong(
                "the job was killed while it wrote the second checkpoint, and now there is none: "
                "the first was overwritten. Write to another name, then rename it"
            ) from None
        if found != {"epoch": 1}:
            raise Wrong(f"the first checkpoint should be there still, and there is {found}")
        with watch_replacement(path) as replaced:
            write({"epoch": 3}, path)
        if torch.load(path) != {"epoch": 3}:
            raise Wrong(
                "after a write that was cut off, the next one does not replace the checkpoint"
            )
        replaced.demand()


@exercise("checkpoint.3", answer="rest", ranks=1)
def rest(learner: Learner) -> None:
    """Check that the rest of an epoch is sharded over a different number of ranks."""
    rest = learner.function("rest")
    for _ in range(3):
        done, size = learner.chance.randrange(10, 40), learner.chance.randrange(2, 7)
        # What is left is never a multiple of the number of ranks.
        left = size * learner.chance.randrange(5, 12) + learner.chance.randrange(1, size)
        order = learner.chance.sample(range(1000), done + left)
        parts = [[int(i) for i in rest(list(order), done, rank, size)] for rank in range(size)]
        together = [each for part in parts for each in part]
        if len({len(part) for part in parts}) > 1:
            raise Wrong(
                f"{len(order) - done} images on {size} ranks: they get "
                f"{', '.join(str(len(part)) for part in parts)}, and should get equally many"
            )
        if again := set(together) & set(order[:done]):
            raise Wrong(f"{len(again)} of the images were seen before the break")
        if len(set(together)) < len(together):
            raise Wrong("some images are given to two ranks")
        if len(together) < (len(order) - done) // size * size:
            raise Wrong(f"of {len(order) - done} images, {len(together)} are given out")


class _Ended(BaseException):
    """Simulates the end of the job; `except Exception` does not catch it."""


def _cut_off(state: Any, file: Any, *args: Any, **kwargs: Any) -> None:
    """Stand in for torch.save: write half a file, then end the job."""
    if hasattr(file, "write"):
        file.write(b"half")
        file.flush()
    else:
        Path(file).write_bytes(b"half")
    raise _Ended


def _training(seed: int) -> tuple[Any, Any]:
    import torch

    torch.manual_seed(seed)
    layers = torch.nn.Linear(4, 8), torch.nn.Dropout(0.5), torch.nn.Linear(8, 1)
    model = torch.nn.Sequential(*layers)
    return model, torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9)


def _steps(model: Any, optimizer: Any, count: int) -> None:
    import torch

    for number in range(count):
        optimizer.zero_grad()
        model(torch.full((6, 4), 0.1 * (number + 1))).square().sum().backward()
        optimizer.step()


def _same(one: Any, other: Any) -> bool:
    import torch

    return all(torch.equal(a, b) for a, b in zip(one.parameters(), other.parameters(), strict=True))
