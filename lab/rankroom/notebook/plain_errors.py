"""What a file system refuses is told in one line, as errors of ours are."""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any

from rankroom.errors import of_file


def plain(magic: Callable[..., None]) -> Callable[..., None]:
    """A magic that raises no bare OSError for a disk, a quota or a permission."""

    @functools.wraps(magic)
    def told(*args: Any, **options: Any) -> None:
        try:
            magic(*args, **options)
        except OSError as error:
            if (words := of_file(error)) is None:
                raise
            raise words from None

    return told
