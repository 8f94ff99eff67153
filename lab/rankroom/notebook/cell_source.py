"""Check a cell's source before it is sent to the ranks."""

from __future__ import annotations

import ast
import contextlib
import logging
import traceback
import warnings as python_warnings
from collections.abc import Callable, Iterator, Sequence
from typing import Any

from rankroom.errors import CellError
from rankroom.lint import warnings


def check_syntax(
    shell: Any, source: str, is_of_another_python: Callable[[], bool] = lambda: False
) -> str:
    """Return the cell as plain Python. Raises CellError if it does not compile: once here, rather
    than on every rank.

    Ranks with another version of Python judge the syntax themselves: a cell that does not compile
    here is returned unchanged.

    `shell` transforms magics and `!` lines as the ranks' shells will. Most cells have none, and
    transforming takes longer than compiling, so compiling is tried first.
    """
    with contextlib.suppress(SyntaxError, ValueError):
        _compile(source)
        return source
    try:
        code = str(shell.transform_cell(source))
        _compile(code)
    except (SyntaxError, ValueError) as error:
        if isinstance(error, SyntaxError) and is_of_another_python():
            return source
        # ValueError: the source holds a NUL.
        words = "".join(traceback.format_exception_only(type(error), error)).rstrip()
        raise CellError(f"{words.strip()}\n(nothing was sent to the ranks)") from None
    return code


def _compile(code: str) -> None:
    with _quietly():
        compile(code, "<cell>", "exec", flags=ast.PyCF_ALLOW_TOP_LEVEL_AWAIT, dont_inherit=True)


@contextlib.contextmanager
def _quietly() -> Iterator[None]:
    """Leave the compiler's warnings to the ranks, which give them where the cell's output is."""
    with python_warnings.catch_warnings():
        python_warnings.simplefilter("ignore")
        yield


def notes(code: str, ranks: Sequence[int] | None, size: int) -> list[str]:
    """Return warnings about a cell before it runs: collectives that not every rank reaches."""
    try:
        with _quietly():
            return [each.text for each in warnings(code, ranks, size)]
    except Exception:
        # Warnings are optional: a cell that cannot be checked runs all the same.
        logging.getLogger(__name__).debug("this cell could not be checked", exc_info=True)
        return []
