"""`rankroom workshop …`: many learners on a site, and a teacher who sees who needs help."""

from __future__ import annotations

import asyncio
import shlex
import sys
import time
from pathlib import Path
from typing import TextIO

import click

from rankroom.cli.joined_workshop import join_workshop, leave_workshop
from rankroom.cli.output_file import write_file
from rankroom.cli.site_command import say_step
from rankroom.cli.terminal import Terminal
from rankroom.cli.watched_workshop import end_workshop, watch_workshop
from rankroom.course import quiz
from rankroom.errors import UnreadableRecordError, UsageError
from rankroom.record.store import Store
from rankroom.workshop import seat, workshop_plan
from rankroom.workshop.tile_table import progress_csv, progress_of
from rankroom.workshop.tiles import exercises
from rankroom.workshop.workshop_folder import Folder, open_folder

FOLDER_ARGUMENT = click.argument("folder", type=click.Path(path_type=Path))
PLAN_ARGUMENT = click.argument("file", type=click.Path(path_type=Path))
COPY_INTERVAL_S = 1.0  # between two copies of a live run that learners are shown


@click.group()
def workshop() -> None:
    """A workshop: one command for its teacher, one for each learner.

    The teacher writes a plan (`new`), tries it (`check`), and opens the workshop (`open`). Each
    learner joins it (`join`); the teacher sees who needs help (`watch`), and ends it (`end`).
    docs/workshop.md says more.
    """


# -- for the teacher


@workshop.command()
@PLAN_ARGUMENT
def new(file: Path) -> None:
    """Write a template of a plan to FILE."""
    try:
        with file.open("x", encoding="utf-8") as out:
            out.write(workshop_plan.template())
    except FileExistsError:
        raise UsageError(f"{file} is there already: choose another name, or remove it") from None
    except OSError as error:
        raise UsageError(f"cannot write {file}: {error.strerror or error}") from None
    click.echo(f"wrote {file}: edit it, then `rankroom workshop check {shlex.quote(str(file))}`")


@workshop.command()
@PLAN_ARGUMENT
def check(file: Path) -> None:
    """Check the plan in FILE: its accounts, folder and site. Exits with 0 if nothing failed."""
    from rankroom.workshop import plan_check

    plan = workshop_plan.read(file)

    async def tried() -> bool:
        terminal, good = Terminal(), True
        async for step in plan_check.steps(plan, terminal.show):
            say_step(terminal, step)
            good = good and step.state != "failed"
        return good

    if not asyncio.run(tried()):
        sys.exit(1)


@workshop.command("open")
@PLAN_ARGUMENT
def open_(file: Path) -> None:
    """Create the folder of the plan in FILE, and print what learners type."""
    plan = workshop_plan.read(file)
    opened = open_folder(plan)
    there = shlex.quote(str(opened.path))
    click.echo(f"{plan.name} is open in {opened.path}. Each learner types\n")
    click.echo(f"    rankroom workshop join {there}\n")
    if plan.way == "ssh":
        login = workshop_plan.opened(plan).login or "LOGIN"
        click.echo(f"there, or from a laptop: rankroom workshop join {login}:{there}")
    click.echo(f"`rankroom workshop watch {there}` shows you all learners")


@workshop.command()
@FOLDER_ARGUMENT
@click.option("--once", is_flag=True, help="Print it once, and end.")
@click.option("--json", "as_json", is_flag=True, help="Print a line of JSON at each update.")
@click.option(
    "--exercises", "with_exercises", is_flag=True, help="Also show how the exercises went."
)
def watch(folder: Path, once: bool, as_json: bool, with_exercises: bool) -> None:
    """Show all learners, those who need help first, until Ctrl-C."""
    watch_workshop(Folder(folder), once, as_json, with_exercises)


@workshop.command()
@FOLDER_ARGUMENT
@click.argument("words", nargs=-1, required=True)
def say(folder: Path, words: tuple[str, ...]) -> None:
    """Send a message to all learners."""
    Folder(folder).say(" ".join(words))


@workshop.command("offer-cell")
@FOLDER_ARGUMENT
@click.argument("source", type=click.File("r"), default="-")
@click.option("--title", default="", help="What it is.")
def offer_cell(folder: Path, source: TextIO, title: str) -> None:
    """Offer all learners a cell: the text of a file, or of standard input."""
    try:
        text = source.read()
    except UnicodeDecodeError:
        raise UsageError(f"{source.name} is not text in {source.encoding}") from None
    Folder(folder).offer_cell(text, title)


@workshop.command()
@FOLDER_ARGUMENT
@click.argument("minutes", type=click.FloatRange(0, 24 * 60))
@click.argument("title", default="")
def timer(folder: Path, minutes: float, title: str) -> None:
    """Show all learners how many minutes are left; 0 removes the timer."""
    Folder(folder).timer(minutes, title)


@workshop.command()
@FOLDER_ARGUMENT
@click.argument("run", required=False)
@click.option("--off", is_flag=True, help="Stop showing it.")
def show(folder: Path, run: str | None, off: bool) -> None:
    """Show all learners one of your runs (an id, or `last`); follow a live one until it ends."""
    here, store = Folder(folder), Store()
    if off:
        here.show_run(None)
        return
    found = store.load(store.find(run or "last"))
    here.show_run(store.paths(found.id))
    click.echo(f"all learners can open the run {found.id}")
    while found.state == "running":
        time.sleep(COPY_INTERVAL_S)
        try:
            found = store.load(found.id)  # before the copy, so that the last copy is complete
            is_shown = here.follow_run(store.paths(found.id))
        except UnreadableRecordError:  # the file system's fault, which may pass
            continue
        if not is_shown:
            click.echo(f"the run {found.id} is no longer shown: another one is, or none")
            break


@workshop.command("catch-up")
@FOLDER_ARGUMENT
@click.argument("user")
@click.argument("exercise", default="")
def catch_up(folder: Path, user: str, exercise: str) -> None:
    """Offer a learner the solutions for their ranks: up to EXERCISE, or to the last one tried."""
    here = Folder(folder)
    if exercise and exercise not in (known := exercises(here.plan())):
        raise UsageError(f"no exercise {exercise} in this workshop; there are {', '.join(known)}")
    here.request(user, "catch up", exercise)
    click.echo(f"offered to {user}, who decides")


@workshop.command()
@FOLDER_ARGUMENT
@click.argument("user")
def reset(folder: Path, user: str) -> None:
    """Offer a learner a fresh notebook and fresh ranks; the old notebook is kept."""
    Folder(folder).request(user, "reset")
    click.echo(f"offered to {user}, who decides")


@workshop.command()
@FOLDER_ARGUMENT
@click.option("-o", "--output", default="-", help="The file; - prints it.")
def collect(folder: Path, output: str) -> None:
    """Write everyone's progress as a table (CSV)."""
    here = Folder(folder)
    seats = here.seats()
    text = progress_csv(seats, exercises(here.plan()))
    learnt = quiz.class_results([progress_of(seat) for seat in seats])
    learners = "1 learner" if len(seats) == 1 else f"{len(seats)} learners"
    write_file([text.encode()], output, "\n".join([learners, *learnt]))


@workshop.command()
@FOLDER_ARGUMENT
def end(folder: Path) -> None:
    """End the workshop: learners are warned, and a minute later their ranks and jobs end."""
    if not end_workshop(Folder(folder), Terminal()):
        sys.exit(1)


# -- for learners


@workshop.command()
@click.argument("folder")
@click.option("--port", type=click.IntRange(1, 65535),
              help="The local port of the tunnel to your JupyterLab.")  # fmt: skip
@click.option("--no-browser", is_flag=True, help="Only print the address.")
def join(folder: str, port: int | None, no_browser: bool) -> None:
    """Take a seat in the workshop in FOLDER, and open your lesson.

    On a laptop, FOLDER is LOGIN:FOLDER, where LOGIN is the site's login node as ssh takes it.
    Joining again leads to the same JupyterLab.
    """
    asyncio.run(join_workshop(folder, port or 0, not no_browser, Terminal()))


@workshop.command()
def leave() -> None:
    """Give up your seat, and end your JupyterLab if it runs on this machine."""
    leave_workshop()


@workshop.command()
@click.option("--down", is_flag=True, help="Take it down again.")
def hand(down: bool) -> None:
    """Raise your hand; your teacher sees it."""
    own = seat.mine()
    try:
        own.hand(not down)
    finally:  # even if it could not be saved in the home directory
        own.write_choices_to_seat()
    click.echo("your hand is down" if down else "your hand is up: your teacher sees it in seconds")


@workshop.command()
@click.option("--off", is_flag=True, help="Stop sharing.")
def share(off: bool) -> None:
    """Share your state and progress with your teacher, or stop sharing them."""
    own = seat.mine()
    try:
        own.share(not off)
    finally:
        if off:
            own.write_choices_to_seat()
    click.echo(SHARING_OFF if off else SHARING_ON)


SHARING_ON = (
    "while your JupyterLab runs, your teacher sees your lesson and last exercise, the state of "
    "your ranks and of your newest run with its first line, and of each exercise and question of "
    "the quiz how often you have tried it, and whether you have passed"
)
SHARING_OFF = "your teacher sees your account and whether your hand is up, and nothing else"
