"""The process here that manages a cluster on a site: holds the connection, follows the job, and
copies its records.

It belongs to no kernel. Kernels and the Jupyter server send it the same requests as the supervisor
of ranks on this machine; those that it cannot answer itself are passed on to the supervisor at the
site, through a forward of the ssh connection. `remote.start` runs it as `python -m
rankroom.remote.agent FOLDER`; if the cluster has a job already, it continues with that.
"""

from __future__ import annotations

import asyncio
import contextlib
import signal
import sys
import traceback
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Any

from rankroom import config, errors
from rankroom.errors import (
    NoClusterError,
    RankroomError,
    SchedulerError,
    SshError,
    StartError,
    UsageError,
)
from rankroom.record.claim import claim
from rankroom.record.cluster_file import (
    LONGEST_NAME,
    ClusterInfo,
    ClusterPaths,
    Remote,
    RemoteState,
    is_past,
)
from rankroom.record.store import Store
from rankroom.remote import start
from rankroom.remote.job_supervisor import LOST, JobSupervisor
from rankroom.remote.login_node import LoginNode
from rankroom.remote.queue import Queue
from rankroom.remote.remote_status import RemoteStatus
from rankroom.remote.replica import Replicas
from rankroom.rpc.client import Answer
from rankroom.rpc.server import Question, Server
from rankroom.scheduler.site import Site
from rankroom.ssh.connection import SshConnection
from rankroom.ssh.host import Host, place
from rankroom.supervisor.lease import Lease
from rankroom.system.log_line import say

MAX_RETRY_DELAY_FACTOR = 30  # between retries at most, in units of RETRY_DELAY_S
RETRY_DELAY_S = 1.0  # between retries to reach the supervisor, or to write what a full disk refused
REPLY_TIMEOUT_S = 600.0  # for a reply, which may have to come from a busy rank
# For the supervisor to report its state, which it does every 20 s or more often.
NEWS_TIMEOUT_S = 30.0
FIRST_NEWS_TIMEOUT_S = 10.0  # the same for its first report
STOP_TIMEOUT_S = 30.0
POLL_INTERVAL_S = 1.0
# Suffix of the cluster's name at the site, where it needs a name of its own.
SITE_NAME_SUFFIX = "-job"
# Requests that are passed on to the supervisor unchanged.
FORWARDED_REQUESTS = (
    "run", "follow", "interrupt", "release", "answer", "stacks", "restart", "look", "apply",
    "forget", "complete", "withdraw",
)  # fmt: skip


class Agent:
    """One cluster on a site."""

    def __init__(self, paths: ClusterPaths, info: ClusterInfo, remote: Remote, site: Site) -> None:
        self.paths, self.info, self.remote, self.site = paths, info, remote, site
        self.status = RemoteStatus(paths, info, remote)
        self.place: Host = place(site.login, terminal=False)
        self.supervisor = JobSupervisor(site, self.place, paths.folder, remote, self._told)
        self.login = LoginNode(site, self.place)
        self.queue = Queue(site, self.place, remote, self._said_of_job)
        self.records = Replicas(
            Store(), remote.name or info.name, remote.began or info.created, self.supervisor.ask,
            self.login, paths.folder / "replicated",
        )  # fmt: skip
        self._loop = asyncio.get_running_loop()
        self._host = ""  # the login node's own host name
        self._was_reached = False  # whether the supervisor has replied to this agent
        self._runs_there: dict[str, str] = {}  # the states of its runs by id, as last reported
        self._unanswered: list[Any] = []  # the marks of cells to whose requests the reply was lost
        self._submitting = asyncio.Lock()
        self._following: asyncio.Task[None] | None = None
        self._ending: asyncio.Task[None] | None = None
        self._connected = asyncio.Event()
        self._claim = claim(paths, info)
        self.server = Server("", paths.folder, self.take)
        info.rpc, info.rpc_key = self.server.address, self.server.key
        info.lease = config.lease_hours()
        self.lease = Lease(paths.folder, info.lease * 3600)
        # Continue from the state that an earlier agent left.
        self.status.stopping = info.state == "ending"
        self.records.is_shared = remote.name not in ("", info.name)  # as `_meet` found out
        if info.state == "running":
            remote.state, remote.words = (
                "lost",
                RECONNECTING.format(where=site.login or "its supervisor"),
            )
        self.status.save()

    # -- life cycle

    async def keep(self) -> None:
        """Manage the cluster, from the first attempt to reach the site until it is over."""
        parts = (self._hold_connection, self._serve, self._mind)
        tasks = [asyncio.create_task(self._lasting(part)) for part in parts]
        if self.status.stopping:
            self._ending = asyncio.create_task(self._lasting(self._stop))
        await self.status.over.wait()
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
        await self.records.stop()
        await self._clean()

    async def _lasting(self, part: Callable[[], Awaitable[None]]) -> None:
        """Run `part` until it returns or the cluster is over; retry it after errors. An error on
        this machine, such as a full disk or a failed fork, fails the cluster only while it has no
        job; it never ends a job."""
        while not self.status.over.is_set():
            try:
                await part()
                return
            except StartError as error:  # the scheduler says that the job will never start
                await self._lasting(self._cancel)
                self.status.fail(str(error))
            except Exception as error:
                known = isinstance(error, RankroomError)
                if not known:
                    say(traceback.format_exc())
                if not self.remote.has_job and not self.status.stopping:
                    self.status.fail(str(error) if known else FAILED_HERE.format(error=error))
                elif not self.status.stopping:
                    self.status.say("lost", TROUBLE.format(error=error))
                await asyncio.sleep(RETRY_DELAY_S)

    async def _hold_connection(self) -> None:
        """Open the connection, and reopen it whenever it is lost."""
        connection = self.place
        if not isinstance(connection, SshConnection):
            self._connected.set()
            return
        if not self.remote.has_job:
            # Before the first job, fail at once: the waiting client sees why the site is
            # unreachable.
            await connection.open(self._told)
        await connection.keep(self._told)

    def _told(self, state: str, words: str) -> None:
        if state == "open":
            self.supervisor.cut.clear()
            self._connected.set()
            return
        if state == "asks":
            self.status.say("asks", f"{self.site.login} asks: {words}")
            return
        self._connected.clear()
        self.supervisor.cut.set()
        if not self.status.stopping:
            # The log has ssh's message, which may differ between retries.
            say(words)
            if self.remote.job:
                self.status.say("lost", LOST.format(where=self.site.login))
            else:
                self.status.say("connecting", words)

    async def _serve(self) -> None:
        """Submit the job, find its supervisor, and follow that while it can be reached."""
        tries = 0
        while not self.status.over.is_set():
            await self._connected.wait()
            try:
                await self._serve_once()
                tries = 0
            except SshError as error:
                say(error)
                is_found = bool(self.supervisor.address)
                if is_found and self._connected.is_set() and not self.status.stopping:
                    # The login node can be reached, but not the ranks' node behind it.
                    self.status.say("lost", str(error).partition("\n")[0])
                    tries += 1
            except RankroomError as error:
                if not self.remote.has_job:
                    raise
                # The ranks go on, and the problem at the site may be fixed.
                self.status.say("lost" if self.remote.job else "submitting", str(error))
                tries += 1
            finally:
                self.status.ready = False
                await self.records.stop()
                await self.supervisor.hang_up()
            await asyncio.sleep(RETRY_DELAY_S * min(max(1, tries), MAX_RETRY_DELAY_FACTOR))

    async def _serve_once(self) -> None:
        if not self.remote.job:
            if not self._host:
                await self._meet()
            await self._submit()
        if self._following is None:
            self._following = asyncio.create_task(self._lasting(self.queue.follow))
        if self.info.state == "starting" and not self.supervisor.address:
            self.status.say(self.queue.state, self.queue.words)
        while not self.supervisor.address and not self.status.over.is_set():
            if self.queue.state not in ("starting", "running"):
                await asyncio.sleep(POLL_INTERVAL_S)
                continue
            found = await self.login.find(self.remote.name, self.remote.job)
            if found is not None:
                self.supervisor.found(found)
                self._said_of_cluster(found)
        if self.supervisor.address:
            await self._listen()

    async def _listen(self) -> None:
        """Take in what the supervisor reports of its cluster, until it can no longer be reached."""
        await self.supervisor.connect()
        known, patience = -1, FIRST_NEWS_TIMEOUT_S
        while not self.status.over.is_set():
            try:
                said = await self.supervisor.ask(patience, do="news", known=known)
                while self._unanswered:  # those still waiting for ranks would run without a client
                    await self.supervisor.ask(
                        FIRST_NEWS_TIMEOUT_S, do="withdraw", mark=self._unanswered[0]
                    )
                    self._unanswered.pop(0)
            except asyncio.TimeoutError:
                self.queue.soon.set()  # the job may be over
                if not self.status.stopping:
                    words = SILENT if self._was_reached or not self.site.login else NO_WAY
                    node, login = self.supervisor.node, self.site.login
                    about = {"name": self.info.name, "node": node, "login": login}
                    self.status.say("lost", words.format(**about))
                return
            self._was_reached = True
            before = self._runs_there if known >= 0 else {}
            self._runs_there = before | said["runs"]
            known, patience = said["version"], NEWS_TIMEOUT_S
            if not self.status.stopping:
                self.queue.soon.clear()
            self._said_of_cluster(said["cluster"])
            for run_id in said["runs"]:
                self.records.begin(run_id)

    async def _meet(self) -> None:
        """Get the login node's host name, and find out whether it shares the home here: then
        records need not be copied, and the cluster there needs a name of its own."""
        self._host, self.records.is_shared, now = await self.login.meet(self.paths.folder)
        # If the clock here is hours ahead, records there would look older than the cluster.
        self.remote.began = min(self.info.created, now)
        self.records.count_from(self.remote.began)
        if self.records.is_shared:
            name = self.info.name[: LONGEST_NAME - len(SITE_NAME_SUFFIX)] + SITE_NAME_SUFFIX
            self.remote.name = self.records.cluster = name

    async def _submit(self) -> None:
        async with self._submitting:
            if self.status.stopping:
                return
            info = self.info
            await self.queue.submit(self.remote.name, self._host, info.cwd, info.auto_restart)
            self.status.save()

    async def _mind(self) -> None:
        """Stop a cluster that no client has held for longer than its lease."""
        while True:
            await asyncio.sleep(max(POLL_INTERVAL_S, self.lease.pause))
            waits = self.info.state == "starting" and self.remote.has_job  # it costs nothing yet
            if self.lease.over(self._is_running or waits):
                self.info.message = f"no notebook has used it for {self.info.lease:g} h"
                await self.stop()

    @property
    def _is_running(self) -> bool:
        """Whether a run is running, or may be: there may be no replica of it, if this disk is full,
        or the site has not been reached by this agent yet."""
        is_told = "running" in self._runs_there.values() or bool(self.records.live)
        return is_told or (bool(self.info.ready) and not self._was_reached)

    # -- news of the cluster and its job

    def _said_of_cluster(self, told: dict[str, Any]) -> None:
        if not self.status.take(told, self.supervisor.is_connected):
            self._over_soon()

    def _said_of_job(self, state: RemoteState | None, words: str) -> None:
        """Take in what the queue reports: the job's state, or None if the job is over."""
        if self.status.stopping:
            return
        # Once the supervisor has been found, the state comes from it, or from its silence.
        is_found = self.supervisor.cut.is_set() or bool(self.supervisor.address)
        if state is None:
            self._over_soon(words)
        elif self.info.state == "starting" and not is_found:
            self.status.say(state, words)
        else:
            self.status.save()

    def _over_soon(self, words: str = "") -> None:
        """The cluster has ended by itself: complete the replicas, then report it as over."""
        if not self.status.stopping:
            self.status.stopping = True
            self._ending = asyncio.create_task(self._lasting(lambda: self._end(words)))

    async def _end(self, words: str) -> None:
        had_ranks = self.status.ready or bool(self.info.ready)
        words = words or await self.queue.end()
        if had_ranks:
            if not self.records.are_whole:
                where = self.site.login or self.site.name
                self.status.say("ending", COPYING_REST.format(words=words, where=where))
            await self.records.finish()
        why = self.info.message or words
        message = f"{why} (job {self.remote.job})" if self.remote.job not in why else why
        said = ""
        with contextlib.suppress(RankroomError, OSError):
            said = await self.login.log(self.remote.log)
            self.paths.job_log.write_text(said, "utf-8")
        if not had_ranks and said:
            message = f"{message}; {self.remote.log} ends with:\n{said}"
        if had_ranks and not self.records.live:
            await self._clear()
        self.status.fail(message, "ended" if had_ranks else "failed")

    # -- requests

    def take(self, question: Question) -> None:
        """Handle a request of a kernel or the server; called in the RPC server's thread."""
        asyncio.run_coroutine_threadsafe(self._answer(question), self._loop)

    async def _answer(self, question: Question) -> None:
        try:
            said = await self._do(question)
            question.answer(*said.buffers, **said)
        except Exception as error:
            question.refuse(error)

    async def _do(self, question: Question) -> Answer:
        do = question.content["do"]
        if do == "stop":
            return Answer(text=await self.stop())
        if do == "log":
            return Answer(text=await self.login.log(self.remote.log))
        if do == "accepts":
            await self.queue.accepts(Site.from_json(question.content["site"]))
            return Answer()
        if do == "debug":
            raise UsageError(NO_PANEL)
        if do in FORWARDED_REQUESTS:
            return await self._pass_on(question)
        raise RankroomError(errors.UNKNOWN_REQUEST.format(name=self.info.name, do=do))

    async def _pass_on(self, question: Question) -> Answer:
        """Pass a request on to the supervisor, and return its reply. Raises NoClusterError if the
        cluster is over, SshError while it cannot be reached."""
        do = question.content["do"]
        if self.status.over.is_set():  # requests still arrive while the agent cleans up
            raise NoClusterError(errors.ENDED.format(name=self.info.name, why=self.remote.words))
        if not self.status.ready:
            raise SshError(NOT_NOW.format(name=self.info.name, words=self.remote.words))
        try:
            said = await self.supervisor.ask(REPLY_TIMEOUT_S, *question.buffers, **question.content)
        except SshError as error:  # the connection was lost just now
            words = NOT_NOW.format(name=self.info.name, words=error)
            if do == "run":
                self._unanswered.append(question.content.get("mark"))
                words = f"{words}. {MAY_BEGIN}"
            raise SshError(words) from None
        if do in ("run", "follow") and (run := said.get("run")):
            trouble = await self.records.begin_now(run["id"])
            run["notes"] += [NOT_HERE.format(error=trouble)] if trouble else []
        return said

    async def stop(self) -> str:
        """End the cluster and its job; return a message if it is not over within STOP_TIMEOUT_S,
        else an empty string."""
        if self.status.over.is_set():
            return ""
        if self._ending is None or self.info.state != "ending":
            if self._ending is not None:
                self._ending.cancel()  # it had ended by itself: now its folder is removed, too
            self.status.stopping = True
            self.info.state = "ending"
            self.status.say("ending", "is being stopped")
            self._ending = asyncio.create_task(self._lasting(self._stop))
        done, _ = await asyncio.wait({self._ending}, timeout=STOP_TIMEOUT_S)
        words = self.remote.words.partition("\n")[0]
        about = {"name": self.info.name, "job": self.remote.its_job, "words": words}
        return "" if done else STOP_DELAYED.format(**about)

    async def _stop(self) -> None:
        async with self._submitting:
            pass  # wait for a submission in progress, after which the job is known
        await self.supervisor.end_ranks()
        await self._cancel()
        if not self.records.are_whole or (self.records.is_shared and self.info.ready):
            await self.records.finish()
        if self.remote.job or self.remote.log:  # else the site has nothing of it
            await self._clear()
        self.info.state = "stopped"
        self.status.say("ended", self.info.message or "was stopped")
        self.status.over.set()

    async def _clear(self) -> None:
        """Remove all but the records at the site, and copy what was appended after the runs."""
        about = self.remote.name, self.remote.job, self.remote.log, self.records.since
        await self.records.bring_late(await self.login.clear(*about))

    async def _cancel(self) -> None:
        """Cancel the job, if there is or may be one; retry until the scheduler confirms it."""
        while self.remote.has_job:
            try:
                await self.queue.cancel()
                return
            except (SshError, SchedulerError) as error:
                # Not if ssh failed: the job may have been suspended, or given more time.
                if isinstance(error, SchedulerError) and is_past(self.remote.until):
                    return  # the job is over by itself
                if not self.status.over.is_set():
                    words = f"{self.remote.its_job} is not cancelled yet: {error}"
                    self.status.say("ending", words)
                await asyncio.sleep(5 * RETRY_DELAY_S)

    # -- end

    async def _clean(self) -> None:
        """Remove all but the records, here and at the site; unless it was stopped, the cluster's
        folder here stays, to tell how it ended."""
        if self.info.state == "failed" and self.remote.has_job:
            with contextlib.suppress(SshError, SchedulerError):
                await self.queue.cancel()
        left = NOTHING_MORE if self.info.state in ("stopped", "failed") else AGENT_ENDED
        self.records.leave(left.format(name=self.info.name, site=self.site.name))
        await self.supervisor.close()
        await self.place.close()
        if self.info.state == "stopped":
            self.paths.remove()
        else:
            self.status.save()


def run(folder: Path) -> None:
    """Manage the cluster in `folder` until it is over, or SIGTERM arrives."""
    paths = ClusterPaths(folder.name, folder.parent)
    info = paths.read_patiently()
    if info is None or info.remote is None:
        raise SystemExit(f"no cluster on a site in {folder}")
    remote = info.remote

    async def keep() -> None:
        agent = Agent(paths, info, remote, start.site_of(paths))
        # The job goes on, as it does when this machine goes down: another agent continues with it.
        asyncio.get_running_loop().add_signal_handler(signal.SIGTERM, agent.status.over.set)
        await agent.keep()

    asyncio.run(keep())


SILENT = "the supervisor of {name} does not answer; checking whether its job is still running"
NO_WAY = (
    "the supervisor of {name} on {node} does not answer through {login}: does the sshd of "
    "that host forward connections to compute nodes (AllowTcpForwarding)? If you may ssh to the "
    "nodes, set `ssh_to_nodes = true` in the site's profile; retrying"
)
TROUBLE = "its agent here is retrying after an error: {error}"
FAILED_HERE = "its agent here failed: {error!r}"
RECONNECTING = "reconnecting to {where}; the ranks keep running"
NOT_NOW = "cluster {name} cannot be reached now: {words}"
COPYING_REST = "{words}; the rest of its records will be copied as soon as {where} can be reached"
MAY_BEGIN = "The cell may have started there: check `%runs` before you run it again"
STOP_DELAYED = (
    "{name} is not stopped yet: a process here keeps trying to cancel {job}, and then copies its "
    "records ({words})"
)
NOTHING_MORE = (
    "cluster {name} on {site} was over before all of this run had been copied: the record of the "
    "same name there has the rest"
)
AGENT_ENDED = (
    "the agent of cluster {name} here was ended while this run was still running; `%cluster "
    "attach {name}` copies the rest from {site}"
)
NO_PANEL = (
    "JupyterLab's debugger panel shows ranks of this machine, or of the job that you are in; on a "
    "site's ranks `breakpoint()` opens the debugger below the cell"
)
NOT_HERE = "the run continues at the site, but cannot be copied to this machine yet: {error}"

if __name__ == "__main__":
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    run(Path(sys.argv[1]))
