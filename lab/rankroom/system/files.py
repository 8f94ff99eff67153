"""Files that are replaced in one step: a reader sees the old one whole or the new one whole."""

from __future__ import annotations

import contextlib
import json
import os
import threading
from collections.abc import Callable
from pathlib import Path
from typing import TypeVar

PRIVATE = 0o600
T = TypeVar("T")


def write_atomically(path: Path, text: str, mode: int = PRIVATE) -> None:
    """Replace `path` by `text`, whatever several processes and threads do at once.

    Raises OSError, with the old file as it was and nothing beside it.
    """
    fresh = path.with_name(f".{path.name}.{os.getpid()}.{threading.get_ident()}")
    try:
        descriptor = os.open(fresh, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, mode)
        with os.fdopen(descriptor, "w", encoding="utf-8") as file:
            file.write(text)
        fresh.replace(path)
    except OSError:
        with contextlib.suppress(OSError):
            fresh.unlink(missing_ok=True)
        raise


def read_all(folder: Path, kind: Callable[..., T]) -> list[T]:
    """What the JSON files of a folder hold, each as a `kind`; without what cannot be read."""
    found = []
    for file in folder.glob("*.json"):
        with contextlib.suppress(OSError, ValueError, TypeError):
            found.append(kind(**json.loads(file.read_text("utf-8"))))
    return found
