"""`rankroom course`: list the lessons, copy them to work in, and show progress."""

from __future__ import annotations

import shlex
from pathlib import Path

import click

from rankroom.course import progress, quiz
from rankroom.course.copies import copy_to
from rankroom.course.exercise import all_exercises
from rankroom.course.lessons import LESSONS
from rankroom.display.text import clean, one_line
from rankroom.errors import FileError, UsageError, with_remedy


@click.group()
def course() -> None:
    """The course: lessons in notebooks, with exercises that check themselves."""


@course.command("list")
def list_lessons() -> None:
    """List the lessons, and how many of their exercises you have passed."""
    from rankroom.notebook.course_magics import overview

    click.echo(overview())


@course.command()
@click.argument("into", type=click.Path(path_type=Path), default=Path("rankroom-course"))
def copy(into: Path) -> None:
    """Copy the notebooks to the folder INTO (rankroom-course). Existing files are kept."""
    for name, is_new in copy_to(into).items():
        if not is_new:
            click.echo(f"kept {into / name}, which already existed")
    first = shlex.quote(str(into / LESSONS[0].file))
    click.echo(f"the course is in {into}: `jupyter lab {first}`")


@course.command("progress")
@click.argument(
    "collected", required=False, type=click.Path(exists=True, file_okay=False, path_type=Path)
)
def show_progress(collected: Path | None) -> None:
    """Show your own progress, or that of everyone whose course.json is in the folder COLLECTED."""
    if collected is None:
        mine = _own_progress()
        if not mine.tries:
            click.echo(f"no exercise tried yet (progress is saved in {progress.file()})")
        for when in quiz.WHEN:
            if (right := quiz.score(mine, when)) is not None:
                click.echo(f"quiz {when}: {right} of {quiz.size(mine, when)} right")
        for name, tries in sorted(mine.tries.items()):
            if quiz.is_quiz(name):
                continue
            day = mine.passed.get(name)
            count = "1 try" if tries == 1 else f"{tries} tries"
            click.echo(f"{name:<16} {'passed ' + day if day else 'not yet':<18} {count}")
        return
    everybody, left_out = progress.collect(collected)
    for path, why in left_out.items():
        click.echo(f"left out {clean(str(path))}: {why}", err=True)
    if not everybody:
        raise UsageError(f"no course.json in {collected}: participants send theirs, NAME.json")
    names = all_exercises()
    click.echo("1 participant" if len(everybody) == 1 else f"{len(everybody)} participants")
    for each in everybody:
        done = sum(name in each.passed for name in names)
        click.echo(f"{one_line(each.user, 60):<20} {done:>3} of {len(names)} passed")
    click.echo("\nexercise          passed  tried  tries each")
    for name in names:
        tried = [each.tries[name] for each in everybody if name in each.tries]
        if tried:
            passed = sum(name in each.passed for each in everybody)
            mean = sum(tried) / len(tried)
            click.echo(f"{name:<16}  {passed:>6}  {len(tried):>5}  {mean:>10.1f}")
    for line in quiz.class_results(everybody):
        click.echo(line)


def _own_progress() -> progress.Progress:
    """Load the user's progress. Raises FileError if its file exists but cannot be read."""
    path = progress.file()
    try:
        return progress.load(path)
    except OSError as error:
        raise FileError(UNREADABLE.format(path=path, why=with_remedy(error))) from None
    except ValueError:
        why = f"{progress.NO_PROGRESS}; the next exercise overwrites it"
        raise FileError(UNREADABLE.format(path=path, why=why)) from None


UNREADABLE = "cannot read your progress, {path}: {why}"
