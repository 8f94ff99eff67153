"""The job of a cluster on a site: submitted, followed through the queue, and cancelled."""

from __future__ import annotations

import asyncio
import contextlib
import shlex
import time
from collections.abc import Callable

from rankroom.errors import RankroomError, SchedulerError, SshError, StartError
from rankroom.record.cluster_file import Remote, RemoteState
from rankroom.scheduler.scheduler_client import LISTING_DELAY_S, LostAnswerError, Scheduler
from rankroom.scheduler.site import Site, expand
from rankroom.scheduler.status_cache import MIN_QUERY_INTERVAL_S
from rankroom.ssh.host import Host
from rankroom.system import python_command

RUNNING_POLL_INTERVAL_S = 30.0  # poll interval for a running job
JOB_END_TIMEOUT_S = 30.0  # for the scheduler to say how a job ended
Tell = Callable[["RemoteState | None", str], None]


class Queue:
    """One job; its state is stored in `remote`, and `tell(state, words)` is called with changes."""

    def __init__(self, site: Site, place: Host, remote: Remote, tell: Tell) -> None:
        self.state: RemoteState = "pending" if remote.job else "connecting"
        self.words = f"job {remote.job}" if remote.job else "connecting"
        self._place = place
        self._scheduler = Scheduler(site, place)
        self._remote = remote
        self._tell = tell
        self.soon = asyncio.Event()  # set while the job may be over, to poll it more often
        self._ended: asyncio.Future[str] = asyncio.get_running_loop().create_future()

    @property
    def is_unsure(self) -> bool:
        """Whether there may be a job of unknown id, as the reply to its submission was lost."""
        return self._remote.others is not None

    async def submit(self, name: str, host: str, cwd: str, auto_restart: bool) -> None:
        """Submit the job of the cluster `name`, reached from `host`."""
        folder = await self._scheduler.own_folder("clusters")
        script = self._scheduler.script(
            name, folder, [command(self._scheduler.site, name, host, cwd, auto_restart)]
        )
        job = await self._unknown_job() or await self._submit(name, script)
        log = self._scheduler.kind.LOG.format(name=name, job=job)
        self._remote.job, self._remote.log, self._remote.others = job, f"{folder}/{log}", None
        self._set("pending", f"job {job} is waiting in the queue")

    async def _submit(self, name: str, script: str) -> str:
        others: list[str] = []
        with contextlib.suppress(SchedulerError):  # it may accept jobs, but be unable to list them
            others = await self._scheduler.find(name)
        # On disk before there may be a job, so that a later agent looks for it.
        self._remote.others, self._remote.asked = others, time.time()
        self._set("submitting", f"submitting a job to {self._scheduler.site.name}")
        try:
            return await self._scheduler.submit(script, others=others)
        except RankroomError as error:
            if isinstance(error, (SshError, LostAnswerError)):
                self._remote.asked = time.time()  # it may have been accepted as late as now
                self._set("submitting", self.words)
            else:
                self._remote.others = None
            raise

    async def _unknown_job(self) -> str:
        """Return the job whose submission got no reply; empty if there is none. Raises
        LostAnswerError while it need not be listed yet."""
        if (others := self._remote.others) is None:
            return ""
        found = await self._scheduler.find(self._remote.name)
        job = next((each for each in found if each not in others), "")
        if not job and 0 <= time.time() - self._remote.asked < LISTING_DELAY_S:
            raise LostAnswerError(UNLISTED)
        self._remote.others = None
        return job

    async def accepts(self, site: Site) -> None:
        """Raise SchedulerError or StartError if the scheduler would reject a job as `site` asks."""
        scheduler = Scheduler(site, self._place)
        try:
            await scheduler.accepted(await scheduler.folder())
        except RankroomError as error:
            count = site.job.nodes * site.ranks_per_node
            raise type(error)(
                RANKS_UNCHANGED.format(ranks=count, nodes=site.job.nodes, why=error)
            ) from None

    async def follow(self) -> None:
        """Report the state of the job until it is over. Raises StartError if it can never start."""
        never: set[float] = set()  # when the scheduler said so
        since = 0.0
        while True:
            try:
                status = await self._scheduler.status(self._remote.job)
            except (SshError, SchedulerError) as error:
                if isinstance(error, SchedulerError):
                    self._set(self.state, f"job {self._remote.job}: {error}")
                await asyncio.sleep(MIN_QUERY_INTERVAL_S)
                continue
            words = f"job {status.id} {status.words}"
            if status.state == "pending":
                self._remote.reason, self._remote.expected = status.reason, status.expected
                self._set("pending", words)
                # A scheduler may first give one reason for every limit: believe its second answer.
                never = never | {status.at} if status.never else set()
                since = since if len(never) > 1 else time.monotonic()
                if len(never) > 1 and time.monotonic() - since >= status.patience:
                    raise StartError(NEVER.format(job=status.id, reason=status.reason))
            elif status.state == "running":
                self._remote.until = status.until  # 0 while the job is suspended
                self._set("starting", f"{words}: its ranks start")
            elif status.state in ("ended", "gone"):
                if self._remote.until and time.time() > self._remote.until - 2:
                    # Schedulers soon forget how a job ended.
                    words = f"the time of job {self._remote.job} is over"
                self._ended.set_result(words)
                self._tell(None, words)
                return
            with contextlib.suppress(asyncio.TimeoutError):
                pause = (
                    RUNNING_POLL_INTERVAL_S if status.state == "running" else MIN_QUERY_INTERVAL_S
                )
                await asyncio.wait_for(self.soon.wait(), pause)
            if self.soon.is_set():
                await asyncio.sleep(MIN_QUERY_INTERVAL_S)

    async def end(self) -> str:
        """Return how the job ended, in words, once the scheduler reports it; poll it soon."""
        self.soon.set()
        try:
            return await asyncio.wait_for(asyncio.shield(self._ended), JOB_END_TIMEOUT_S)
        except asyncio.TimeoutError:
            return "its ranks have ended"

    async def cancel(self) -> None:
        """Cancel the job, first looking for one whose submission got no reply; it may be over."""
        self._remote.job = self._remote.job or await self._unknown_job()
        if self._remote.job:
            await self._scheduler.cancel(self._remote.job)

    def _set(self, state: RemoteState, words: str) -> None:
        self.state, self.words = state, words
        self._tell(state, words)


def command(site: Site, name: str, host: str, cwd: str, auto_restart: bool) -> str:
    """Return the line of the job's script that starts the ranks and waits until they end."""
    words = python_command.command(
        "rankroom.remote.job", name,
        f"--ranks={site.job.nodes * site.ranks_per_node}", f"--reached-from={host}",
        python=[site.environment.python],
    )  # fmt: skip
    words += [f"--folder={cwd}"] if cwd else []
    words += ["--auto-restart"] if auto_restart else []
    # `exec` replaces the shell, so that the job's signals reach this process.
    return f'{python_command.SHELL_ASSIGNMENTS} exec "{expand(words[0])}" {shlex.join(words[1:])}'


UNLISTED = (
    "it is not known yet whether the scheduler has accepted the job, as the connection was lost "
    "during submission: checking its job list for some minutes"
)
RANKS_UNCHANGED = (
    "the ranks stay as they are, and no job is submitted (nodes: {nodes}, ranks: {ranks}):\n{why}"
)
NEVER = (
    "job {job} would never start: {reason}. It was cancelled; request other resources with the "
    "options of `%cluster start` or in the site's profile"
)
