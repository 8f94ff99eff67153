"""Which line of the present cell a call comes from."""

from __future__ import annotations

import sys
from collections.abc import Callable, Container
from types import FrameType

# The file names that cells were compiled with; the kernel knows them.
cells: Callable[[], Container[str]] = set


def cell_line() -> int | None:
    """The line of the cell that the caller's thread is in, from 1; None outside a cell.

    It is the outermost one: a function of an earlier cell may stand between.
    """
    names = cells()
    frame: FrameType | None = sys._getframe(1)
    line, file = None, ""
    while frame is not None:
        name = frame.f_code.co_filename
        if name != file and name in names:
            line, file = frame.f_lineno, name
        frame = frame.f_back
    return line
