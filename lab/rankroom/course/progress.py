"""How far a reader has come: a small file of theirs, which a teacher can collect."""

from __future__ import annotations

import contextlib
import getpass
import json
import os
import time
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path

from rankroom import config
from rankroom.system.files import write_atomically


@dataclass
class Progress:
    """The exercises tried, with how often, and those passed, with the day."""

    user: str = ""
    tries: dict[str, int] = field(default_factory=dict)
    passed: dict[str, str] = field(default_factory=dict)


def file() -> Path:
    """Where the reader's own progress is kept."""
    return config.home() / "course.json"


def read(path: Path | None = None) -> Progress:
    """The progress in a file; none in one that is not there or not readable as such."""
    try:
        data = json.loads((path or file()).read_text("utf-8"))
        return Progress(
            str(data["user"]),
            {str(name): int(count) for name, count in data["tries"].items()},
            {str(name): str(day) for name, day in data["passed"].items()},
        )
    except (OSError, ValueError, KeyError, TypeError, AttributeError):
        return Progress()


def note(exercise: str, passed: bool) -> None:
    """Remember a try. A full disk must not spoil a lesson."""
    note_all({exercise: passed})


def note_all(passed: Mapping[str, bool]) -> None:
    """Remember a try of several exercises, and which were passed."""
    now = read()
    now.user = now.user or _user()
    for exercise, good in passed.items():
        now.tries[exercise] = now.tries.get(exercise, 0) + 1
        if good:
            now.passed.setdefault(exercise, time.strftime("%Y-%m-%d"))
    with contextlib.suppress(OSError):
        path = file()
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
