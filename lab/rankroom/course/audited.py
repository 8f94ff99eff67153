"""What Python tells its auditors of while an answer is tried: changes of files, and programs."""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any

from rankroom.course.exercise import Wrong

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


@dataclass
class Replaced:
    """What was seen of how a checkpoint took the place of the one before."""

    was_taken_away: bool = False  # for a moment, at least, there was none of its name
    was_elsewhere: bool = False  # the new one came from another folder
    was_overwritten: bool = False  # the old file has the new one's bytes, or some of them

    def demand(self) -> None:
        """Raise Wrong where a job that is ended in the middle of it would leave none, or half."""
        if self.was_taken_away:
            raise Wrong(TAKEN_AWAY)
        if self.was_overwritten:
            raise Wrong(OVERWRITTEN)
        if self.was_elsewhere:
            raise Wrong(FROM_ELSEWHERE)


@contextmanager
def replacing(path: Path, counts: Callable[[], bool] = lambda: True) -> Iterator[Replaced]:
    """Watches how the file at `path` is replaced. Taking it away is noted while it `counts()`: a
    training may remove it at its end."""
    found = Replaced()

    def hear(event: str, arguments: tuple[Any, ...]) -> None:
        if event in ("os.remove", "os.rename") and str(arguments[0]) == str(path) and counts():
            found.was_taken_away = True
        if event == "os.rename" and str(arguments[1]) == str(path):
            found.was_elsewhere |= Path(str(arguments[0])).resolve().parent != path.resolve().parent

    with path.open("rb") as witness:  # the same file: what is written into it shows here
        before = witness.read()
        with heard_by(hear):
            yield found
        witness.seek(0)
        found.was_overwritten = witness.read() != before


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
OVERWRITTEN = (
    "the next checkpoint was written over the one before, into the same file: a job that reads it "
    "meanwhile, or after a kill, finds half of one. Write to another name, and rename it then"
)
FROM_ELSEWHERE = (
    "the new checkpoint was made in another folder: on most nodes /tmp is a disk of its own, from "
    "which nothing is renamed in one step. Make it beside the checkpoint"
)
