"""From a submitted job to an open page, and on until the job is over: messages on the way."""

from __future__ import annotations

import asyncio
import contextlib
import time
from typing import Protocol

from rankroom.errors import LabError, RankroomError, SshError, UselessJob
from rankroom.jupyter_job import endpoint
from rankroom.jupyter_job.endpoint import Endpoint
from rankroom.jupyter_job.lab import Lab
from rankroom.scheduler.jobs import JobStatus
from rankroom.scheduler.scheduler_client import as_soon_as_known
from rankroom.ssh.connection import ConnectionState, SshConnection

LOOK_S = 0.5
UP_S = 300.0  # a Python of many files on a slow file system takes its time
ANSWERS_S = 30.0
NEVER_S = 7.0  # by then Slurm has been asked twice: at first it gives one reason for many
ENDS_S = 60  # a job that ends so near to its limit has reached it


class Teller(Protocol):
    """Who tells the user."""

    def say(self, text: str) -> None:
        """A line that stays."""

    def show(self, text: str) -> None:
        """How it stands: in the place of what was shown before."""

    def page(self, url: str) -> None:
        """The page is there to be opened."""


async def follow(lab: Lab, tell: Teller, port: int = 0, look_s: float = LOOK_S) -> None:
    """Wait for the job, open the way to its server, and stay until it is over, which is looked for
    each `look_s` seconds.

    Raises UselessJob if the job will never start or its server is no good, and other errors of ours
    if the job has failed or cannot be reached from here.
    """
    keeping: dict[str, asyncio.Task[None]] = {}
    login = lab.scheduler.place
    try:
        if isinstance(login, SshConnection):
            keeping["login"] = asyncio.create_task(keep(login, tell, lab.job))
        while True:
            with contextlib.suppress(Requeued):
                status = await queue(lab, tell)
                opened = await server(lab, tell)
                if isinstance(login, SshConnection):
                    line = await lab.tunnel(opened, status.nodes, port)
                    if port and lab.saved.port != port:
                        tell.say(f"port {port} is taken here by now: {lab.saved.port} instead")
                    if line is not login:
                        # A job that was requeued may be on another node than before.
                        if "node" in keeping:
                            keeping["node"].cancel()
                        keeping["node"] = asyncio.create_task(keep(line, tell, lab.job))
                    await answers(lab, tell, opened, line)
                else:
                    tell.say(PASTE.format(command=lab.command(opened, status.nodes)))
                tell.page(opened.url(lab.saved.port or opened.port, lab.page))
                status = await hold(lab, tell, look_s)
                if status.state != "pending":
                    return
            tell.say(f"job {lab.job} is back in the queue: the scheduler has requeued it")
            with contextlib.suppress(RankroomError):  # the job itself removes it, too
                await lab.clear(log=False)
    finally:
        for task in keeping.values():
            task.cancel()
        await asyncio.gather(*keeping.values(), return_exceptions=True)
        await lab.close()


async def queue(lab: Lab, tell: Teller) -> JobStatus:
    """Wait until the job runs."""
    begun, hopeless = time.monotonic(), 0.0
    while True:
        status = await as_soon_as_known(lab.status, lab.job, tell.show)
        now = time.monotonic()
        if status.state == "running":
            tell.say(f"job {lab.job} {status.words}")
            return status
        if status.state in ("ended", "gone"):
            raise await over(lab, status)
        hopeless = (hopeless or now) if status.never else 0.0
        if hopeless and now - hopeless > max(NEVER_S, status.patience):
            raise UselessJob(NEVER.format(job=lab.job, words=status.words))
        tell.show(f"job {lab.job} {status.words} · {clock(now - begun)}")
        await asyncio.sleep(LOOK_S)


async def server(lab: Lab, tell: Teller) -> Endpoint:
    """Wait until the server of the running job says where it listens. Raises Requeued."""
    waited = 0.0  # s in which the site could be reached

    async def look() -> tuple[JobStatus, Endpoint | None, float]:
        begun = time.monotonic()
        return await lab.status(), await lab.endpoint(), time.monotonic() - begun

    while True:
        status, found, took = await as_soon_as_known(look, lab.job, tell.show)
        await demand_on(lab, status)
        runs = status.state == "running"
        if runs and found is not None:
            return found
        if runs and waited > UP_S:
            said = ""
            with contextlib.suppress(SshError):
                said = await lab.said()
            raise UselessJob(NOT_UP.format(job=lab.job, seconds=int(UP_S), said=said))
        starts = f" · JupyterLab starts · {clock(waited)}" if runs else ""
        tell.show(f"job {lab.job} {status.words}{starts}")
        await asyncio.sleep(LOOK_S)
        waited += took + LOOK_S


async def answers(lab: Lab, tell: Teller, opened: Endpoint, line: SshConnection) -> None:
    """See that the server answers through the tunnel, and only to those who know its token.

    Raises Requeued.
    """
    deadline = time.monotonic() + ANSWERS_S
    while True:
        is_up = await line.alive()  # else `keep` opens it again, and what goes through it
        # Without it the port may be another user's by now, who would be told the token.
        if is_up and await endpoint.answers(opened, lab.saved.port):
            return
        if not is_up or time.monotonic() > deadline:
            status = await as_soon_as_known(lab.status, lab.job, tell.show)
            await demand_on(lab, status)
            if is_up and status.state == "running":
                raise LabError(NO_ANSWER.format(host=opened.host, port=opened.port, job=lab.job))
            deadline = time.monotonic() + ANSWERS_S
        await asyncio.sleep(LOOK_S)


async def hold(lab: Lab, tell: Teller, look_s: float = LOOK_S) -> JobStatus:
    """Tell how long the job has yet, until it is back in the queue. Raises LabError if it failed.

    Its state when it does not run any more.
    """
    until = 0.0
    while True:
        status = await as_soon_as_known(lab.status, lab.job, tell.show)
        if status.state == "pending":
            return status
        if status.state in ("ended", "gone"):
            error = await over(lab, status)
            if error.said:
                raise error
            limit = until and time.time() > until - ENDS_S
            tell.say(f"job {lab.job} is over: {'its time was up' if limit else OVER}")
            lab.saved.remove()
            return status
        if status.state == "running":
            until = status.until
            left = f" · {clock(until - time.time())} left" if until else ""
            tell.show(f"job {lab.job} {status.words}{left} · Ctrl-C to leave or cancel it")
        await asyncio.sleep(look_s)


class Requeued(Exception):
    """The job is back in the queue."""


async def demand_on(lab: Lab, status: JobStatus) -> None:
    """Raise Requeued if a job that ran is in the queue, JobOver if it has ended. One that is ending
    may still be either: Slurm clears the nodes of a job that it requeues first."""
    if status.state == "pending":
        raise Requeued
    if status.state in ("ended", "gone"):
        raise await over(lab, status)


class JobOver(LabError):
    """The job has ended before its time; `said` is its log's end."""

    def __init__(self, message: str, said: str) -> None:
        super().__init__(message)
        self.said = said


async def over(lab: Lab, status: JobStatus) -> JobOver:
    """What is to be said of a job that has ended by itself; nothing of it is left then."""
    said = ""
    for _ in range(3):
        try:
            said = await lab.said()
            await lab.clear(log=False)
            break
        except RankroomError:
            await asyncio.sleep(LOOK_S)
    lab.saved.remove()
    words = FAILED if said else GONE
    return JobOver(words.format(job=lab.job, words=status.words, labs=lab.labs, said=said), said)


async def keep(line: SshConnection, tell: Teller, job: str = "") -> None:
    """Keep a line open for ever, telling when it is lost and open again, with the tunnel to `job`,
    if it leads to one."""
    lost = False

    def told(state: ConnectionState, words: str) -> None:
        nonlocal lost
        if state == "open" and words:
            tell.say(NO_TUNNEL.format(name=line.name, job=job, words=words))
        elif state == "open" and lost:
            tunnel = ", and the tunnel with it" if job else ""
            tell.say(f"the connection to {line.name} is open again{tunnel}")
        elif state == "lost" and not lost:
            why = words.partition("\n")[0].rstrip(":")
            tell.say(f"the connection to {line.name} is lost: {why}; it is being opened again")
        elif state == "asks":
            tell.say(f"{line.name} asks: {words}")
        lost = state != "open" and (lost or state == "lost")

    await line.keep(told)


def clock(seconds: float) -> str:
    """Hours and minutes, or minutes and seconds of less than an hour."""
    minutes, rest = divmod(max(0, int(seconds)), 60)
    hours, minutes = divmod(minutes, 60)
    return f"{hours}:{minutes:02} h" if hours else f"{minutes}:{rest:02} min"


PASTE = "to reach it, type on your laptop\n\n    {command}\n\nand open there"
NEVER = (
    "job {job} {words}. It was cancelled; ask for less, or for another partition: "
    "`rankroom lab --help` lists what can be asked for"
)
NOT_UP = (
    "job {job} runs, and JupyterLab has not come up there within {seconds} s. The job's log:\n"
    "{said}"
)
NO_ANSWER = (
    "JupyterLab of job {job} listens on {host}, port {port}, and does not answer through the "
    "tunnel: does the site let its login node reach its nodes? Where you may ssh to the nodes, "
    "say `ssh_to_nodes = true` in the site's profile, and start another job"
)
NO_TUNNEL = (
    "the connection to {name} is open, but not the tunnel to job {job}: close the page, as what it "
    "sends may go to somebody else's program now. `rankroom lab --attach {job}` opens another port "
    "({words})"
)
FAILED = "job {job} has failed; its log in {labs} ends with:\n{said}"
GONE = "job {job} {words}: it was cancelled, or ended before JupyterLab was up"
OVER = "it was cancelled, or JupyterLab was shut down"
