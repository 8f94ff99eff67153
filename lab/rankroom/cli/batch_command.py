"""`rankroom batch`: a notebook as a batch job."""

from __future__ import annotations

import asyncio
import os
import shutil
from pathlib import Path
from typing import Any

import click

from rankroom import config
from rankroom.batch import batch_script, notebook_script
from rankroom.batch.batch_folder import BatchFailed, BatchFolder, Progress, named
from rankroom.batch.batch_job import BatchJob, files, follow
from rankroom.cli.job_options import INTERRUPTED_EXIT_STATUS, job_options, refuse_job_options
from rankroom.cli.terminal import Terminal, exit_on_signals
from rankroom.errors import UsageError
from rankroom.jupyter_job.follow import keep
from rankroom.record.store import Store
from rankroom.scheduler import site as sites
from rankroom.scheduler.same_machine import is_here
from rankroom.scheduler.scheduler_client import Scheduler
from rankroom.scheduler.site import Site
from rankroom.scheduler.submitted_jobs import all_submitted
from rankroom.ssh.connection import SshConnection
from rankroom.ssh.host import Host, LocalHost, place
from rankroom.system import commands as shell

INTERRUPT_GRACE_S = 30.0  # for a notebook that is interrupted here to end its ranks and be saved


@click.command()
@click.argument("notebook", required=False, type=click.Path(dir_okay=False, path_type=Path))
@click.option("--site", "name", show_default="local", metavar="NAME",
              help="The site to run on; `rankroom site list` lists them.")  # fmt: skip
@job_options
@click.option("--cwd", metavar="DIR", help="Where the cells run. [default: the notebook's]")
@click.option("-o", "--output", type=click.Path(dir_okay=False, path_type=Path),
              help="The executed notebook. [default: beside the notebook]")  # fmt: skip
@click.option("--wait", is_flag=True, help="Wait until the job is over; exit with 1 if it failed.")
@click.option("--dry-run", is_flag=True, help="Print both scripts, and submit nothing.")
@click.option("--collect", metavar="JOB", help="Copy a job's results here, once it is over.")
@click.option("--here", is_flag=True, help="This machine is the site's login node.")
def batch(
    notebook: Path | None, name: str | None, cwd: str | None, output: Path | None, wait: bool,
    dry_run: bool, collect: str | None, here: bool, **options: Any,
) -> None:  # fmt: skip
    """Run NOTEBOOK as a batch job: the same cells in the same order.

    Cells with %%distributed run on the ranks of the job, the others in one kernel. The job ends at
    the first cell that fails, with exit status 1. The executed notebook and the records are what
    they would be in JupyterLab. Without --site, the notebook runs on this machine, now.
    """
    if collect is not None:
        if notebook or cwd or wait or dry_run or here or any(options.values()):
            raise UsageError(COLLECTS_ONLY)
        asyncio.run(_collect(collect, name, output))
        return
    if notebook is None:
        raise UsageError("name a notebook: `rankroom batch NOTEBOOK`, or --collect JOB")
    site = sites.load(name or "local").asking(**options)
    asked = _BatchRequest(site, config.current_folder() / notebook, cwd, output)
    if site.scheduler == "none":
        refuse_job_options(options, name)
        _run_here(asked, dry_run)
        return
    at = place("" if here or is_here(site) else site.login)
    if dry_run:
        click.echo(asked.text(folder_of(site.scratch, asked.name), bool(at.name)), nl=False)
        return
    asyncio.run(_submit(asked, at, wait))


class _BatchRequest:
    """A request to run a notebook on a site."""

    def __init__(self, site: Site, notebook: Path, cwd: str | None, output: Path | None) -> None:
        self.site = site
        self.notebook = notebook_script.read(notebook)
        self.name = named(notebook)
        self.copy = _target(output or notebook.with_name(f"{self.name}.ipynb"))
        ranks = site.job.nodes * site.job.ranks_per_node  # 0: as many as the nodes have
        granted = site.scheduler != "none"
        self.script = notebook_script.script(self.notebook, notebook.name, granted, ranks)
        self._cwd = cwd
        self._beside = notebook.parent

    def job(self, folder: BatchFolder, remote: bool) -> str:
        """Return the job's script. A `remote` job does not see this machine's files, so it does not
        copy the executed notebook here. Raises UsageError for a --cwd that is not absolute there.
        """
        cwd = self._cwd or ("" if remote else str(self._beside))
        if not remote:
            cwd = str(config.current_folder() / os.path.expanduser(cwd))  # noqa: PTH111 - no error
        elif cwd and not cwd.startswith(("/", "~/")):
            raise UsageError(CWD_NOT_ABSOLUTE.format(cwd=cwd))
        copy = "" if remote else str(self.copy)
        if self.site.scheduler == "none":
            return batch_script.local_script(self.site, folder, cwd, copy)
        commands = batch_script.commands(self.site, folder, cwd, copy)
        return Scheduler(self.site, LocalHost()).script(self.name, str(folder.path), commands)

    def text(self, folder: BatchFolder, remote: bool) -> str:
        """Return both scripts as text to be shown."""
        parts = {folder.script: self.script, folder.job: self.job(folder, remote)}
        return "\n".join(f"── {path}\n{text}" for path, text in parts.items())


def _run_here(asked: _BatchRequest, dry_run: bool) -> None:
    """Run the job on this machine now, without a scheduler."""
    folder = folder_of(str(config.home()), asked.name)
    if dry_run:
        click.echo(asked.text(folder, False), nl=False)
        return
    config.make_private(Path(folder.path.parent))
    sent = BatchJob(LocalHost(), folder)
    scripts = files(folder, asked.notebook, asked.script, asked.job(folder, False))
    asyncio.run(sent.put(scripts))
    exit_on_signals()
    try:
        done = shell.run_sync(
            ["bash", str(folder.job)], on_line=click.echo, grace=INTERRUPT_GRACE_S
        )
    except KeyboardInterrupt:
        progress = asyncio.run(sent.progress())
        is_told = progress.state in ("done", "failed")
        click.echo(progress.words if is_told else INTERRUPTED.format(state=progress.words))
        if progress.cell:
            click.echo(f"the executed notebook: {progress.copy or folder.executed}")
        raise SystemExit(INTERRUPTED_EXIT_STATUS) from None
    progress = asyncio.run(sent.progress())
    if progress.state not in ("done", "failed"):
        raise BatchFailed(NO_END.format(status=done.returncode, said=done.tail()))
    if progress.state == "done" and progress.copy:
        # Its results are elsewhere by now. A failed job's folder stays: it holds what was run.
        shutil.rmtree(folder.path, ignore_errors=True)
    _judge(progress)


async def _submit(asked: _BatchRequest, at: Host, wait: bool) -> None:
    await at.open()
    scheduler = Scheduler(asked.site, at)
    try:
        folder = BatchFolder(f"{await scheduler.own_folder('batch')}/{asked.name}")
        sent = BatchJob(at, folder)
        script = asked.job(folder, bool(at.name))
        await sent.put(files(folder, asked.notebook, asked.script, script))
        with Terminal().interrupt_event() as pressed:
            # Not cancelled by Ctrl-C: the scheduler may accept the job all the same.
            number = await scheduler.submit(script, copy=str(asked.copy))
            click.echo(SUBMITTED.format(job=number, site=asked.site.name, folder=folder.path))
            if pressed.is_set():
                await scheduler.cancel(number)
                click.echo(CANCELLED.format(job=number))
                raise SystemExit(INTERRUPTED_EXIT_STATUS)
        if not wait:
            click.echo(_later(at, number, asked.copy))
            return
        await _finish(sent, scheduler, number, asked.copy)
    finally:
        await at.close()


async def _collect(number: str, name: str | None, output: Path | None) -> None:
    """Wait for a job that was submitted from here, and fetch its results."""
    found = [each for each in all_submitted() if each.job == number and name in (None, each.site)]
    if not found:
        raise UsageError(NO_JOB.format(job=number))
    if len(found) > 1:
        raise UsageError(
            AT_SEVERAL_SITES.format(job=number, sites=", ".join(each.site for each in found))
        )
    copy = _target(output or Path(found[0].copy or f"{found[0].name}.ipynb"))
    site = sites.load(found[0].site)
    at = place(found[0].login)
    await at.open()
    try:
        scheduler = Scheduler(site, at)
        sent = BatchJob(at, folder_of(await scheduler.folder(), found[0].name))
        await _finish(sent, scheduler, number, copy)
    finally:
        await at.close()


async def _finish(sent: BatchJob, scheduler: Scheduler, number: str, copy: Path) -> None:
    terminal = Terminal()
    following = asyncio.ensure_future(follow(sent, scheduler, number, terminal.show))
    tasks: list[asyncio.Future[Any]] = [following]
    if isinstance(sent.place, SshConnection):
        # If login is refused, it retries less and less often: each try may count against the user.
        tasks.append(asyncio.ensure_future(keep(sent.place, terminal)))
    try:
        progress = await following
    except asyncio.CancelledError:  # Ctrl-C
        terminal.say(GOES_ON.format(job=number, later=_later(sent.place, number, copy)))
        raise SystemExit(INTERRUPTED_EXIT_STATUS) from None
    finally:
        for task in tasks:
            task.cancel()
        terminal.clear()
    if sent.place.name and progress.cell:
        try:
            runs = await sent.bring(progress, copy, Store())
        except BatchFailed:
            click.echo(progress.words, err=True)  # the job's own outcome matters first
            raise
        click.echo(f"the executed notebook: {copy}")
        click.echo(
            "1 record was brought here" if runs == 1 else f"{runs} records were brought here"
        )
    elif progress.cell:
        click.echo(f"the executed notebook: {progress.copy or sent.folder.executed}")
    _judge(progress)


def _target(path: Path) -> Path:
    """Return the absolute path for the executed notebook. Raises UsageError if its folder does not
    exist, before any cell runs."""
    if not path.absolute().parent.is_dir():
        raise UsageError(NO_TARGET.format(folder=path.parent))
    return path.absolute()


def _later(at: Host, number: str, copy: Path) -> str:
    """Return the sentence that says how to get the job's results once it is over."""
    return COLLECT_HINT.format(job=number) if at.name else NOTEBOOK_HINT.format(copy=copy)


def _judge(progress: Progress) -> None:
    """Print the job's outcome; raises BatchFailed if it did not succeed."""
    if progress.state != "done":
        raise BatchFailed(progress.words)
    click.echo(progress.words)


def folder_of(scratch: str, name: str) -> BatchFolder:
    """Return the folder of the batch job called `name`."""
    return BatchFolder(f"{scratch}/batch/{name}")


SUBMITTED = "job {job} was submitted at {site}; its files are in {folder}"
COLLECT_HINT = (
    "`rankroom batch --collect {job}` brings its notebook and records here, once it is over"
)
CANCELLED = "job {job} was cancelled, as you interrupted its submission"
GOES_ON = "job {job} was not cancelled: {later}"
NOTEBOOK_HINT = "the executed notebook will be {copy}; `rankroom jobs` says how the job stands"
NO_JOB = "job {job} was not submitted from here: `rankroom jobs --all` lists those that were"
AT_SEVERAL_SITES = (
    "job {job} exists at several sites ({sites}): choose one with `rankroom batch --collect {job} "
    "--site NAME`"
)
COLLECTS_ONLY = "--collect JOB only copies what a job has left: besides it, give --site or -o only"
NO_TARGET = "there is no folder {folder} for the executed notebook: make it, or say -o FILE"
CWD_NOT_ABSOLUTE = "--cwd is a folder on the site: {cwd} has to begin with / or ~/"
INTERRUPTED = "the batch job was interrupted; its last state: {state}"
NO_END = (
    "the job ended with exit status {status} before all cells had run; the end of its output:\n"
    "{said}"
)
