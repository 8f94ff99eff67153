"""Show errors of a file system in one line, as Rankroom's own errors are."""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any

from rankroom.errors import file_error


def plain(magic: Callable[..., None]) -> Callable[..., None]:
    """Make a magic raise FileError, not a bare OSError, about a disk, a quota or a permission."""

    @functools.wraps(magic)
    def told(*args: Any, **options: Any) -> None:
        try:
            magic(*args, **options)
        except OSError as error:
            if (words := file_error(error)) is None:
                raise
            raise words from None

    return told
