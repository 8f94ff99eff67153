"""A cell's source, looked at before it is sent anywhere."""

from __future__ import annotations

import ast
import traceback
from typing import Any

from rankroom.errors import CellError


def check_syntax(shell: Any, source: str) -> None:
    """Raise CellError if the cell does not compile: once, here, instead of on every rank.

    `shell` transforms magics and `!` lines as the ranks' shells will.
    """
    try:
        code = shell.transform_cell(source)
        compile(code, "<cell>", "exec", flags=ast.PyCF_ALLOW_TOP_LEVEL_AWAIT, dont_inherit=True)
    except (SyntaxError, ValueError) as error:
        # ValueError: the source holds a NUL.
        words = "".join(traceback.format_exception_only(type(error), error)).rstrip()
        raise CellError(f"{words.strip()}\n(nothing was sent to the ranks)") from None
