"""Command lines that start a Python without the current directory on `sys.path`.

`python -m` and `python -c` put it first. Where others can write to that folder, a file of theirs
with the name of a module would run as the user. (`-P` is for Python 3.11 and newer, `-I` also
leaves out PYTHONPATH and the user's own packages, and PYTHONSAFEPATH would be inherited by the
user's programs.)
"""

from __future__ import annotations

import sys
from collections.abc import Sequence
from pathlib import PurePath

# `sys` is built in: no file can take its place.
SAFE_PATH = "import sys; sys.path = [each for each in sys.path if each]"
# What `-m` does, which leaves __main__ as modules expect it.
_RUN = f"{SAFE_PATH}; import runpy; runpy._run_module_as_main(sys.argv.pop(1))"


def command(module: str, *arguments: str, python: Sequence[str] = (sys.executable,)) -> list[str]:
    """The command line that runs a module as `python -m module` does."""
    return [*python, "-c", _RUN, module, *arguments]


def arguments(words: Sequence[str]) -> list[str]:
    """The module that a command line of `command`, or one with `-m`, runs, and its arguments."""
    if list(words[1:3]) == ["-c", _RUN]:
        return list(words[3:])
    return list(words[2:]) if list(words[1:2]) == ["-m"] else []


def find_modules_beside() -> None:
    """Have modules in the current directory found where a notebook's kernel finds them.

    They come after the standard library and before what is installed: a `random.py` beside the
    notebook is not what frameworks import.
    """
    rest = [each for each in sys.path if each]
    installed = (at for at, each in enumerate(rest) if PurePath(each).name in INSTALLED)
    rest.insert(next(installed, len(rest)), "")
    sys.path[:] = rest


INSTALLED = ("site-packages", "dist-packages")
