"""Python's audit events while an answer is tried: changes of files, and programs started."""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any

from rankroom.course.exercise import Wrong

AuditCallback = Callable[[str, tuple[Any, ...]], None]
_callbacks: list[AuditCallback] = []


@contextmanager
def on_audit_events(callback: AuditCallback) -> Iterator[None]:
    """Within the block, call `callback(event, arguments)` before each audit event happens."""
    _audit()
    _callbacks.append(callback)
    try:
        yield
    finally:
        _callbacks.remove(callback)


@dataclass
class Replacement:
    """How a new checkpoint took the place of the old one, as far as was observed."""

    was_taken_away: bool = False  # no file had its name, at least for a moment
    was_elsewhere: bool = False  # the new file came from another folder
    was_overwritten: bool = False  # the new checkpoint was written into the old file

    def demand(self) -> None:
        """Raise Wrong if a job killed during the replacement would leave half a checkpoint, or
        none."""
        if self.was_taken_away:
            raise Wrong(TAKEN_AWAY)
        if self.was_overwritten:
            raise Wrong(OVERWRITTEN)
        if self.was_elsewhere:
            raise Wrong(FROM_ELSEWHERE)


@contextmanager
def watch_replacement(
    path: Path, counts: Callable[[], bool] = lambda: True
) -> Iterator[Replacement]:
    """Watch how the file at `path` is replaced within the block. Its removal is noted only while
    `counts()` is true: training may remove it at the end."""
    found = Replacement()

    def hear(event: str, arguments: tuple[Any, ...]) -> None:
        if event in ("os.remove", "os.rename") and str(arguments[0]) == str(path) and counts():
            found.was_taken_away = True
        if event == "os.rename" and str(arguments[1]) == str(path):
            found.was_elsewhere |= Path(str(arguments[0])).resolve().parent != path.resolve().parent

    with path.open("rb") as witness:  # the old file, in which an overwrite shows
        before = witness.read()
        with on_audit_events(hear):
            yield found
        witness.seek(0)
        found.was_overwritten = witness.read() != before


@cache
def _audit() -> None:
    """Add the audit hook, once: Python cannot remove it again."""

    def tell(event: str, arguments: tuple[Any, ...]) -> None:
        for callback in list(_callbacks):
            callback(event, arguments)

    sys.addaudithook(tell)


TAKEN_AWAY = (
    "the old checkpoint is taken away before the new one has its name: a job that is ended in "
    "between leaves none. `replace` does both in one step"
)
OVERWRITTEN = (
    "the next checkpoint was written over the one before, into the same file: a job that reads it "
    "meanwhile, or after a kill, finds half a checkpoint. Write to another name, then rename it"
)
FROM_ELSEWHERE = (
    "the new checkpoint was made in another folder: on most nodes /tmp is a disk of its own, from "
    "which nothing is renamed in one step. Make it beside the checkpoint"
)
