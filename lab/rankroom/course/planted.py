"""Troubles that lessons plant, to be found."""

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
    """The batches; on one rank, which `secret` decides, each takes `seconds` to come."""
    chosen = random.Random(secret).randrange(size)
    _slow[:] = [chosen]
    for batch in batches:
        if rank == chosen:
            time.sleep(seconds)
        yield batch


def planted() -> int | None:
    """The rank that was slow, if there was one: for the exercise that asks who it was."""
    return _slow[0] if _slow else None
