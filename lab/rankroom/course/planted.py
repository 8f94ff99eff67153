"""Faults that lessons plant for the reader to find."""

from __future__ import annotations

import random
import time
from collections.abc import Iterable, Iterator
from typing import TypeVar

T = TypeVar("T")
_slow: list[int] = []


def loader(
    batches: Iterable[T], rank: int, size: int, secret: int, seconds: float = 0.02
) -> Iterator[T]:
    """Yield the batches; on one rank, which `secret` determines, delay each by `seconds`."""
    chosen = random.Random(secret).randrange(size)
    _slow[:] = [chosen]
    for batch in batches:
        if rank == chosen:
            time.sleep(seconds)
        yield batch


def planted() -> int | None:
    """Return the rank that was slowed down, for the exercise that asks for it; None if none was."""
    return _slow[0] if _slow else None
