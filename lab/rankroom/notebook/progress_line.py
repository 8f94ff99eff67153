"""A progress line under a cell."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager


@contextmanager
def progress() -> Iterator[Callable[[str], None]]:
    """Yield `tell(words)`, which rewrites the line. The line is erased at the end."""
    width = 0

    def tell(words: str) -> None:
        nonlocal width
        first = words.partition("\n")[0]
        print(f"\r{first.ljust(width)}", end="", flush=True)
        width = max(width, len(first))

    try:
        yield tell
    finally:
        tell("")
        print("\r", end="")
