"""How far a reader has come: a small file of theirs, which a teacher can collect."""

from __future__ import annotations

import contextlib
import getpass
import json
import os
import time
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path

from rankroom import config
from rankroom.system.files import write_atomically


@dataclass
class Progress:
    """The exercises tried, with how often, and those passed, with the day; the lesson that was
    begun last, and the exercise tried last, with when (epoch s). -1 and empty: none yet."""

    user: str = ""
    tries: dict[str, int] = field(default_factory=dict)
    passed: dict[str, str] = field(default_factory=dict)
    lesson: int = -1
    last: str = ""
    last_passed: bool = False
    last_at: float = 0.0


def file() -> Path:
    """Where the reader's own progress is kept."""
    return config.home() / "course.json"


def read(path: Path | None = None) -> Progress:
    """The progress in a file; none in one that cannot be read, or holds something else."""
    try:
        return _load(path or file())
    except OSError:
        return Progress()


def _load(path: Path) -> Progress:
    """The progress in a file; none in one that is not there, or holds something else.

    Raises OSError where that cannot be told: what is there must not be replaced then.
    """
    try:
        data = json.loads(path.read_text("utf-8"))
        return Progress(
            str(data["user"]),
            {str(name): int(count) for name, count in data["tries"].items()},
            {str(name): str(day) for name, day in data["passed"].items()},
            # Earlier versions had none of these.
            int(data.get("lesson", -1)),
            str(data.get("last", "")),
            data.get("last_passed") is True,
            float(data.get("last_at", 0.0)),
        )
    except (FileNotFoundError, ValueError, KeyError, TypeError, AttributeError):
        return Progress()


def note(exercise: str, passed: bool) -> None:
    """Remember a try."""
    with _changed() as now:
        now.last, now.last_passed, now.last_at = exercise, passed, time.time()
        _count(now, {exercise: passed})


def note_all(passed: Mapping[str, bool]) -> None:
    """Remember a try of each question of a quiz, and which were right."""
    with _changed() as now:
        _count(now, passed)


def begin(lesson: int) -> None:
    """Remember the lesson that the reader is at."""
    with _changed() as now:
        now.lesson = lesson


def _count(now: Progress, passed: Mapping[str, bool]) -> None:
    for exercise, good in passed.items():
        now.tries[exercise] = now.tries.get(exercise, 0) + 1
        if good:
            now.passed.setdefault(exercise, time.strftime("%Y-%m-%d"))


@contextlib.contextmanager
def _changed() -> Iterator[Progress]:
    """The progress, to be changed. A disk that is full or away must not spoil a lesson."""
    path = file()
    try:
        now = _load(path)
    except OSError:
        yield Progress()  # of no use to anybody
        return
    before = json.dumps(now.__dict__)
    yield now
    if json.dumps(now.__dict__) == before:
        return
    now.user = now.user or _user()
    with contextlib.suppress(OSError):
        config.private(path.parent)
        write_atomically(path, json.dumps(now.__dict__, indent=1), mode=0o644)


def _user() -> str:
    with contextlib.suppress(OSError, KeyError):  # an account without a name
        return getpass.getuser()
    return str(os.getuid())


def collect(folder: Path) -> list[Progress]:
    """The progress of everybody whose file is in `folder`, also in folders below it."""
    found = [read(path) for path in sorted(folder.rglob("*.json"))]
    return [each for each in found if each.user]
