"""The script of a batch job, to be run by a scheduler or on this machine."""

from __future__ import annotations

import shlex
import sys
from dataclasses import replace

from rankroom.batch.batch_folder import BatchFolder
from rankroom.scheduler import own_folder
from rankroom.scheduler.jobs import body
from rankroom.scheduler.site import Environment, Site, expand
from rankroom.system import python_command


def commands(site: Site, folder: BatchFolder, cwd: str, copy: str) -> list[str]:
    """Return the shell lines that run the cells in the site's environment, in the folder `cwd`.

    The executed notebook is also written to `copy`, unless that is empty.
    """
    options = [*(["--cwd", cwd] if cwd else []), *(["--copy", copy] if copy else [])]
    # The ranks run in the site's container, if it has one, and the notebook outside of it.
    play = python_command.command("rankroom.batch.runner", ".", *options, python=[])
    return [
        *own_folder.ENTER_FUNCTION.splitlines(),
        f"enter {shlex.quote(str(folder.path))}",
        "# In the place of this shell, so that the scheduler's warning and its end reach it.",
        f"{python_command.SHELL_ASSIGNMENTS} exec {_python(site)} {shlex.join(play)}",
    ]


def _python(site: Site) -> str:
    """Return the job's Python as a word of its shell. Without a scheduler, if the profile sets no
    environment, it is this Python: `python` may be a different one, or missing."""
    own = replace(site.environment, preload="")
    if site.scheduler == "none" and own == Environment():
        return shlex.quote(sys.executable)
    return f'"{expand(own.python)}"'


def local_script(site: Site, folder: BatchFolder, cwd: str, copy: str) -> str:
    """Return the script for a machine without a scheduler."""
    return "\n".join(["#!/bin/bash", *body(site, commands(site, folder, cwd, copy))])
