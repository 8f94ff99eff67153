"""`rankroom workshop join`: from an invitation to an open lesson, by the `way` of its plan."""

from __future__ import annotations

import contextlib
import os
import shlex
import time
import webbrowser
from collections.abc import Callable
from functools import partial

import click

from rankroom import config
from rankroom.cli.lab_command import LabCommand
from rankroom.cli.terminal import Terminal
from rankroom.errors import RankroomError, SchedulerError, UsageError
from rankroom.jupyter_job import saved_labs
from rankroom.jupyter_job.lab import Lab
from rankroom.jupyter_job.saved_labs import SavedLab
from rankroom.scheduler.scheduler_client import Scheduler
from rankroom.ssh.host import Host, place
from rankroom.system import file_lock
from rankroom.workshop import node_server, seat
from rankroom.workshop.invitation import Invitation, at, invitation, job_of, keep_job
from rankroom.workshop.sharing import end_clusters
from rankroom.workshop.workshop_folder import Folder

JOIN_LOCK_TIMEOUT_S = 200.0  # a `join` that holds the lock for longer is taken to be stuck
# Poll interval of the job: forty learners must not overload the scheduler.
JOB_POLL_INTERVAL_S = 20.0


async def join_workshop(where: str, port: int, browser: bool, terminal: Terminal) -> None:
    """Join the workshop in `where`, a folder here or LOGIN:FOLDER. Raises UsageError if this
    account may not join, and the errors of what is started."""
    login, _ = at(where)
    there = place(login)
    try:
        await there.open()
        invited = await invitation(where, there)
    except BaseException:
        await there.close()
        raise
    invited.demand_open(time.time())
    plan = invited.plan
    terminal.say(f"{plan.name}, of {plan.teacher or invited.teacher} ({invited.teacher})")
    if plan.way == "hub":
        await there.close()
        terminal.say(f"open {invited.hub_page}")
        if browser and login:
            with contextlib.suppress(webbrowser.Error):
                webbrowser.open(invited.hub_page)
        return
    if plan.way == "node":
        await there.close()
        if login:
            raise UsageError(ON_NODE.format(login=login, folder=invited.folder))
        async with _join_lock(terminal):
            _on_node(invited, terminal)
        return
    async with _join_lock(terminal) as is_known:
        await _by_job(invited, there, port, browser, terminal, is_known)


def leave_workshop() -> None:
    """Give up the seat, and end its JupyterLab and ranks on this machine."""
    if workshop := node_server.workshop_here():  # ranks in a job end with the job
        with contextlib.suppress(RankroomError, OSError):
            end_clusters(Folder(workshop))
    ended = node_server.stop()  # even if the home directory has no record of the seat
    try:
        own, job = seat.mine(), seat.read_choices().job
    except UsageError:
        if not ended:
            raise
        click.echo("your JupyterLab has ended")
        return
    own.leave()
    ends = f"; `rankroom jobs --cancel {job}` ends your job" if job else ""
    rest = "; your JupyterLab has ended" if ended else ends
    click.echo(f"you have left the workshop in {own.folder}{rest}")


def _join_lock(terminal: Terminal) -> contextlib.AbstractAsyncContextManager[Callable[[], None]]:
    """Hold the lock on `join` for this account, so that a concurrent `join` finds the same job or
    server. It is released at the end, or early, by the function it yields, once these are known."""
    with contextlib.suppress(OSError):  # for instance, the disk of the home directory is full
        config.make_private(config.home())
    waits = partial(terminal.show, "waiting for another `rankroom workshop join` of yours")
    return file_lock.locked(config.home() / "join.lock", JOIN_LOCK_TIMEOUT_S, waits)


async def _by_job(
    invited: Invitation, there: Host, port: int, browser: bool, terminal: Terminal,
    is_known: Callable[[], None],
) -> None:  # fmt: skip
    site = invited.site(time.time())
    scheduler = Scheduler(site, there)

    def submitted(lab: Lab) -> None:
        with contextlib.suppress(OSError):  # `rankroom lab --attach` finds it by its folder
            keep_job(invited.folder, site.name, lab.job)
        is_known()

    job = job_of(invited.folder, site.name)
    known = next((each for each in saved_labs.all_saved(site.name) if each.job == job), None)
    if job and not await _lives(scheduler, job):
        job = ""
    elif job:
        terminal.say(f"job {job} is yours already")
        is_known()
    command = LabCommand(
        scheduler, there, terminal, browser, port, invited.page, submitted,
        again=f"rankroom workshop join {shlex.quote(at_login(invited))}",
        look_s=JOB_POLL_INTERVAL_S,
    )  # fmt: skip
    try:
        await command.run(job or None, (known or SavedLab(site.name, job)) if job else None)
    except SchedulerError as error:
        if "eservation" in str(error) and invited.plan.reservation:
            raise UsageError(
                NO_RESERVATION.format(
                    reservation=invited.plan.reservation, teacher=invited.teacher,
                    said=str(error).splitlines()[0],
                )
            ) from None  # fmt: skip
        raise


def at_login(invited: Invitation) -> str:
    """Return the folder in the form that `join` takes: FOLDER or LOGIN:FOLDER."""
    return f"{invited.login}:{invited.folder}" if invited.login else invited.folder


async def _lives(scheduler: Scheduler, job: str) -> bool:
    """Return whether a job is pending or running. If its state is unknown, return True: attaching
    to the job checks it again."""
    with contextlib.suppress(RankroomError):
        return (await scheduler.status(job)).state in ("pending", "running")
    return True


def _on_node(invited: Invitation, terminal: Terminal) -> None:
    terminal.show("JupyterLab is starting")
    found = node_server.start(invited.plan, invited.folder)
    if client := os.environ.get("SSH_CONNECTION"):
        here = client.split()[2]
        user = invited.user
        terminal.say(TUNNEL.format(port=found.port, user=user, node=here))
    terminal.say(f"JupyterLab: {found.url(found.port, invited.page)}")
    terminal.say(SERVER_STAYS)


ON_NODE = (
    "this workshop is on the machine {login}: log in there, and `rankroom workshop join {folder}`"
)
NO_RESERVATION = (
    "the reservation {reservation} of this workshop does not take your job: it has ended, or you "
    "are not in it. Ask {teacher} ({said})"
)
TUNNEL = (
    "on your laptop, type\n\n    ssh -N -L {port}:127.0.0.1:{port} {user}@{node}\n\nand open there"
)
SERVER_STAYS = (
    "it stays when you log out: joining again prints this address, and `rankroom workshop leave` "
    "ends it"
)
