"""Follows a lab's job from its submission to an open page and until its end, with messages."""

from __future__ import annotations

import asyncio
import contextlib
import time
from dataclasses import replace
from typing import Protocol

from rankroom.errors import LabError, RankroomError, SchedulerError, SshError, UselessJob
from rankroom.jupyter_job import endpoint
from rankroom.jupyter_job.endpoint import Endpoint
from rankroom.jupyter_job.lab import Lab
from rankroom.scheduler.jobs import JobStatus
from rankroom.scheduler.scheduler_client import retry_until_known
from rankroom.ssh.connection import LOST, ConnectionState, SshConnection

POLL_INTERVAL_S = 0.5
# For JupyterLab to start: many Python files on a slow file system take long.
SERVER_START_TIMEOUT_S = 300.0
TUNNEL_REPLY_TIMEOUT_S = 30.0
# By then Slurm has been polled twice: at first it gives one reason for many limits.
NEVER_STARTS_AFTER_S = 7.0
# A job that ends within this time of its limit is taken to have reached it.
TIME_LIMIT_MARGIN_S = 60


class Teller(Protocol):
    """Shows messages to the user."""

    def say(self, text: str) -> None:
        """Show a line that stays."""

    def show(self, text: str) -> None:
        """Show the present state, in place of what was shown before."""

    def page(self, url: str) -> None:
        """Offer the page, which can now be opened."""


async def follow(lab: Lab, tell: Teller, port: int = 0, look_s: float = POLL_INTERVAL_S) -> None:
    """Wait for the job, open the way to its server, and then poll every `look_s` seconds until the
    job is over.

    Raises UselessJob if the job will never start or its server is unusable, and other
    RankroomErrors if the job has failed or cannot be reached from here.
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
                        tell.say(f"port {port} is now in use here: using {lab.saved.port} instead")
                    if line is not login:
                        # A job that was requeued may be on another node than before.
                        if "node" in keeping:
                            keeping["node"].cancel()
                        keeping["node"] = asyncio.create_task(keep(line, tell, lab.job))
                    await answers(lab, tell, opened, line)
                else:
                    lab.saved = replace(lab.saved, port=port or lab.saved.port)
                    tell.say(PASTE.format(command=lab.command(opened, status.nodes)))
                tell.page(opened.url(lab.saved.port or opened.port, lab.page))
                status = await hold(lab, tell, look_s)
                if status.state != "pending":
                    return
            tell.say(f"job {lab.job} is back in the queue: the scheduler has requeued it")
            with contextlib.suppress(RankroomError):  # the job removes its old files, too
                await lab.clear(log=False)
    finally:
        for task in keeping.values():
            task.cancel()
        await asyncio.gather(*keeping.values(), return_exceptions=True)
        await lab.close()


async def queue(lab: Lab, tell: Teller) -> JobStatus:
    """Wait until the job runs. Raises JobOver if it has ended, UselessJob if it can never start."""
    begun, hopeless = time.monotonic(), 0.0
    while True:
        status = await retry_until_known(lab.status, lab.job, tell.show)
        now = time.monotonic()
        if status.state == "running":
            tell.say(f"job {lab.job} {status.words}")
            return status
        if status.state in ("ended", "gone"):
            raise await over(lab, status)
        hopeless = (hopeless or now) if status.never else 0.0
        if hopeless and now - hopeless > max(NEVER_STARTS_AFTER_S, status.patience):
            raise UselessJob(NEVER.format(job=lab.job, words=status.words))
        tell.show(f"job {lab.job} {status.words} · {clock(now - begun)}")
        await asyncio.sleep(POLL_INTERVAL_S)


async def server(lab: Lab, tell: Teller) -> Endpoint:
    """Wait until the running job's server has written where it listens. Raises Requeued, JobOver,
    and UselessJob if it takes longer than SERVER_START_TIMEOUT_S."""
    waited = 0.0  # seconds during which the site could be reached, and the job was not suspended

    async def look() -> tuple[JobStatus, Endpoint | None, float]:
        begun = time.monotonic()
        return await lab.status(), await lab.endpoint(), time.monotonic() - begun

    while True:
        status, found, took = await retry_until_known(look, lab.job, tell.show)
        await demand_on(lab, status)
        runs = status.state == "running" and not status.is_suspended
        if runs and found is not None:
            return found
        if runs and waited > SERVER_START_TIMEOUT_S:
            said = ""
            with contextlib.suppress(SchedulerError, SshError):
                said = await lab.said()
            raise UselessJob(
                NOT_UP.format(job=lab.job, seconds=int(SERVER_START_TIMEOUT_S), said=said)
            )
        starts = f" · JupyterLab starts · {clock(waited)}" if runs else ""
        tell.show(f"job {lab.job} {status.words}{starts}")
        await asyncio.sleep(POLL_INTERVAL_S)
        if runs:
            waited += took + POLL_INTERVAL_S


async def answers(lab: Lab, tell: Teller, opened: Endpoint, line: SshConnection) -> None:
    """Wait until the server answers through the tunnel, and check that it requires its token.

    Raises Requeued, UselessJob if it needs no token, LabError if it does not answer.
    """
    deadline = time.monotonic() + TUNNEL_REPLY_TIMEOUT_S
    while True:
        is_up = await line.alive()  # if not, `keep` reopens it with its tunnel
        # Without it, the port may belong to another user by now, to whom the token would be sent.
        if is_up and await endpoint.answers(opened, lab.saved.port):
            return
        if not is_up or time.monotonic() > deadline:
            status = await retry_until_known(lab.status, lab.job, tell.show)
            await demand_on(lab, status)
            if is_up and status.state == "running":
                raise LabError(NO_ANSWER.format(host=opened.host, port=opened.port, job=lab.job))
            deadline = time.monotonic() + TUNNEL_REPLY_TIMEOUT_S
        await asyncio.sleep(POLL_INTERVAL_S)


async def hold(lab: Lab, tell: Teller, look_s: float = POLL_INTERVAL_S) -> JobStatus:
    """Show how much time the job has left, until it is over or back in the queue; return its state
    then. Raises JobOver if it failed.
    """
    until = 0.0
    while True:
        status = await retry_until_known(lab.status, lab.job, tell.show)
        if status.state == "pending":
            return status
        if status.state in ("ended", "gone"):
            error = await over(lab, status)
            if error.said:
                raise error
            limit = until and time.time() > until - TIME_LIMIT_MARGIN_S
            tell.say(f"job {lab.job} is over: {'it reached its time limit' if limit else OVER}")
            return status
        if status.state == "running":
            until = status.until
            left = f" · {clock(until - time.time())} left" if until else ""
            tell.show(f"job {lab.job} {status.words}{left} · Ctrl-C to leave or cancel it")
        await asyncio.sleep(look_s)


class Requeued(Exception):
    """The scheduler has put the job back in the queue."""


async def demand_on(lab: Lab, status: JobStatus) -> None:
    """Raise Requeued if a job that ran is back in the queue, JobOver if it has ended. For a job
    that is ending, neither is known yet: Slurm first cleans up its nodes, also before a requeue."""
    if status.state == "pending":
        raise Requeued
    if status.state in ("ended", "gone"):
        raise await over(lab, status)


class JobOver(LabError):
    """The job has ended early; `said` is the end of its log."""

    def __init__(self, message: str, said: str) -> None:
        super().__init__(message)
        self.said = said


async def over(lab: Lab, status: JobStatus) -> JobOver:
    """Return the error that reports a job that ended by itself; remove its files but the log."""
    said: str | None = None
    for _ in range(3):
        try:
            said = await lab.said()
            await lab.clear(log=False)
            lab.saved.remove()
            break
        except RankroomError as error:
            trouble = error
            await asyncio.sleep(POLL_INTERVAL_S)
    if said is None:  # whether it failed is not known; its files are kept, and found again later
        unread = UNREAD.format(job=lab.job, words=status.words, labs=lab.labs, error=trouble)
        return JobOver(unread, unread)
    words = FAILED if said else GONE
    return JobOver(words.format(job=lab.job, words=status.words, labs=lab.labs, said=said), said)


async def keep(line: SshConnection, tell: Teller, job: str = "") -> None:
    """Keep a connection open until cancelled, and report when it is lost and open again; with
    `job`, it carries the tunnel to that job."""
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
            if words == LOST.format(host=line.name):
                tell.say(words)
            else:
                tell.say(f"the connection to {line.name} is lost: {why}; reconnecting")
        elif state == "asks":
            tell.say(f"{line.name} asks: {words}")
        lost = state != "open" and (lost or state == "lost")

    await line.keep(told)


def clock(seconds: float) -> str:
    """Format a duration: hours and minutes, or minutes and seconds if it is below an hour."""
    minutes, rest = divmod(max(0, int(seconds)), 60)
    hours, minutes = divmod(minutes, 60)
    return f"{hours}:{minutes:02} h" if hours else f"{minutes}:{rest:02} min"


PASTE = "to reach it, run on your laptop\n\n    {command}\n\nand then open there"
NEVER = (
    "job {job} {words}. Ask for less, or for another partition: "
    "`rankroom lab --help` lists what can be asked for"
)
NOT_UP = (
    "job {job} runs, and JupyterLab has not come up there within {seconds} s. The job's log:\n"
    "{said}"
)
NO_ANSWER = (
    "JupyterLab of job {job} listens on {host}, port {port}, but does not respond through the "
    "tunnel: does the site let its login node reach its nodes? If you may ssh to the nodes, "
    "set `ssh_to_nodes = true` in the site's profile, and start another job"
)
NO_TUNNEL = (
    "the connection to {name} is open, but not the tunnel to job {job}: close the page, whose "
    "requests may now go to another user's program. `rankroom lab --attach {job}` opens another "
    "port ({words})"
)
FAILED = "job {job} has failed; its log in {labs} ends with:\n{said}"
GONE = "job {job} {words}: it was cancelled, or ended before JupyterLab was up"
UNREAD = "job {job} {words}; its log in {labs}, which may say why, cannot be read now: {error}"
OVER = "it was cancelled, or JupyterLab was shut down"
