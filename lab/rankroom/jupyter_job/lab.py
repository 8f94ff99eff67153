"""A lab: the job that runs JupyterLab on a compute node, and the way to it from here."""

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
from rankroom.scheduler.scheduler_client import UNSEEN_S, Scheduler
from rankroom.ssh.connection import SshConnection
from rankroom.system import commands

CALL_S = 20.0
END_S = 60.0  # for a job to end that was cancelled
LOOPBACK = "127.0.0.1"
LOGS = '"lab-$2.log" "$2".*.OU'  # Slurm's, and PBS's own name for it


class Lab:
    """The job `saved.job` of a site; `labs` is the folder there that holds servers' files."""

    def __init__(self, scheduler: Scheduler, labs: str, saved: SavedLab) -> None:
        self.scheduler = scheduler
        self.site = scheduler.site
        self.labs = labs
        self.saved = saved
        self.job = saved.job
        self.page = "lab"  # what is opened of it
        self._tunnel: SshConnection | None = None  # that the tunnel goes through

    @classmethod
    async def submit(cls, scheduler: Scheduler) -> Lab:
        """Submit the job; it is cancelled again if the caller is while it waits for the answer.

        Raises LabError if it should be, and cannot.
        """
        labs = await folder(scheduler)
        text = scheduler.script(lab_script.NAME, labs, lab_script.commands(scheduler.site, labs))
        others = await scheduler.find(lab_script.NAME)
        submitting = asyncio.ensure_future(scheduler.submit(text, others=others))
        try:
            job = await asyncio.shield(submitting)
        except asyncio.CancelledError:
            job = ""
            with contextlib.suppress(RankroomError):
                job = await submitting
            try:
                if job:
                    await scheduler.cancel(job)
            except RankroomError as error:
                site = scheduler.site.name
                raise LabError(MAY_RUN.format(job=job, site=site, error=error)) from None
            raise
        lab = cls(scheduler, labs, SavedLab(scheduler.site.name, job, 0, time.time()))
        lab.saved.write()
        return lab

    async def status(self) -> JobStatus:
        """How the job stands. Raises SchedulerError and SshError while that is not known."""
        return await self.scheduler.status(self.job)

    async def endpoint(self) -> Endpoint | None:
        """Where the server listens; None until it does."""
        done = await self._run_at_site('enter "$1/$2" && cat server.json')
        return endpoint.read(done.output) if done.ok else None

    async def said(self) -> str:
        """The end of the log of a job that has failed; empty where it has not."""
        done = await self._run_at_site(f'enter "$1" && cat {LOGS} 2>/dev/null | tail -n 20')
        said = done.output.strip()
        return "" if said.endswith(lab_script.OVER) else said

    async def cancel(self) -> None:
        """End the job, see that it ends, and remove what it may have left."""
        await self.scheduler.cancel(self.job)
        deadline = time.monotonic() + END_S
        while not await self._has_ended():
            if time.monotonic() > deadline:
                raise LabError(STAYS.format(job=self.job, seconds=int(END_S)))
            await asyncio.sleep(0.2)
        await self.clear()
        self.saved.remove()

    async def _has_ended(self) -> bool:
        with contextlib.suppress(SchedulerError, SshError):
            return (await self.status()).state in ("ended", "gone")
        return False

    async def clear(self, log: bool = True) -> None:
        """Remove what a job that is over may have left: it does so itself, unless it was killed."""
        await self._run_at_site('enter "$1" && rm -rf "$2"' + (f" && rm -f {LOGS}" if log else ""))

    async def tunnel(self, to: Endpoint, nodes: str, asked: int = 0) -> SshConnection:
        """Forward a port of this machine, `saved.port`, to the server; the connection it goes over.

        It is another one than was asked for if that is taken. Raises SshError.
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
        """The connection from whose other end the server is reached."""
        login = self.scheduler.place
        assert isinstance(login, SshConnection)
        return SshConnection(login.name, node=expand(nodes)[0]) if self.site.ssh_to_nodes else login

    def command(self, to: Endpoint, nodes: str) -> str:
        """What to type on a laptop to reach the server, for those who are on the login node."""
        login = self.site.login or socket.getfqdn()
        way = ["-J", login, expand(nodes)[0]] if self.site.ssh_to_nodes else [login]
        port = self.saved.port or to.port
        return shlex.join(["ssh", "-N", "-L", f"{port}:{to.host}:{to.port}", *way])

    async def close(self) -> None:
        """Close the tunnel, and forget the page that leads through it."""
        self.saved.page.unlink(missing_ok=True)
        if self._tunnel is not None:
            await self._tunnel.close()
            self._tunnel = None

    async def _run_at_site(self, code: str) -> commands.Completed:
        """Run `code` at the site: $1 is the folder `labs`, $2 the job."""
        code = own_folder.marked(f'[ -e "$1" ] || exit 0\n{own_folder.ENTER}{code}')
        words = ["bash", "-c", code, "bash", self.labs, self.job]
        done = await self.scheduler.place.run(words, timeout=CALL_S)
        return replace(done, output=own_folder.said(done.output))


async def folder(scheduler: Scheduler) -> str:
    """Where servers keep their files at the site; closed to other users. Raises NotPrivateError."""
    return await scheduler.own_folder("labs")


async def alive(scheduler: Scheduler, labs: str) -> list[str]:
    """The jobs at the site that run a lab or will, the newest first, wherever they were started.

    What is left of others that are saved here is cleared away, here and there, but of one that is
    so new that it need not be listed yet. The folder may have those of another site, too, of which
    this one's scheduler knows nothing.
    """
    known = {each.job: each for each in all_saved(scheduler.site.name)}
    done = await scheduler.place.run(["ls", "-1", labs], timeout=CALL_S)
    there = {each for each in done.output.split() if re.fullmatch(r"\d+", each)}
    jobs = sorted(there | set(known), key=int, reverse=True)
    found = await scheduler.ask(jobs) if jobs else {}
    for job, saved in known.items():
        is_new = 0 <= time.time() - saved.created < UNSEEN_S
        if found[job].state == "ended" or (found[job].state == "gone" and not is_new):
            await Lab(scheduler, labs, saved).clear(log=False)
            saved.remove()
    return [job for job in jobs if found[job].state not in ("ended", "gone")]


def free_port(wanted: int) -> int:
    """A port of loopback that is free: `wanted`, or another one."""
    for port in (wanted, 0):
        with contextlib.suppress(OSError):
            return _bound(port)
    raise LabError(NO_PORT)


def demand_free(port: int) -> None:
    """Raises LabError if `port` of loopback cannot be had."""
    try:
        _bound(port)
    except PermissionError:
        raise LabError(PORT_DENIED.format(port=port)) from None
    except OSError:
        raise LabError(PORT_TAKEN.format(port=port)) from None


def _bound(port: int) -> int:
    """The port that is bound for `port`, where 0 is any, and free again."""
    with socket.socket(socket.AF_INET, socket.SOCK_STREAM) as probe:
        probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        probe.bind((LOOPBACK, port))
        return int(probe.getsockname()[1])


PORT_DENIED = "port {port} is for administrators: choose one above 1023 with --port"
MAY_RUN = (
    "job {job} was submitted, and could not be cancelled: `rankroom jobs --cancel {job} --site "
    "{site}` tries again ({error})"
)
PORT_TAKEN = "port {port} of this machine is taken: choose another with --port, or leave it out"
NO_PORT = "this machine has no free port"
STAYS = "job {job} was cancelled and has not ended within {seconds} s: look at `squeue` there"
