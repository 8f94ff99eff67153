"""The script of a batch job: what it runs, under a scheduler or on this machine."""

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
    """What the job runs in the site's environment: the cells, with `cwd` as their folder.

    `copy` is where the executed notebook is put, too, if anywhere.
    """
    options = [*(["--cwd", cwd] if cwd else []), *(["--copy", copy] if copy else [])]
    # Its ranks are in the site's container, if there is one, and the notebook is outside of it.
    play = python_command.command("rankroom.batch.runner", ".", *options, python=[])
    return [
        *own_folder.ENTER.splitlines(),
        f"enter {shlex.quote(str(folder.path))}",
        "# In the place of this shell, so that the scheduler's warning and its end reach it.",
        f"{python_command.ASSIGNMENT} exec {_python(site)} {shlex.join(play)}",
    ]


def _python(site: Site) -> str:
    """The job's Python as a word of its shell. On this machine, where the profile names none and
    loads nothing, it is this one: `python` may be another's, or not there."""
    own = replace(site.environment, preload="")
    if site.scheduler == "none" and own == Environment():
        return shlex.quote(sys.executable)
    return f'"{expand(own.python)}"'


def local_script(site: Site, folder: BatchFolder, cwd: str, copy: str) -> str:
    """The script for a machine without a scheduler."""
    return "\n".join(["#!/bin/bash", *body(site, commands(site, folder, cwd, copy))])
