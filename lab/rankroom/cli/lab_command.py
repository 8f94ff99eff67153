"""`rankroom lab`: JupyterLab on a compute node, opened here."""

from __future__ import annotations

import asyncio
import contextlib
import shlex
import webbrowser
from collections.abc import Callable
from typing import Any

import click

from rankroom.cli.job_options import job_options
from rankroom.cli.terminal import Terminal
from rankroom.errors import LabError, NotPrivateError, RankroomError, UsageError, UselessJob
from rankroom.jupyter_job import lab_script, saved_labs
from rankroom.jupyter_job.follow import POLL_INTERVAL_S, JobOver, follow
from rankroom.jupyter_job.lab import Lab, alive, demand_free, folder
from rankroom.jupyter_job.saved_labs import SavedLab
from rankroom.scheduler import site as sites
from rankroom.scheduler.same_machine import is_here
from rankroom.scheduler.scheduler_client import Scheduler
from rankroom.ssh.host import Host, place

NEWEST = "newest"


@click.command()
@click.option(
    "--site", "name", metavar="NAME", help="The site to run on; `rankroom site list` lists them."
)
@job_options
@click.option("--attach", is_flag=False, flag_value=NEWEST, metavar="[JOB]",
              help="Attach to a running lab, wherever it was started.")  # fmt: skip
@click.option("--port", type=click.IntRange(1, 65535),
              help="The local port of the tunnel to it.")  # fmt: skip
@click.option("--no-browser", is_flag=True, help="Only print the address.")
@click.option("--dry-run", is_flag=True, help="Print the job's script, and submit nothing.")
@click.option("--here", is_flag=True, help="This machine is the site's login node.")
@click.pass_context
def lab(
    context: click.Context, /, name: str | None, attach: str | None, port: int | None,
    no_browser: bool, dry_run: bool, here: bool, **options: Any,
) -> None:  # fmt: skip
    """Start JupyterLab on a compute node of a site, and open it here.

    On your laptop it waits for the job, and opens the tunnel and the page. On the login node it
    prints what to type on the laptop. Ctrl-C asks whether to leave the job running or to cancel it.
    """
    last = _saved(attach, name)
    name = name or (last.site if last else None)
    if name is None:
        raise UsageError(NAME_A_SITE.format(names=", ".join(sorted(sites.files()))))
    site = sites.load(name).asking(**options)
    if site.scheduler == "none":
        raise UsageError(NO_SCHEDULER.format(name=name))
    at = place("" if here or is_here(site) else site.login)
    scheduler = Scheduler(site, at)
    if dry_run:
        labs = f"{site.scratch}/labs"
        click.echo(
            scheduler.script(lab_script.JOB_NAME, labs, lab_script.commands(site, labs)), nl=False
        )
        return
    command = LabCommand(scheduler, at, Terminal(), not no_browser, port or 0)
    try:
        asyncio.run(command.run(attach, last))
    except NoneRuns:
        # Saved labs that are over have been removed by now; one at another site may still run.
        if context.params["name"] or _saved(attach, None) is None:
            raise
        context.invoke(lab, **context.params)


class NoneRuns(LabError):
    """There is no lab to attach to at a site."""


class LabCommand:
    """One call of `rankroom lab`: its work, and what Ctrl-C does to it. `page` is the path that is
    opened in JupyterLab; `submitted` is called with the lab once its job is submitted; `again` is
    the command shown for attaching again. Once open, its job is polled every `look_s` seconds."""

    def __init__(
        self, scheduler: Scheduler, at: Host, terminal: Terminal, browser: bool, port: int,
        page: str = "lab", submitted: Callable[[Lab], None] = lambda lab: None, again: str = "",
        look_s: float = POLL_INTERVAL_S,
    ) -> None:  # fmt: skip
        self._scheduler = scheduler
        self._place = at
        self._terminal = terminal
        self._browser = browser
        self._port = port
        self._page = page
        self._submitted = submitted
        self._again = again
        self._look_s = look_s
        self._lab: Lab | None = None
        self._cancelled = False

    async def run(self, attach: str | None, last: SavedLab | None) -> None:
        work = asyncio.create_task(self._work(attach, last))
        with self._terminal.interrupt_event() as pressed:
            try:
                while not work.done():
                    await _first(work, pressed.wait())
                    if not work.done():
                        await self._pressed(work, pressed)
                await work
            except asyncio.CancelledError:
                if not self._cancelled:
                    self._terminal.say(self._left() if self._lab else "nothing was started")
            except JobOver:
                raise
            except UselessJob:
                if self._lab and attach is None:  # a lab that was only attached to stays
                    await self._cancel(pressed)
                raise
            except RankroomError:
                # Keep the job: the error may pass, and a new job would have to queue again.
                if self._lab:
                    self._terminal.say(self._left())
                raise
            finally:
                self._terminal.clear()

    async def _work(self, attach: str | None, last: SavedLab | None) -> None:
        if self._port and self._place.name:
            demand_free(self._port)
        await self._place.open()
        if attach is None:
            self._terminal.show(f"submitting a job at {self._scheduler.site.name}")
            self._lab = await Lab.submit(self._scheduler)
            self._terminal.say(f"job {self._lab.job} was submitted at {self._scheduler.site.name}")
            self._submitted(self._lab)
        else:
            self._lab = await self._find(attach, last)
        self._lab.page = self._page
        self._terminal.page = self._open
        await follow(self._lab, self._terminal, self._port, self._look_s)

    async def _find(self, attach: str, last: SavedLab | None) -> Lab:
        labs = await folder(self._scheduler)
        if attach == NEWEST:
            there = await alive(self._scheduler, labs)
            if not there:
                raise NoneRuns(NONE_RUNS.format(site=self._scheduler.site.name))
            attach = last.job if last and last.job in there else there[0]
        if not last or last.job != attach:
            last = SavedLab(self._scheduler.site.name, attach)
        lab = Lab(self._scheduler, labs, last)
        if (await lab.status()).state in ("ended", "gone"):
            last.remove()
            raise LabError(NO_SUCH.format(job=attach, site=self._scheduler.site.name))
        return lab

    def _open(self, url: str) -> None:
        self._terminal.say(f"JupyterLab: {url}")
        if self._browser and self._place.name and self._lab:
            # The address is printed anyway, if the page that leads to it cannot be written.
            with contextlib.suppress(webbrowser.Error, OSError, NotPrivateError):
                webbrowser.open(self._lab.saved.write_page(url).as_uri())

    async def _pressed(self, work: asyncio.Task[None], pressed: asyncio.Event) -> None:
        """Ask whether to cancel the job; another Ctrl-C, or no answer, leaves it running."""
        pressed.clear()
        if self._lab is None:
            work.cancel()
            await asyncio.wait([work])
            return
        question = f"job {self._lab.job}: leave it running, or cancel it? [l/c] "
        answering = asyncio.ensure_future(self._terminal.ask(question, {"l", "c"}))
        await _first(work, pressed.wait(), answering)
        if work.done():
            answering.cancel()
            return
        answer = answering.result() if answering.done() else "l"
        answering.cancel()
        work.cancel()
        await asyncio.wait([work])
        if answer == "c":
            await self._cancel(pressed)

    async def _cancel(self, pressed: asyncio.Event) -> None:
        """Cancel the job and wait for its end; another Ctrl-C stops the wait."""
        assert self._lab is not None
        pressed.clear()
        self._terminal.show(f"job {self._lab.job} is being cancelled")
        ending = asyncio.ensure_future(self._lab.cancel())
        await _first(ending, pressed.wait())
        ending.cancel()
        try:
            await ending
        except asyncio.CancelledError:
            self._terminal.say(NOT_WAITED.format(job=self._lab.job))
        except RankroomError as error:
            self._terminal.say(NOT_CANCELLED.format(job=self._lab.job, error=error))
        else:
            self._terminal.say(f"job {self._lab.job} was cancelled, and nothing is left of it")
        self._cancelled = True

    def _left(self) -> str:
        assert self._lab is not None
        job, site = self._lab.job, self._scheduler.site.name
        again = self._again or f"rankroom lab --site {site} --attach {job}"
        cancel = shlex.join([*self._scheduler.kind.CANCEL, job])
        return JOB_LEFT_RUNNING.format(job=job, again=again, cancel=cancel)


def _saved(job: str | None, name: str | None) -> SavedLab | None:
    found = saved_labs.all_saved(name or "") if job else []
    return next((each for each in found if job in (NEWEST, each.job)), None)


async def _first(*waited: Any) -> None:
    """Wait until the first of `waited` is done. Coroutines among them are cancelled then; tasks
    and futures go on."""
    tasks = [asyncio.ensure_future(each) for each in waited]
    try:
        await asyncio.wait(tasks, return_when=asyncio.FIRST_COMPLETED)
    finally:
        for task, each in zip(tasks, waited, strict=True):
            if task is not each:
                task.cancel()


NAME_A_SITE = "choose a site with --site NAME, one of {names}"
NO_SCHEDULER = "{name} has no scheduler: `jupyter lab` starts JupyterLab on this machine"
NONE_RUNS = "no lab of yours runs at {site}: `rankroom lab --site {site}` starts one"
NO_SUCH = "you have no job {job} at {site}, or it is over: `rankroom lab --attach` looks for others"
NOT_CANCELLED = "job {job} could not be cancelled: {error}"
NOT_WAITED = "job {job} may still run: `rankroom jobs` says how it stands"
JOB_LEFT_RUNNING = (
    "job {job} was not cancelled: `{again}` attaches to it again, `{cancel}` at the site cancels it"
)
