"""`rankroom run train.py`: run a script on every rank, with the same record as a cell's."""

from __future__ import annotations

import re
import threading
import time
from functools import partial
from pathlib import Path
from typing import Any

import click

from rankroom.cli import runs_command
from rankroom.cli.answers import Answers, can_ask
from rankroom.cli.job_options import (
    INTERRUPTED_EXIT_STATUS,
    RANKS_ENDING,
    job_options,
    start_cluster,
)
from rankroom.cli.terminal import exit_on_signals
from rankroom.cluster import actions
from rankroom.cluster.base import AnyCluster
from rankroom.display.lines import Assembly, collapse
from rankroom.display.text import keep_colours, keep_lines
from rankroom.display.words import headline
from rankroom.errors import RankroomError, UnreadableRecordError, UsageError
from rankroom.record.compared import compared
from rankroom.record.model import Hang, Place, RunInfo
from rankroom.record.tail import Chunk, Tail
from rankroom.run.run import Run
from rankroom.system.exits import status_of

POLL_INTERVAL_S = 0.1  # poll interval; equal lines that ranks write within it are shown as one
INTERRUPT_TIMEOUT_S = 10.0  # for ranks to stop after an interrupt, before their cluster is stopped
READ_RETRY_TIMEOUT_S = 10.0  # for a record that cannot be read once its run is over
END_TIMEOUT_S = 10.0  # for a run to be over once its record is
_EXIT_STATUS = re.compile(r"-?\d+")


@click.command(context_settings={"allow_interspersed_args": False})
@click.option("--ranks", type=int, metavar="N", help="How many ranks. [default: one per GPU, or 2]")
@click.option("--site", "site_name", metavar="NAME", help="Run in a job on this site.")
@click.option("--preload", default="", metavar="MODULE,…", help="Import these before the fork.")
@click.option("--timeout", type=click.FloatRange(0, min_open=True), metavar="SECONDS",
              help="Interrupt the ranks after this.")  # fmt: skip
@click.option("--compare", multiple=True, metavar="RUN", help="Show its metrics beside RUN's.")
@click.option("-m", "--module", "is_module", is_flag=True,
              help="SCRIPT is the name of a module, as after `python -m`.")  # fmt: skip
@job_options
@click.argument("script")
@click.argument("arguments", nargs=-1, type=click.UNPROCESSED)
def run(
    ranks: int | None,
    site_name: str | None,
    preload: str,
    timeout: float | None,
    compare: tuple[str, ...],
    is_module: bool,
    script: str,
    arguments: tuple[str, ...],
    **job: Any,
) -> None:
    """Run SCRIPT with ARGUMENTS as a program of its own on every rank, and show what they write.

    In a job, the ranks run on the nodes that it was granted. Stalls are explained, ranks that wait
    for a failed rank are released, and the run has a timeline and a profile, as a cell has. The
    exit status is that of the rank that failed first. Ctrl-C interrupts the ranks, and ends them
    when pressed again; --timeout interrupts them, and ends them if they do not stop within 10 s.
    """
    if site_name is None and not is_module and not Path(script).is_file():
        raise UsageError(f"there is no file {script}")
    exit_on_signals()
    cluster = start_cluster(ranks, site_name, job, preload=preload, stays=False)
    try:
        path = script if site_name or is_module else str(Path(script).absolute())
        how = [path, list(arguments), *([True] if is_module else [])]
        source = CELL_TEMPLATE.format(how=", ".join(map(repr, how)))
        others, notes = compared(cluster.store, compare) if compare else ([], [])
        begun = cluster.run(
            source, name=Path(script).name, notes=notes, interactive=can_ask(), compare=others
        )
        status = _follow(cluster, begun, timeout)
    except KeyboardInterrupt:  # before the run has begun
        click.echo(RANKS_ENDING, err=True)
        status = INTERRUPTED_EXIT_STATUS
    finally:
        cluster.stop()
    raise SystemExit(status)


def _follow(cluster: AnyCluster, begun: Run, timeout: float | None) -> int:
    """Show what the ranks write until all have ended, and return the exit status."""
    reader, assembly = cluster.store.tail(begun.id), Assembly()
    until = float("inf") if timeout is None else time.monotonic() + timeout
    answers = Answers(
        lambda text, prompts: begun.answer(text, list(prompts)),
        complete=partial(actions.complete, begun.info),
    )
    data, pressed, is_late = b"", 0, False
    stuck: list[Place] | None = None
    while True:
        try:
            was_empty = not data
            chunk = _read(reader, begun)
            data += chunk.data
            if data and was_empty:  # other ranks may write the same in a moment
                time.sleep(POLL_INTERVAL_S)
                continue
            read, data = data, b""
            lines = [line for event in runs_command.events_in(read) for line in assembly.add(event)]
            runs_command.show_groups(collapse(lines))
            if not read and chunk.state != "running":
                break
            info = begun.info
            if not read and info.prompts:
                asked = time.monotonic()
                if not answers.ask(info):
                    time.sleep(POLL_INTERVAL_S)
                until += time.monotonic() - asked  # the wait for an answer does not count
                continue
            before, stuck = stuck, _stuck(info.hang)
            if info.hang is not None and stuck != before:
                click.echo(f"! {keep_colours(info.hang.text)}", err=True)
            if time.monotonic() > until:
                if is_late:  # a rank has not stopped after the interrupt
                    click.echo(RANKS_ENDING, err=True)
                    return INTERRUPTED_EXIT_STATUS
                is_late, until = True, time.monotonic() + INTERRUPT_TIMEOUT_S
                threading.Thread(target=_interrupt, args=(begun,), daemon=True).start()
            if not read:  # pause, as the ranks need the cores
                reader.pause(POLL_INTERVAL_S, until)
        except (KeyboardInterrupt, EOFError):
            pressed += 1
            if pressed > 1:
                click.echo(RANKS_ENDING, err=True)
                return INTERRUPTED_EXIT_STATUS
            click.echo("interrupting the ranks; press Ctrl-C again to end them", err=True)
            threading.Thread(target=_interrupt, args=(begun,), daemon=True).start()
    begun.wait(END_TIMEOUT_S)
    runs_command.show_groups(collapse(assembly.rest()))
    return _ended(cluster, begun)


def _interrupt(begun: Run) -> None:
    """Interrupt the run's ranks, or print why that is impossible."""
    try:
        begun.interrupt()
    except RankroomError as error:
        click.echo(str(error), err=True)


def _read(reader: Tail, begun: Run) -> Chunk:
    """Return the next lines; none while the record cannot be read, as a network file system may
    fail for a moment while the ranks go on. Raises the error if it lasts after the run is over."""
    until = float("inf")
    while True:
        try:
            return reader.read()
        except (UnreadableRecordError, OSError):
            if not begun.wait(POLL_INTERVAL_S):
                return Chunk(b"", reader.after, reader.after, "running")
            until = min(until, time.monotonic() + READ_RETRY_TIMEOUT_S)
            if time.monotonic() > until:
                raise
            time.sleep(POLL_INTERVAL_S)


def _stuck(hang: Hang | None) -> list[Place] | None:
    """Return which ranks wait, and for what, to tell whether a hang has changed. Ranks that compute
    are left out: their place is a different one each time."""
    if hang is None:
        return None
    return [place for place in hang.places if place.state in ("asks", "waits", "still")]


def _ended(cluster: AnyCluster, begun: Run) -> int:
    """Print how the run ended and what its ranks waited for, and return the exit status."""
    info = cluster.store.load(begun.id)
    errors = [each for each in begun.events if each["kind"] == "error"]
    first = next((e for e in errors if info.failure and e["rank"] == info.failure.rank), None)
    said = ""
    if first is not None and first["ename"] != "ScriptExit":
        said = "\n".join(map(str, first["traceback"]))
    elif first is not None and not _EXIT_STATUS.fullmatch(first["evalue"]):
        said = first["evalue"]
    if said:
        click.echo(keep_lines(said), err=True)
    click.echo(f"● {keep_colours(headline(info))}", err=True)
    for note in info.notes:
        click.echo(keep_colours(note), err=True)
    if words := begun.profile().diagnosis:
        click.echo(keep_colours(words), err=True)
    click.echo(RECORD_HINT.format(id=info.id), err=True)
    return _status(info)


def _status(info: RunInfo) -> int:
    if info.state == "done":
        return 0
    if info.state == "interrupted":
        return INTERRUPTED_EXIT_STATUS
    failure = info.failure
    if failure and failure.ename == "ScriptExit" and _EXIT_STATUS.fullmatch(failure.evalue):
        return int(failure.evalue) & 0xFF
    # A rank that left with status 0 in the middle of a run has failed the run all the same.
    return (status_of(failure.evalue) if failure and failure.ename == "RankLost" else 1) or 1


CELL_TEMPLATE = "from rankroom.rank.script import run as run_script\nrun_script({how})"
RECORD_HINT = (
    "run {id}: `rankroom runs show {id}`, or JupyterLab's sidebar, has its log and timeline"
)
