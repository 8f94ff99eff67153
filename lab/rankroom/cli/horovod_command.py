"""`rankroom horovod build|check|edits`."""

from __future__ import annotations

import sys
import time

import click

from rankroom.cli.terminal import exit_on_signals
from rankroom.horovod_build.build import build as build_wheel
from rankroom.horovod_build.check import check as check_installed
from rankroom.horovod_build.plan import ALL_EDITS, Plan


@click.group()
def horovod() -> None:
    """Build Horovod for the frameworks of this environment, and prove that it works."""


@horovod.command()
@click.option("--gpu/--no-gpu", default=None, help="With CUDA and NCCL [default: with a GPU here].")
@click.option("--jobs", type=click.IntRange(1), help="Compile this many files at a time.")
@click.option("--force", is_flag=True, help="Build again, whatever is cached or installed.")
def build(gpu: bool | None, jobs: int | None, force: bool) -> None:
    """Install Horovod, built for this environment's PyTorch and TensorFlow."""
    exit_on_signals()  # to end the compilers, which are in a process group of their own
    progress = Progress(sys.stderr.isatty())
    try:
        done = build_wheel(gpu, jobs=jobs, force=force, report=progress, decided=_say)
    finally:
        progress.end()
    click.echo(done)


def _say(plan: Plan) -> None:
    click.echo(f"Horovod for {plan.names}, for {'GPUs' if plan.gpu else 'the CPU'}: {plan.why}")


@horovod.command()
@click.option("--timeout", type=float, default=120.0, help="Seconds each proof may take.")
def check(timeout: float) -> None:
    """Show what is built in, and prove that it works by an allreduce on two ranks."""
    if not check_installed(click.echo, timeout=timeout):
        sys.exit(1)


@horovod.command()
def edits() -> None:
    """List what Rankroom changes in Horovod, and why."""
    for edit in ALL_EDITS:
        click.echo(f"{edit.id:28} {edit.file}\n{'':28} {edit.reason}")


class Progress:
    """A build's progress: a line that is rewritten on a terminal, else a line per ten percent."""

    def __init__(self, terminal: bool) -> None:
        self._terminal = terminal
        self._start = time.monotonic()
        self._shown: tuple[str, int] | None = None

    def __call__(self, phase: str, percent: int | None) -> None:
        step = -1 if percent is None else percent if self._terminal else percent // 10 * 10
        if (phase, step) == self._shown:
            return
        self._shown = (phase, step)
        seconds = int(time.monotonic() - self._start)
        done = "" if percent is None else f" {percent} %"
        text = f"{seconds // 60}:{seconds % 60:02}  {phase}{done}"
        click.echo(f"\r\033[K{text}" if self._terminal else text, err=True, nl=not self._terminal)

    def end(self) -> None:
        if self._terminal and self._shown:
            click.echo("\r\033[K", err=True, nl=False)
