"""What a teacher sees of a workshop in a terminal, and how it is ended."""

from __future__ import annotations

import asyncio
import contextlib
import json
import shutil
import sys
import time

import click

from rankroom.cli.terminal import Terminal
from rankroom.errors import RankroomError
from rankroom.scheduler.same_machine import is_here
from rankroom.ssh.host import place
from rankroom.workshop.tile_table import histogram_line, table
from rankroom.workshop.tiles import overview
from rankroom.workshop.workshop_folder import Folder

LOOK_S = 0.5
GRACE_S = 90.0  # for jobs to end after the last minute
ASK_S = 20.0
ASK_AGAIN_S = 5.0  # between two questions to the scheduler
HOME_AND_CLEAR = "\x1b[H\x1b[J"


def watch_workshop(folder: Folder, once: bool, as_json: bool, with_exercises: bool) -> None:
    """Show all learners until Ctrl-C, or once. Raises NotYoursError for another than the
    teacher."""
    is_live = sys.stdout.isatty() and not once and not as_json
    with contextlib.suppress(KeyboardInterrupt):
        while True:
            view = overview(folder, time.time())
            if as_json:
                click.echo(json.dumps(view))
            else:
                width, height = shutil.get_terminal_size() if is_live else (200, 0)
                lines = [table(view, width - 1, height - 1 if is_live else 0)]
                if with_exercises:
                    lines += ["", *map(histogram_line, view["exercises"])]
                click.echo(f"{HOME_AND_CLEAR if is_live else ''}" + "\n".join(lines))
            if once:
                return
            time.sleep(LOOK_S)


def end_workshop(folder: Folder, terminal: Terminal) -> bool:
    """End a workshop, and wait until its jobs are gone; whether they are."""
    seats = folder.seats()  # refused before anything is told
    until = folder.close()
    terminal.say(f"all learners are told: their ranks and jobs end in {_seconds(until)} s")
    left: list[dict[str, str]] = []
    while (now := time.time()) < until + GRACE_S:
        seats = folder.seats()
        on = [seat.user for seat in seats if seat.status.state != "ended"]
        if now < until:
            terminal.show(f"{len(seats)} seats · {_seconds(until)} s left")
        else:
            left = _jobs(folder, {seat.status.job for seat in seats})
            if not on and not left:
                break
            terminal.show(f"{len(on)} seats and {len(left)} jobs have not ended yet")
        time.sleep(LOOK_S if now < until else ASK_AGAIN_S)
    terminal.clear()
    for user in sorted(seat.user for seat in seats if seat.status.state != "ended"):
        terminal.say(SILENT.format(user=user))
    for job in left:
        terminal.say(STILL.format(**job))
    if not left:
        terminal.say(f"{folder.plan().name} has ended, and no job of it is left")
    return not left


def _jobs(folder: Folder, known: set[str]) -> list[dict[str, str]]:
    """The jobs of the workshop that the scheduler still has: those of seats, and those that
    learners of the plan have in the queue for JupyterLab. None where there is no scheduler."""
    plan = folder.plan()
    if plan.way != "ssh":
        return []
    site = plan.of_site()
    there = place("" if is_here(site) else site.login)

    async def ask() -> str:
        try:
            words = ["squeue", "--noheader", "--format=%i|%u|%T|%j"]
            done = await there.run(words, timeout=ASK_S)
            return done.output if done.ok else ""
        finally:
            await there.close()

    if site.scheduler != "slurm":
        return []
    with contextlib.suppress(RankroomError, OSError):
        lines = [line.split("|") for line in asyncio.run(ask()).splitlines()]
        return [
            {"job": each[0], "user": each[1], "state": each[2].lower()}
            for each in lines
            if len(each) == 4
            and each[2] not in ("COMPLETING", "COMPLETED", "CANCELLED")
            and (each[0] in known or (each[1] in plan.learners and each[3] == "lab"))
        ]
    return []


def _seconds(until: float) -> int:
    return max(0, round(until - time.time()))


SILENT = "{user}'s JupyterLab has not said that it has ended: its job ends with its time"
STILL = "job {job} of {user} is still there ({state}): it ends by itself as soon as it starts"
