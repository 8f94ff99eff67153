"""A script of the user's, run on a rank as `python script.py` would run it."""

from __future__ import annotations

import runpy
import sys
from collections.abc import Sequence
from pathlib import Path


class ScriptExit(Exception):
    """The script has ended with another status than 0, or with a message in its place."""


def run(path: str, arguments: Sequence[str]) -> None:
    """Run the script as `__main__`. Raises what it raises, and ScriptExit for its exit status."""
    __tracebackhide__ = True  # IPython leaves it out of what the user reads
    before = sys.argv, sys.path[:]
    sys.argv = [path, *arguments]
    sys.path.insert(0, str(Path(path).resolve().parent))
    try:
        runpy.run_path(path, run_name="__main__")
    except SystemExit as end:
        if end.code not in (None, 0, False):
            raise ScriptExit(end.code) from None
    finally:
        sys.argv, sys.path[:] = before
