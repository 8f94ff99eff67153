"""Files that are replaced atomically: a reader sees the whole old file or the whole new one."""

from __future__ import annotations

import contextlib
import json
import os
import threading
from collections.abc import Callable
from pathlib import Path
from typing import TypeVar

PRIVATE_MODE = 0o600
T = TypeVar("T")


def write_atomically(path: Path, text: str, mode: int = PRIVATE_MODE) -> None:
    """Replace the content of `path` with `text`; safe for concurrent processes and threads, and in
    a folder where others write: what they put in the way is removed or refused, never followed.

    Raises OSError, leaving the old file as it was and no temporary file.
    """
    fresh = path.with_name(f".{path.name}.{os.getpid()}.{threading.get_ident()}")
    try:
        fresh.unlink(missing_ok=True)
        descriptor = os.open(fresh, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW, mode)
        with os.fdopen(descriptor, "w", encoding="utf-8") as file:
            file.write(text)
        fresh.replace(path)
    except OSError:
        with contextlib.suppress(OSError):
            fresh.unlink(missing_ok=True)
        raise


def read_all(folder: Path, kind: Callable[..., T]) -> list[T]:
    """Return each JSON file of a folder as a `kind`, without those that cannot be read."""
    found = []
    for file in folder.glob("*.json"):
        with contextlib.suppress(OSError, ValueError, TypeError):
            found.append(kind(**json.loads(file.read_text("utf-8"))))
    return found
