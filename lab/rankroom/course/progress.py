"""A reader's progress: a small file of their own, which a teacher can collect."""

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

MAX_TRIES = 10**9  # of an exercise: a limit, as others may have written the file


@dataclass
class Progress:
    """How often each exercise was tried, and the day on which it was passed; the lesson begun last;
    and the exercise tried last, with its result and time (epoch s). -1 and empty: none yet."""

    user: str = ""
    tries: dict[str, int] = field(default_factory=dict)
    passed: dict[str, str] = field(default_factory=dict)
    lesson: int = -1
    last: str = ""
    last_passed: bool = False
    last_at: float = 0.0


def file() -> Path:
    """Return the path of the reader's own progress file."""
    return config.home() / "course.json"


def read(path: Path | None = None) -> Progress:
    """Return the progress in a file; empty if it cannot be read or is not a progress file."""
    try:
        return load(path or file())
    except (OSError, ValueError):
        return Progress()


def load(path: Path) -> Progress:
    """Return the progress in a file; empty if there is no file.

    Raises OSError if the file cannot be read, and must therefore not be replaced. Raises ValueError
    if it holds something else.
    """
    try:
        data = json.loads(path.read_text("utf-8"))
        return Progress(
            str(data["user"]),
            {str(name): _tries(count) for name, count in data["tries"].items()},
            {str(name): str(day) for name, day in data["passed"].items()},
            # Files of earlier versions lack these.
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
    if not 0 <= int(count) < MAX_TRIES:
        raise ValueError(f"{count} tries")
    return int(count)


def note(exercise: str, passed: bool) -> None:
    """Record an attempt at an exercise."""

    def change(now: Progress) -> None:
        now.last, now.last_passed, now.last_at = exercise, passed, time.time()
        _count(now, {exercise: passed})

    _change(change)


def note_all(passed: Mapping[str, bool]) -> str:
    """Record an attempt at each question of a quiz, and which were right. Return why that could not
    be stored; empty if it was."""
    return _change(lambda now: _count(now, passed))


def begin(lesson: int) -> None:
    """Record the lesson that the reader has begun."""

    def change(now: Progress) -> None:
        now.lesson = lesson

    _change(change)


def _count(now: Progress, passed: Mapping[str, bool]) -> None:
    for exercise, good in passed.items():
        now.tries[exercise] = now.tries.get(exercise, 0) + 1
        if good:
            now.passed.setdefault(exercise, time.strftime("%Y-%m-%d"))


def _change(change: Callable[[Progress], None]) -> str:
    """Change the progress file. Return why that was not possible; empty if it was. A full or
    missing disk must not interrupt a lesson."""
    path = file()
    try:
        now = Progress()
        with contextlib.suppress(ValueError):  # a damaged file is started over
            now = load(path)
        before = json.dumps(now.__dict__)
        change(now)
        if json.dumps(now.__dict__) != before:
            now.user = now.user or _user()
            config.make_private(path.parent)
            write_atomically(path, json.dumps(now.__dict__, indent=1), mode=0o644)
    except OSError as error:
        return f"{path}: {with_remedy(error)}"
    return ""


def _user() -> str:
    with contextlib.suppress(OSError, KeyError):  # an account without a name
        return getpass.getuser()
    return str(os.getuid())


def collect(folder: Path) -> tuple[list[Progress], dict[Path, str]]:
    """Return the progress in all files in and below `folder`, and the files left out, each with the
    reason."""
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


NO_PROGRESS = "it is not a progress file"
