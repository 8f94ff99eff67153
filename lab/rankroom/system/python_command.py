"""Command lines that start a Python without the current directory on `sys.path`.

`python -m` and `python -c` put it first. Where others can write to that folder, a file of theirs
with the name of a module would run as the user. So what runs first takes it away; Python 3.13 and
newer import `linecache` before that, and must not have it at all: by `-P`, where the Python is
known, else by a variable, which is taken away as well, as the user's programs would have it, too.
(`-P` is for Python 3.11 and newer; `-I` also leaves out PYTHONPATH and the user's own packages.)
"""

from __future__ import annotations

import os
import sys
from collections.abc import Mapping, Sequence
from pathlib import PurePath

VARIABLE = "PYTHONSAFEPATH"
# `environment` in a shell's line.
_SAFE = f'{VARIABLE}="${{{VARIABLE}:-rankroom}}"'
_PATH = """PYTHONPATH="$(printf %s "${PYTHONPATH-}" | tr -s : | sed 's/^://; s/:$//')" """.strip()
ASSIGNMENT = f"{_SAFE} {_PATH}"
# `sys` is built in, no file can take its place; and `os` is only looked for without the folder.
SAFE_PATH = (
    "import sys; sys.path = [each for each in sys.path if each]; import os; "
    'os.environ.get("PYTHONSAFEPATH") == "rankroom" and os.environ.pop("PYTHONSAFEPATH")'
)
# What `-m` does, which leaves __main__ as modules expect it. Processes of other versions are known
# by it, too, as they may run on: this text stays.
_MODULE = "import runpy; runpy._run_module_as_main(sys.argv.pop(1))"
_RUN = f"{SAFE_PATH}; {_MODULE}"


def command(module: str, *arguments: str, python: Sequence[str] = (sys.executable,)) -> list[str]:
    """The command line that runs a module as `python -m module` does."""
    return [*python, *flags(python), "-c", _RUN, module, *arguments]


def flags(python: Sequence[str]) -> list[str]:
    """What comes before `-c`, of a Python that is known to need it."""
    is_known = list(python) == [sys.executable] and sys.version_info >= (3, 13)
    return ["-P"] if is_known else []


def environment(own: Mapping[str, str]) -> dict[str, str]:
    """The environment of a Python of any version: a user's own setting is as good, and stays.

    An empty entry of PYTHONPATH is the current directory, too, and before the standard library.
    """
    path = os.pathsep.join(filter(None, own.get("PYTHONPATH", "").split(os.pathsep)))
    found = {**own, "PYTHONPATH": path, VARIABLE: own.get(VARIABLE) or "rankroom"}
    return {name: value for name, value in found.items() if value or name != "PYTHONPATH"}


def arguments(words: Sequence[str]) -> list[str]:
    """The module that a command line of `command`, of any version, or one with `-m`, runs, and its
    arguments."""
    rest = list(words[2:] if list(words[1:2]) == ["-P"] else words[1:])
    if rest[:1] == ["-c"] and "".join(rest[1:2]).endswith(_MODULE):
        return rest[2:]
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
