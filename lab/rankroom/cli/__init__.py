"""The command `rankroom`. Each group of commands is loaded when it is used."""

from __future__ import annotations

from importlib import import_module
from typing import Any

import click

from rankroom import __version__
from rankroom.errors import RankroomError, file_error
from rankroom.system.log_line import escape_what_cannot_be_shown

# Command X is the function X of X_command.py. The descriptions are shown by `rankroom --help`.
COMMANDS = {
    "cluster": "Clusters of ranks: list, start, stop, restart, resize, interrupt, …",
    "course": "The course: list its lessons, copy its notebooks, show progress.",
    "batch": "Run a notebook as a batch job, on a site or here.",
    "demo": "Run the quickstart notebook here and check that it trained.",
    "doctor": "List clusters and what ended clusters left behind, and clean it up.",
    "horovod": "Build Horovod for this environment, and prove it works.",
    "lab": "JupyterLab on a compute node, opened here.",
    "jobs": "The jobs that were submitted from here, and their state.",
    "run": "Run a script on every rank, with a cell's log, timeline and profile.",
    "runs": "The records of runs: list, show, tail, debug, export, prune, …",
    "site": "Sites to run on: list, show, check.",
    "workshop": "Workshops: open, join, watch who needs help, end.",
    "timeline": "Show timelines of other programs: Horovod's, Chrome's, PyTorch's.",
}


class LazyGroup(click.Group):
    """The commands in COMMANDS, imported when called; a RankroomError is shown as one line."""

    def parse_args(self, ctx: click.Context, args: list[str]) -> list[str]:
        escape_what_cannot_be_shown()  # first, as super().parse_args() may print the --help text
        return super().parse_args(ctx, args)

    def list_commands(self, ctx: click.Context) -> list[str]:
        return sorted(COMMANDS)

    def get_command(self, ctx: click.Context, cmd_name: str) -> click.Command | None:
        if cmd_name not in COMMANDS:
            return None
        module = import_module(f"rankroom.cli.{cmd_name}_command")
        command: click.Command = getattr(module, cmd_name)
        return command

    def format_commands(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        with formatter.section("Commands"):
            formatter.write_dl(sorted(COMMANDS.items()))

    def resolve_command(
        self, ctx: click.Context, args: list[str]
    ) -> tuple[str | None, click.Command | None, list[str]]:
        if args and args[0] not in COMMANDS:
            ctx.fail(f"no command {args[0]!r}; valid are {', '.join(self.list_commands(ctx))}")
        return super().resolve_command(ctx, args)

    def invoke(self, ctx: click.Context) -> Any:
        try:
            return super().invoke(ctx)
        except RankroomError as error:
            from rankroom.display.text import keep_lines  # imported late: few commands need it

            raise click.ClickException(keep_lines(str(error))) from None
        except OSError as error:
            if (plain := file_error(error)) is None:
                raise
            raise click.ClickException(str(plain)) from None


@click.group(cls=LazyGroup)
@click.version_option(__version__, prog_name="rankroom")
def main() -> None:
    """One notebook cell on every rank, with each rank's log and timeline under it."""
