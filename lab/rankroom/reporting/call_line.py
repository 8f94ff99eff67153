"""Find the line of the current cell that a call comes from."""

from __future__ import annotations

import sys
from collections.abc import Callable, Container
from types import FrameType

# Returns the file names that cells were compiled with; the kernel sets it.
cells: Callable[[], Container[str]] = set


def cell_line() -> int | None:
    """Return the line, from 1, of the current cell that calls this; None outside a cell.

    The current cell is the outermost one on the stack: it may call functions of earlier cells.
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
