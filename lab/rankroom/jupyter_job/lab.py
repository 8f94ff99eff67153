"""A lab: a job that runs JupyterLab on a compute node, and the tunnel to it from here."""

from __future__ import annotations

import asyncio
import contextlib
import re
import shlex
import socket
import time
from dataclasses import replace

from rankroom.errors import LabError, RankroomError, SchedulerError, SshError
from rankroom.jupyter_job import endpoint, lab_script
from rankroom.jupyter_job.endpoint import Endpoint
from rankroom.jupyter_job.saved_labs import SavedLab, all_saved
from rankroom.scheduler import own_folder
from rankroom.scheduler.allocation import expand
from rankroom.scheduler.jobs import JobStatus
from rankroom.scheduler.scheduler_client import LISTING_DELAY_S, Scheduler
from rankroom.ssh.connection import SshConnection
from rankroom.system import commands

COMMAND_TIMEOUT_S = 20.0
CANCEL_TIMEOUT_S = 60.0  # for a cancelled job to end
LOOPBACK = "127.0.0.1"
LOG_PATTERNS = '"lab-$2.log" "$2".*.OU'  # the log's name under Slurm, and under PBS


class Lab:
    """The job `saved.job` of a site; `labs` is the folder there with the files of all labs."""

    def __init__(self, scheduler: Scheduler, labs: str, saved: SavedLab) -> None:
        self.scheduler = scheduler
        self.site = scheduler.site
        self.labs = labs
        self.saved = saved
        self.job = saved.job
        self.page = "lab"  # the path of the page to open
        self._tunnel: SshConnection | None = None  # the connection that carries the tunnel

    @classmethod
    async def submit(cls, scheduler: Scheduler) -> Lab:
        """Submit the job; if the caller is cancelled while it waits for the reply, cancel the job.

        Raises LabError if that fails.
        """
        labs = await folder(scheduler)
        text = scheduler.script(
            lab_script.JOB_NAME, labs, lab_script.commands(scheduler.site, labs)
        )
        others = await scheduler.find(lab_script.JOB_NAME)
        submitting = asyncio.ensure_future(scheduler.submit(text, others=others))
        try:
            job = await asyncio.shield(submitting)
        except asyncio.CancelledError:
            try:
                job = await submitting
            except RankroomError as error:  # perhaps it is unknown whether there is a job
                raise LabError(str(error)) from None
            try:
                await scheduler.cancel(job)
            except RankroomError as error:
                site = scheduler.site.name
                raise LabError(MAY_RUN.format(job=job, site=site, error=error)) from None
            raise
        lab = cls(scheduler, labs, SavedLab(scheduler.site.name, job, 0, time.time()))
        lab.saved.write()
        return lab

    async def status(self) -> JobStatus:
        """Return the job's state. Raises SchedulerError and SshError while that is not known."""
        return await self.scheduler.status(self.job)

    async def endpoint(self) -> Endpoint | None:
        """Return where the server listens; None until it does. Raises SchedulerError if the site's
        file system does not answer."""
        done = await self._run_at_site('enter "$1/$2" && cat server.json')
        if done.timed_out or done.returncode == own_folder.STATUS_UNKNOWN:
            raise self.scheduler.failed(done)
        return endpoint.read(done.output) if done.ok else None

    async def said(self) -> str:
        """Return the end of the log of a job that has failed; empty if it has not. Raises
        SchedulerError if that cannot be told now."""
        done = await self._run_at_site(f'enter "$1" && cat {LOG_PATTERNS} 2>/dev/null | tail -n 20')
        if done.timed_out or done.returncode == own_folder.STATUS_UNKNOWN:
            raise self.scheduler.failed(done)
        said = done.output.strip()
        return "" if said.endswith(lab_script.LAST_LOG_LINE) else said

    async def cancel(self) -> None:
        """Cancel the job, wait until it has ended, and remove the files it may have left. Raises
        LabError if it does not end within CANCEL_TIMEOUT_S."""
        await self.scheduler.cancel(self.job)
        deadline = time.monotonic() + CANCEL_TIMEOUT_S
        while not await self._has_ended():
            if time.monotonic() > deadline:
                about = {"seconds": int(CANCEL_TIMEOUT_S), "list": self.scheduler.kind.LIST}
                raise LabError(STAYS.format(job=self.job, **about))
            await asyncio.sleep(0.2)
        await self.clear()
        self.saved.remove()

    async def _has_ended(self) -> bool:
        with contextlib.suppress(SchedulerError, SshError):
            return (await self.status()).state in ("ended", "gone")
        return False

    async def clear(self, log: bool = True) -> None:
        """Remove files left by a job that is over: it removes them itself unless it was killed."""
        await self._run_at_site(
            'enter "$1" && rm -rf "$2"' + (f" && rm -f {LOG_PATTERNS}" if log else "")
        )

    async def tunnel(self, to: Endpoint, nodes: str, asked: int = 0) -> SshConnection:
        """Forward a port of this machine to the server; return the connection that carries it.

        The port, stored as `saved.port`, differs from `asked` if that is taken. Raises SshError.
        """
        await self.close()
        port = free_port(asked or self.saved.port or to.port)
        connection = self._connection_to(nodes)
        await connection.open()
        await connection.forward(port, to.host, to.port)
        self._tunnel = connection
        self.saved = replace(self.saved, port=port)
        self.saved.write()
        return connection

    def _connection_to(self, nodes: str) -> SshConnection:
        """Return the connection from whose far end the server can be reached."""
        login = self.scheduler.place
        assert isinstance(login, SshConnection)
        return SshConnection(login.name, node=expand(nodes)[0]) if self.site.ssh_to_nodes else login

    def command(self, to: Endpoint, nodes: str) -> str:
        """Return what a user of the login node has to type on a laptop to reach the server."""
        login = self.site.login or socket.getfqdn()
        way = ["-J", login, expand(nodes)[0]] if self.site.ssh_to_nodes else [login]
        port = self.saved.port or to.port
        return shlex.join(["ssh", "-N", "-L", f"{port}:{to.host}:{to.port}", *way])

    async def close(self) -> None:
        """Close the tunnel, and remove the redirect page that leads through it."""
        self.saved.page.unlink(missing_ok=True)
        if self._tunnel is not None:
            await self._tunnel.close()
            self._tunnel = None

    async def _run_at_site(self, code: str) -> commands.Completed:
        """Run shell `code` at the site: $1 is the folder `labs`, $2 the job."""
        begin = f'{own_folder.PRESENT_FUNCTION}present "$1" || exit 0\n'
        code = own_folder.marked(f"{begin}{own_folder.ENTER_FUNCTION}{code}")
        words = ["bash", "-c", code, "bash", self.labs, self.job]
        done = await self.scheduler.place.run(words, timeout=COMMAND_TIMEOUT_S)
        return replace(done, output=own_folder.said(done.output))


async def folder(scheduler: Scheduler) -> str:
    """Return the folder of labs' files at the site, private to the user. Raises NotPrivateError."""
    return await scheduler.own_folder("labs")


async def alive(scheduler: Scheduler, labs: str) -> list[str]:
    """Return the site's jobs that run or will run a lab, wherever they were started, newest first.

    Files of other labs that were saved on this machine are removed, here and at the site, except
    those of a job so new that the scheduler need not list it yet. The folder may also hold labs of
    another site, which this site's scheduler does not know.
    """
    known = {each.job: each for each in all_saved(scheduler.site.name)}
    done = await scheduler.place.run(["ls", "-1", labs], timeout=COMMAND_TIMEOUT_S)
    if not done.ok:
        raise scheduler.failed(done)
    there = {each for each in done.output.split() if re.fullmatch(r"\d+", each)}
    jobs = sorted(there | set(known), key=int, reverse=True)
    found = await scheduler.ask(jobs) if jobs else {}
    for job, saved in known.items():
        is_new = 0 <= time.time() - saved.created < LISTING_DELAY_S
        if found[job].state == "ended" or (found[job].state == "gone" and not is_new):
            await Lab(scheduler, labs, saved).clear(log=False)
            saved.remove()
    return [job for job in jobs if found[job].state not in ("ended", "gone")]


def free_port(wanted: int) -> int:
    """Return a free port of loopback: `wanted` if possible. Raises LabError if there is none."""
    for port in (wanted, 0):
        with contextlib.suppress(OSError):
            return _bound(port)
    raise LabError(NO_PORT)


def demand_free(port: int) -> None:
    """Raise LabError unless `port` of loopback can be bound."""
    try:
        _bound(port)
    except PermissionError:
        raise LabError(PORT_DENIED.format(port=port)) from None
    except OSError:
        raise LabError(PORT_TAKEN.format(port=port)) from None


def _bound(port: int) -> int:
    """Bind `port` of loopback (0: any) and release it again; return its number. Raises OSError."""
    with socket.socket(socket.AF_INET, socket.SOCK_STREAM) as probe:
        probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        probe.bind((LOOPBACK, port))
        return int(probe.getsockname()[1])


PORT_DENIED = "port {port} is reserved for administrators: choose one above 1023 with --port"
MAY_RUN = (
    "job {job} was submitted, and could not be cancelled: `rankroom jobs --cancel {job} --site "
    "{site}` tries again ({error})"
)
PORT_TAKEN = "port {port} of this machine is taken: choose another with --port, or leave it out"
NO_PORT = "this machine has no free port"
STAYS = (
    "job {job} was cancelled but has not ended within {seconds} s: check its state with "
    "`{list}` at the site"
)
