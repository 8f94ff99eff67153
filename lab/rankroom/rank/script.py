"""A script of the user's, run on a rank as `python script.py` would run it."""

from __future__ import annotations

import os
import runpy
import socket
import sys
import traceback
from collections.abc import Sequence
from pathlib import Path


class ScriptExit(Exception):
    """The script has ended with another status than 0, or with a message in its place."""


def run(path: str, arguments: Sequence[str]) -> None:
    """Run the script as `__main__`. Raises what it raises, and ScriptExit for its exit status."""
    __tracebackhide__ = True  # IPython leaves it out of what the user reads
    if not Path(path).is_file():
        raise ScriptExit(NO_FILE.format(path=path, folder=Path.cwd(), host=socket.gethostname()))
    before, process = (sys.argv, sys.path[:]), os.getpid()
    sys.argv = [path, *arguments]
    sys.path.insert(0, str(Path(path).resolve().parent))
    status: object = 0
    try:
        runpy.run_path(path, run_name="__main__")
    except SystemExit as end:
        status = end.code
    except BaseException:
        if os.getpid() == process:
            raise
        traceback.print_exc()
        status = 1
    finally:
        sys.argv, sys.path[:] = before
    if os.getpid() != process:
        _end_fork(status)
    if status not in (None, 0, False):
        raise ScriptExit(status) from None


def _end_fork(status: object) -> None:
    """End a process that the script forked, as it does with its script: it is no second rank."""
    if not (status is None or isinstance(status, int)):
        print(status, file=sys.stderr)
        status = 1
    sys.stdout.flush()
    sys.stderr.flush()
    os._exit(status or 0)


NO_FILE = "there is no file {path} on {host} (in {folder})"
