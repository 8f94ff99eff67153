"""How far a reader has come: a small file of theirs, which a teacher can collect."""

from __future__ import annotations

import contextlib
import getpass
import json
import os
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from rankroom import config
from rankroom.errors import with_remedy
from rankroom.system.files import write_atomically

MOST_TRIES = 10**9  # of an exercise, in a file that somebody else may have written


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
        return load(path or file())
    except (OSError, ValueError):
        return Progress()


def load(path: Path) -> Progress:
    """The progress in a file; none where there is no file.

    Raises OSError where that cannot be told: what is there must not be replaced then. Raises
    ValueError for a file that holds something else.
    """
    try:
        data = json.loads(path.read_text("utf-8"))
        return Progress(
            str(data["user"]),
            {str(name): _tries(count) for name, count in data["tries"].items()},
            {str(name): str(day) for name, day in data["passed"].items()},
            # Earlier versions had none of these.
            int(data.get("lesson", -1)),
            str(data.get("last", "")),
            data.get("last_passed") is True,
            float(data.get("last_at", 0.0)),
        )
    except FileNotFoundError:
        return Progress()
    except (KeyError, TypeError, AttributeError, OverflowError, RecursionError) as error:
        raise ValueError(f"{type(error).__name__}: {error}") from None


def _tries(count: Any) -> int:
    if not 0 <= int(count) < MOST_TRIES:
        raise ValueError(f"{count} tries")
    return int(count)


def note(exercise: str, passed: bool) -> None:
    """Remember a try."""

    def change(now: Progress) -> None:
        now.last, now.last_passed, now.last_at = exercise, passed, time.time()
        _count(now, {exercise: passed})

    _change(change)


def note_all(passed: Mapping[str, bool]) -> str:
    """Remember a try of each question of a quiz, and which were right; why that cannot be kept, if
    so."""
    return _change(lambda now: _count(now, passed))


def begin(lesson: int) -> None:
    """Remember the lesson that the reader is at."""

    def change(now: Progress) -> None:
        now.lesson = lesson

    _change(change)


def _count(now: Progress, passed: Mapping[str, bool]) -> None:
    for exercise, good in passed.items():
        now.tries[exercise] = now.tries.get(exercise, 0) + 1
        if good:
            now.passed.setdefault(exercise, time.strftime("%Y-%m-%d"))


def _change(change: Callable[[Progress], None]) -> str:
    """Change the progress; why that cannot be kept, if so. A disk that is full or away must not
    spoil a lesson."""
    path = file()
    try:
        now = Progress()
        with contextlib.suppress(ValueError):  # a spoiled file is begun again
            now = load(path)
        before = json.dumps(now.__dict__)
        change(now)
        if json.dumps(now.__dict__) != before:
            now.user = now.user or _user()
            config.private(path.parent)
            write_atomically(path, json.dumps(now.__dict__, indent=1), mode=0o644)
    except OSError as error:
        return f"{path}: {with_remedy(error)}"
    return ""


def _user() -> str:
    with contextlib.suppress(OSError, KeyError):  # an account without a name
        return getpass.getuser()
    return str(os.getuid())


def collect(folder: Path) -> tuple[list[Progress], dict[Path, str]]:
    """The progress of everybody whose file is in `folder`, also in folders below it; and files that
    are left out, each with the reason."""
    found, left_out = [], {}
    for path in sorted(folder.rglob("*.json")):
        try:
            one = load(path)
        except OSError as error:
            left_out[path] = with_remedy(error)
        except ValueError:
            left_out[path] = NO_PROGRESS
        else:
            if one.user:
                found.append(one)
            else:
                left_out[path] = "it has no user name"
    return found, left_out


NO_PROGRESS = "it holds something else than progress"
