"""What a job asks for, as options of the commands that submit one."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import click

from rankroom.scheduler.site import JOB_OPTIONS

Function = Callable[..., Any]


def job_options(command: Function) -> Function:
    """Give `command` an option for each field of a job; None where the user says nothing."""
    for option in reversed(JOB_OPTIONS):
        command = click.option(
            option.flag, type=option.type, metavar=option.metavar, help=option.help
        )(command)
    return command
