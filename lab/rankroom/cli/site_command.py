"""`rankroom site …`: list the sites, show one, and check whether it works."""

from __future__ import annotations

import asyncio
import dataclasses
import json
import sys

import click

from rankroom.cli.terminal import Terminal
from rankroom.errors import UsageError
from rankroom.scheduler import site as sites
from rankroom.scheduler.same_machine import is_here
from rankroom.scheduler.scheduler_client import Scheduler
from rankroom.scheduler.site_check import Check, Step, failed
from rankroom.ssh.host import LocalHost, place

STATE_MARKS = {"ok": "✓", "warned": "!", "failed": "✗", "skipped": "–"}
STATE_COLORS = {"ok": "green", "warned": "yellow", "failed": "red", "skipped": None}
NAME_ARGUMENT = click.argument("name")


@click.group()
def site() -> None:
    """Sites to run on, and whether they work.

    A site is described by a profile, NAME.toml. docs/sites.md says how to write one.
    """


@site.command("list")
def list_() -> None:
    """List the sites."""
    for name, path in sorted(sites.files().items()):
        try:
            about = sites.load(name)
            words = about.description or about.login
        except UsageError as error:
            words = f"✗ {error}"
        own = "  (yours)" if path.parent == sites.own_folder() else ""
        click.echo(f"{name:14}  {words}{own}")
    click.echo(f"\n{OWN_PROFILES.format(folder=sites.own_folder())}")


@site.command()
@NAME_ARGUMENT
@click.option("--script", is_flag=True, help="Show the head of a job's script instead.")
def show(name: str, script: bool) -> None:
    """Show a profile, with everything that it extends."""
    found = sites.load(name)
    if script:
        text = Scheduler(found, LocalHost()).script("NAME", found.scratch, ["# what the job runs"])
        click.echo(text, nl=False)
        return
    click.echo(f"# {sites.files()[name]}")
    for key, value in dataclasses.asdict(found).items():
        if isinstance(value, dict) and any(value.values()):
            click.echo(f"\n[{key}]")
            for each, said in value.items():
                _line(each, said)
        elif not isinstance(value, dict) and key != "name":
            _line(key, value)


def _line(key: str, value: object) -> None:
    if value:
        click.echo(f"{key} = {json.dumps(value)}")


@site.command()
@NAME_ARGUMENT
@click.option("--job", is_flag=True, help="Submit a short test job, too.")
def check(name: str, job: bool) -> None:
    """Check a site step by step, and say which step fails and what to do.

    Exits with 0 if no step has failed.
    """
    found = sites.load(name)
    if failed(asyncio.run(_check(found, job))):
        sys.exit(1)


async def _check(found: sites.Site, job: bool) -> list[Step]:
    terminal, steps = Terminal(), []
    there = place("" if is_here(found) else found.login)
    trying = Check(found, there, terminal.show)
    try:
        async for step in trying.steps(job):
            say_step(terminal, step)
            steps.append(step)
    finally:
        terminal.clear()
        await there.close()
    return steps


def say_step(terminal: Terminal, step: Step) -> None:
    """Print the outcome of one step of a check in a line, and below it what to do if it failed."""
    mark = click.style(STATE_MARKS[step.state], fg=STATE_COLORS[step.state])
    first, *more = step.words.splitlines() or [""]
    terminal.say(f"{mark} {step.name}: {first}")
    for line in more:
        terminal.say(f"    {line}")


OWN_PROFILES = (
    "put profiles of your own into {folder} as NAME.toml; `extends` builds on one of these"
)
