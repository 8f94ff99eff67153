"""The capstone's images, on a simulated slow disk that notes what was read and when."""

from __future__ import annotations

import functools
import json
import os
import secrets
import tempfile
import time
import weakref
from collections.abc import Iterable
from contextlib import suppress
from pathlib import Path
from typing import Any, NamedTuple

from rankroom.course.data import digits
from rankroom.reporting.spans import span

SECONDS = 0.001  # per image
NOTES_VARIABLE = "RANKROOM_COURSE_NOTES"  # the folder where scripts leave notes for an exercise
_newest: weakref.ref[Any] | None = None  # the newest network


class Read(NamedTuple):
    """Images that were read together: begin and end (monotonic s), their numbers, and the sum of
    the newest network's weights at that time."""

    begin: float
    end: float
    numbers: list[int]
    weights: float


class SlowImages:
    """The digits; `part` is "train" or "test". `images[numbers]` are pictures and labels as
    tensors, and `images[number]` is one of each; both take SECONDS per image."""

    def __init__(self, part: str = "train") -> None:
        import torch

        self._pictures, self._labels = map(torch.from_numpy, getattr(digits(), part))
        self._reads: list[Read] = []
        self._notes = _notes()
        # A DataLoader's workers are other processes, each with a copy of this object.
        self._process = os.getpid()
        self._by_workers = Path(tempfile.gettempdir(), f"rankroom-reads-{secrets.token_hex(16)}")
        weakref.finalize(self, _remove, self._by_workers, self._process)

    @property
    def reads(self) -> list[Read]:
        """All reads so far, in this process and in a DataLoader's workers, ordered by begin."""
        found = list(self._reads)
        with suppress(FileNotFoundError):
            for line in self._by_workers.read_text().splitlines():
                with suppress(ValueError):  # cut off when its worker was killed
                    found.append(Read(*json.loads(line)))
        return sorted(found, key=lambda read: read.begin)

    def __len__(self) -> int:
        return len(self._labels)

    def __getitem__(self, numbers: int | Iterable[int]) -> tuple[Any, Any]:
        # NumPy's and PyTorch's integers are no int.
        is_one = hasattr(numbers, "__index__") and not getattr(numbers, "shape", ())
        several: Any = [numbers] if is_one else numbers
        chosen = [int(each) for each in several]
        if any(not 0 <= each < len(self) for each in chosen):
            raise IndexError(f"there are images 0 to {len(self) - 1}")
        begin, weights = time.monotonic(), _sum_of_weights()
        with span("read", images=len(chosen)):
            time.sleep(SECONDS * len(chosen))
        read = Read(begin, time.monotonic(), chosen, weights)
        if os.getpid() == self._process:
            self._reads.append(read)
        else:
            with self._by_workers.open("a") as file:
                file.write(json.dumps(read) + "\n")
        if self._notes:
            _note(self._notes, images=len(chosen))
        found = self._pictures[chosen], self._labels[chosen]
        return (found[0][0], found[1][0]) if is_one else found


def network(seed: int | None = None) -> Any:
    """Return a small network for the digits, with weights that differ on each rank and at each
    call, or with those of `seed`. Torch's random state stays as it was."""
    global _newest
    import torch

    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(secrets.randbelow(1 << 31) if seed is None else seed)
        hidden, out = torch.nn.Linear(64, 128), torch.nn.Linear(128, 10)
        made = torch.nn.Sequential(hidden, torch.nn.ReLU(), out)
    _newest = weakref.ref(made)
    return made


def _sum_of_weights() -> float:
    model = _newest() if _newest is not None else None
    return sum(float(each.detach().double().sum()) for each in model.parameters()) if model else 0.0


@functools.cache
def _notes() -> Path | None:
    """Return the file in which this process notes its reads and saves, and note saves from now on;
    None if no exercise started the process."""
    import torch

    if NOTES_VARIABLE not in os.environ:
        return None
    path = Path(os.environ[NOTES_VARIABLE], f"{os.getpid()}.jsonl")
    save = torch.save

    @functools.wraps(save)
    def noted(*args: Any, **kwargs: Any) -> None:
        _note(path, saves=1)
        save(*args, **kwargs)

    torch.save = noted
    return path


def _remove(path: Path, owner: int) -> None:
    if os.getpid() == owner:  # not when a worker's copy is finalized
        path.unlink(missing_ok=True)


def _note(path: Path, **what: int) -> None:
    with path.open("a") as file:
        file.write(json.dumps({"rank": int(os.environ.get("RANK", "0")), **what}) + "\n")
