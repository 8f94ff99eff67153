"""One line under a cell that says how far something is."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager


@contextmanager
def progress() -> Iterator[Callable[[str], None]]:
    """`tell(words)` shows the line again; it is gone at the end."""
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
