"""Where the threads of this rank are, seen from another thread."""

from __future__ import annotations

import faulthandler
import linecache
import signal
import sys
import threading
import traceback
from pathlib import Path
from types import FrameType
from typing import Any, NamedTuple

OWN_THREAD_PREFIX = "rankroom-"  # prefix of the names of our own threads, which are not the cell's
IPYKERNEL_THREADS = ("IOPub", "Control")  # names of ipykernel's threads
STACKS_SIGNAL = signal.SIGUSR2


class CellPosition(NamedTuple):
    """A position in the current cell: its line, from 1, and the source line that is executed.

    `code` may be a line of an earlier cell, whose function the current one calls.
    """

    cell_line: int | None
    code: str | None


def main_frame() -> FrameType | None:
    """Return the innermost Python frame of the main thread."""
    return sys._current_frames().get(threading.main_thread().ident or 0)


def place(frame: FrameType | None, cells: set[str]) -> CellPosition:
    """Return where in the cell `frame` is; `cells` are the file names of compiled cells."""
    lines = [
        (number, frame.f_code.co_filename)
        for frame, number in traceback.walk_stack(frame)
        if frame.f_code.co_filename in cells
    ]
    if not lines:
        return CellPosition(None, None)
    innermost, outermost = lines[0], lines[-1]
    line = next(number for number, name in lines if name == outermost[1])
    return CellPosition(line, linecache.getline(innermost[1], innermost[0]).strip()[:200] or None)


def stacks(cells: set[str]) -> str:
    """Return the stacks of the main thread, from the cell on, and of the user's other threads."""
    frames = sys._current_frames()
    main = threading.main_thread()
    parts = []
    for thread in sorted(threading.enumerate(), key=lambda each: each is not main):
        is_ours = thread.name.startswith(OWN_THREAD_PREFIX) or thread.name in IPYKERNEL_THREADS
        if is_ours or thread is threading.current_thread():
            continue
        frame = frames.get(thread.ident or 0)
        if frame is None:
            continue
        entries = traceback.extract_stack(frame)
        if thread is not main and any("/zmq/devices/" in entry.filename for entry in entries):
            continue
        first = next((i for i, entry in enumerate(entries) if entry.filename in cells), 0)
        parts.append(f"{thread.name}:\n{''.join(traceback.format_list(entries[first:]))}")
    return "\n".join(parts)


_written: list[Any] = []


def answer_to_signal(file: Path) -> None:
    """Make SIGUSR2 write all stacks to `file`, even while C code keeps Python from running."""
    _written[:] = [file.open("wb", buffering=0)]
    signal.signal(
        STACKS_SIGNAL, signal.SIG_IGN
    )  # in effect whenever faulthandler is not registered
    answer_again()


def answer_again() -> None:
    """Register the handler of SIGUSR2 again: a library that restores all handlers that Python knows
    (Lightning, after each training) removes this one, which Python does not know."""
    for file in _written:
        faulthandler.unregister(
            STACKS_SIGNAL
        )  # else faulthandler assumes that it is still registered
        faulthandler.register(STACKS_SIGNAL, file, all_threads=True)


def handles_interrupt() -> bool:
    """Return whether the main thread is in an `except` or `finally` block due to an interrupt."""
    error: Any = sys._current_exceptions().get(threading.main_thread().ident or 0)
    if isinstance(error, tuple):  # up to Python 3.11
        error = error[1]
    return isinstance(error, KeyboardInterrupt)
