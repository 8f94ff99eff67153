"""Command lines that start Python without the current directory on `sys.path`.

`python -m` and `python -c` put it first. If others can write to that folder, a file of theirs with
the name of a module would run as the user. So the first code that runs removes the entry. Python
3.13 and newer import `linecache` before that code, and must not have the entry at all: `-P`
prevents it if the Python is known, else the variable PYTHONSAFEPATH, which is removed as well, as
the user's programs would inherit it. (`-P` needs Python 3.11 or newer; `-I` also leaves out
PYTHONPATH and the user's own packages.)
"""

from __future__ import annotations

import os
import sys
from collections.abc import Mapping, Sequence
from pathlib import PurePath

VARIABLE = "PYTHONSAFEPATH"
# What `environment` does, as assignments in a shell's command line.
_SAFE_ASSIGNMENT = f'{VARIABLE}="${{{VARIABLE}:-rankroom}}"'
_PATH_ASSIGNMENT = (
    """PYTHONPATH="$(printf %s "${PYTHONPATH-}" | tr -s : | sed 's/^://; s/:$//')" """.strip()
)
SHELL_ASSIGNMENTS = f"{_SAFE_ASSIGNMENT} {_PATH_ASSIGNMENT}"
# `sys` is built in, so no file can replace it; `os` is imported once the entry is gone.
SAFE_PATH = (
    "import sys; sys.path = [each for each in sys.path if each]; import os; "
    'os.environ.get("PYTHONSAFEPATH") == "rankroom" and os.environ.pop("PYTHONSAFEPATH")'
)
# What `-m` does, which sets up __main__ as modules expect it. This text must not change: it also
# identifies processes that other versions of Rankroom have started, and that may still be running.
_MODULE = "import runpy; runpy._run_module_as_main(sys.argv.pop(1))"
_RUN = f"{SAFE_PATH}; {_MODULE}"


def command(module: str, *arguments: str, python: Sequence[str] = (sys.executable,)) -> list[str]:
    """Return the command line that runs a module as `python -m module` does."""
    return [*python, *flags(python), "-c", _RUN, module, *arguments]


def flags(python: Sequence[str]) -> list[str]:
    """Return the options to put before `-c`, for a Python that is known to need them."""
    is_known = list(python) == [sys.executable] and sys.version_info >= (3, 13)
    return ["-P"] if is_known else []


def environment(own: Mapping[str, str]) -> dict[str, str]:
    """Return the environment for a Python of any version; a user's own setting has the same effect.

    Empty entries of PYTHONPATH are left out: they mean the current directory, too, and come before
    the standard library.
    """
    path = os.pathsep.join(filter(None, own.get("PYTHONPATH", "").split(os.pathsep)))
    found = {**own, "PYTHONPATH": path, VARIABLE: own.get(VARIABLE) or "rankroom"}
    return {name: value for name, value in found.items() if value or name != "PYTHONPATH"}


def arguments(words: Sequence[str]) -> list[str]:
    """Return the module that a command line runs, and its arguments, if it is one of `command`, in
    any version, or has `-m`; else nothing."""
    rest = list(words[2:] if list(words[1:2]) == ["-P"] else words[1:])
    if rest[:1] == ["-c"] and "".join(rest[1:2]).endswith(_MODULE):
        return rest[2:]
    return list(words[2:]) if list(words[1:2]) == ["-m"] else []


def find_modules_beside() -> None:
    """Make modules in the current directory importable, as in a notebook's kernel.

    They come after the standard library and before installed packages: frameworks must not import a
    `random.py` beside the notebook.
    """
    rest = [each for each in sys.path if each]
    installed = (at for at, each in enumerate(rest) if PurePath(each).name in INSTALLED)
    rest.insert(next(installed, len(rest)), "")
    sys.path[:] = rest


INSTALLED = ("site-packages", "dist-packages")
