"""What Python tells its auditors of while an answer is tried: changes of files, and programs."""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import cache
from pathlib import Path
from typing import Any

Hear = Callable[[str, tuple[Any, ...]], None]
_heard_by: list[Hear] = []


@contextmanager
def heard_by(hear: Hear) -> Iterator[None]:
    """Call `hear(event, arguments)` meanwhile, before each thing happens."""
    _audit()
    _heard_by.append(hear)
    try:
        yield
    finally:
        _heard_by.remove(hear)


@contextmanager
def taken_away(path: Path, counts: Callable[[], bool] = lambda: True) -> Iterator[list[str]]:
    """Notes when a file is removed, or gets another name, while it `counts()`: for a moment, at
    least, there is none of its name."""
    found: list[str] = []

    def hear(event: str, arguments: tuple[Any, ...]) -> None:
        if event in ("os.remove", "os.rename") and str(arguments[0]) == str(path) and counts():
            found.append(event)

    with heard_by(hear):
        yield found


@cache
def _audit() -> None:
    """Once, as Python keeps its auditors for good."""

    def tell(event: str, arguments: tuple[Any, ...]) -> None:
        for hear in list(_heard_by):
            hear(event, arguments)

    sys.addaudithook(tell)


TAKEN_AWAY = (
    "the old checkpoint is taken away before the new one has its name: a job that is ended in "
    "between leaves none. `replace` does both in one step"
)
