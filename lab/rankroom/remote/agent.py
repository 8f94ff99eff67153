"""The process here that keeps a cluster on a site: holds the connection, follows the job, keeps
replicas of its records.

It belongs to no kernel. Kernels and the Jupyter server ask it as they ask the supervisor of ranks
on this machine; what it cannot answer it passes on to the supervisor there, through a forward of
the ssh connection. `python -m rankroom.remote.agent FOLDER` is started by `remote.start`; where the
cluster's job is known already, it goes on with that.
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

LONGEST = 30  # times AGAIN_S between two tries
AGAIN_S = 1.0  # between two tries to reach the supervisor, and to write what a full disk refused
ANSWER_S = 600.0  # a question may be answered by a rank that is busy
NEWS_S = 30.0  # for the supervisor to say how it stands; it does so every 20 s at the latest
FIRST_S = 10.0  # the same for the first time
STOP_S = 30.0
LOOK_S = 1.0
THERE = "-job"  # ends the name of the cluster there, where it needs one of its own
# Passed on to the supervisor as they are.
PASSED = (
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
        self._host = ""  # of the login node, as it calls itself
        self._was_reached = False  # since it is known where it is
        self._runs_there: dict[str, str] = {}  # their states by id, as last told
        self._unanswered: list[Any] = []  # the marks of cells whose answers were lost
        self._submitting = asyncio.Lock()
        self._following: asyncio.Task[None] | None = None
        self._ending: asyncio.Task[None] | None = None
        self._connected = asyncio.Event()
        self._claim = claim(paths, info)
        self.server = Server("", paths.folder, self.take)
        info.rpc, info.rpc_key = self.server.address, self.server.key
        info.lease = config.lease_hours()
        self.lease = Lease(paths.folder, info.lease * 3600)
        # What an agent before this one has left, which is gone.
        self.status.stopping = info.state == "ending"
        self.records.is_shared = remote.name not in ("", info.name)  # it has met the login node
        if info.state == "running":
            remote.state, remote.words = "lost", AGAIN.format(where=site.login or "its supervisor")
        self.status.save()

    # -- its life

    async def keep(self) -> None:
        """From the first try to reach the site until all is over."""
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
        """Do one part of the keeping. What fails here, a full disk or a fork that is refused, say,
        fails the cluster only while it has no job; a job is not ended for that."""
        while not self.status.over.is_set():
            try:
                await part()
                return
            except StartError as error:  # the scheduler says that it will not be
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
                await asyncio.sleep(AGAIN_S)

    async def _hold_connection(self) -> None:
        """Have the connection open, for the first time and again whenever it is lost."""
        connection = self.place
        if not isinstance(connection, SshConnection):
            self._connected.set()
            return
        if not self.remote.has_job:
            # A client that asks for a first job learns at once what is wrong with the way there.
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
            # How ssh put it is in the log; while it is tried again, each try has words of its own.
            say(words)
            if self.remote.job:
                self.status.say("lost", LOST.format(where=self.site.login))
            else:
                self.status.say("connecting", words)

    async def _serve(self) -> None:
        """Submit the job, find its supervisor, and listen to that while it can be reached."""
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
                    # The login node can be reached, and not the node of the ranks behind it.
                    self.status.say("lost", str(error).partition("\n")[0])
                    tries += 1
            except RankroomError as error:
                if not self.remote.has_job:
                    raise
                # Ranks go on; what is wrong there may be put right.
                self.status.say("lost" if self.remote.job else "submitting", str(error))
                tries += 1
            finally:
                self.status.ready = False
                await self.records.stop()
                await self.supervisor.hang_up()
            await asyncio.sleep(AGAIN_S * min(max(1, tries), LONGEST))

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
                await asyncio.sleep(LOOK_S)
                continue
            found = await self.login.find(self.remote.name, self.remote.job)
            if found is not None:
                self.supervisor.found(found)
                self._said_of_cluster(found)
        if self.supervisor.address:
            await self._listen()

    async def _listen(self) -> None:
        """Take what the supervisor says of its cluster, until it cannot be reached any more."""
        await self.supervisor.connect()
        known, patience = -1, FIRST_S
        while not self.status.over.is_set():
            try:
                said = await self.supervisor.ask(patience, do="news", known=known)
                while self._unanswered:  # those that wait for ranks there would begin unfollowed
                    await self.supervisor.ask(FIRST_S, do="withdraw", mark=self._unanswered[0])
                    self._unanswered.pop(0)
            except asyncio.TimeoutError:
                self.queue.soon.set()  # it may be gone
                if not self.status.stopping:
                    words = SILENT if self._was_reached or not self.site.login else NO_WAY
                    node, login = self.supervisor.node, self.site.login
                    about = {"name": self.info.name, "node": node, "login": login}
                    self.status.say("lost", words.format(**about))
                return
            self._was_reached = True
            before = self._runs_there if known >= 0 else {}
            self._runs_there = before | said["runs"]
            known, patience = said["version"], NEWS_S
            if not self.status.stopping:
                self.queue.soon.clear()
            self._said_of_cluster(said["cluster"])
            for run_id in said["runs"]:
                self.records.begin(run_id)

    async def _meet(self) -> None:
        """Learn who is there, and whether the home there is the one here: records need not be
        copied then, and the cluster there needs a name of its own."""
        self._host, self.records.is_shared, now = await self.login.meet(self.paths.folder)
        # The clock here may be hours ahead, and records there would look older than the cluster.
        self.remote.began = min(self.info.created, now)
        self.records.count_from(self.remote.began)
        if self.records.is_shared:
            name = self.info.name[: LONGEST_NAME - len(THERE)] + THERE
            self.remote.name = self.records.cluster = name

    async def _submit(self) -> None:
        async with self._submitting:
            if self.status.stopping:
                return
            info = self.info
            await self.queue.submit(self.remote.name, self._host, info.cwd, info.auto_restart)
            self.status.save()

    async def _mind(self) -> None:
        """Let go of a cluster that no client has held for long."""
        while True:
            await asyncio.sleep(max(LOOK_S, self.lease.pause))
            if self.lease.over(self._is_running):
                self.info.message = f"no notebook used it for {self.info.lease:g} h"
                await self.stop()

    @property
    def _is_running(self) -> bool:
        """Whether a run is on, or may be: there need be no replica of it, where this disk is full,
        or the site has not been reached again."""
        is_told = "running" in self._runs_there.values() or bool(self.records.live)
        return is_told or (bool(self.info.ready) and not self._was_reached)

    # -- what it learns

    def _said_of_cluster(self, told: dict[str, Any]) -> None:
        if not self.status.take(told, self.supervisor.is_connected):
            self._over_soon()

    def _said_of_job(self, state: RemoteState | None, words: str) -> None:
        """What the queue tells: how the job stands, or with None that it is over."""
        if self.status.stopping:
            return
        # From when it is known on it is the supervisor that says, or is silent.
        is_found = self.supervisor.cut.is_set() or bool(self.supervisor.address)
        if state is None:
            self._over_soon(words)
        elif self.info.state == "starting" and not is_found:
            self.status.say(state, words)
        else:
            self.status.save()

    def _over_soon(self, words: str = "") -> None:
        """It is over by itself: have the records come to their end, then say so."""
        if not self.status.stopping:
            self.status.stopping = True
            self._ending = asyncio.create_task(self._lasting(lambda: self._end(words)))

    async def _end(self, words: str) -> None:
        had_ranks = self.status.ready or bool(self.info.ready)
        words = words or await self.queue.end()
        if had_ranks:
            if not self.records.are_whole:
                where = self.site.login or self.site.name
                self.status.say("ending", REST.format(words=words, where=where))
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

    # -- what it is asked

    def take(self, question: Question) -> None:
        """A question of a kernel or the server; in the thread of the connections here."""
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
        if do in PASSED:
            return await self._pass_on(question)
        raise RankroomError(errors.UNKNOWN.format(name=self.info.name, do=do))

    async def _pass_on(self, question: Question) -> Answer:
        """What the supervisor answers."""
        do = question.content["do"]
        if self.status.over.is_set():  # it can still be asked while it tidies up
            raise NoClusterError(errors.ENDED.format(name=self.info.name, why=self.remote.words))
        if not self.status.ready:
            raise SshError(NOT_NOW.format(name=self.info.name, words=self.remote.words))
        try:
            said = await self.supervisor.ask(ANSWER_S, *question.buffers, **question.content)
        except SshError as error:  # just now
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
        """End the cluster and its job; what is left to say, in words."""
        if self.status.over.is_set():
            return ""
        if self._ending is None or self.info.state != "ending":
            if self._ending is not None:
                self._ending.cancel()  # it is over by itself: its folder goes now, too
            self.status.stopping = True
            self.info.state = "ending"
            self.status.say("ending", "is being stopped")
            self._ending = asyncio.create_task(self._lasting(self._stop))
        done, _ = await asyncio.wait({self._ending}, timeout=STOP_S)
        words = self.remote.words.partition("\n")[0]
        about = {"name": self.info.name, "job": self.remote.its_job, "words": words}
        return "" if done else LATER.format(**about)

    async def _stop(self) -> None:
        async with self._submitting:
            pass  # a job that is being submitted is known after that
        await self.supervisor.end_ranks()
        await self._cancel()
        if not self.records.are_whole or (self.records.is_shared and self.info.ready):
            await self.records.finish()
        if self.remote.job or self.remote.log:  # else nothing of it is there, nor need be reached
            await self._clear()
        self.info.state = "stopped"
        self.status.say("ended", self.info.message or "was stopped")
        self.status.over.set()

    async def _clear(self) -> None:
        """Leave nothing there but records, and bring what joined those after their runs."""
        about = self.remote.name, self.remote.job, self.remote.log, self.records.since
        await self.records.bring_late(await self.login.clear(*about))

    async def _cancel(self) -> None:
        """Cancel the job, if there is one or may be; tried until the scheduler says that it is."""
        while self.remote.has_job:
            try:
                await self.queue.cancel()
                return
            except (SshError, SchedulerError) as error:
                # Who cannot ask does not know whether the job was suspended, or given more time.
                if isinstance(error, SchedulerError) and is_past(self.remote.until):
                    return  # the job is over by itself
                if not self.status.over.is_set():
                    words = f"{self.remote.its_job} is not cancelled yet: {error}"
                    self.status.say("ending", words)
                await asyncio.sleep(5 * AGAIN_S)

    # -- its end

    async def _clean(self) -> None:
        """Leave nothing but records, here and there; what tells how it failed stays here."""
        if self.info.state == "failed" and self.remote.has_job:
            with contextlib.suppress(SshError, SchedulerError):
                await self.queue.cancel()
        left = NOTHING_MORE if self.info.state in ("stopped", "failed") else UNKEPT
        self.records.leave(left.format(name=self.info.name, site=self.site.name))
        await self.supervisor.close()
        await self.place.close()
        if self.info.state == "stopped":
            self.paths.remove()
        else:
            self.status.save()


def run(folder: Path) -> None:
    """Keep the cluster in `folder` until it is over."""
    paths = ClusterPaths(folder.name, folder.parent)
    info = paths.read_patiently()
    if info is None or info.remote is None:
        raise SystemExit(f"no cluster on a site in {folder}")
    remote = info.remote

    async def keep() -> None:
        agent = Agent(paths, info, remote, start.site_of(paths))
        # The job goes on, as it does when the machine goes down: another agent takes it up.
        asyncio.get_running_loop().add_signal_handler(signal.SIGTERM, agent.status.over.set)
        await agent.keep()

    asyncio.run(keep())


SILENT = "the supervisor of {name} does not answer; whether its job goes on is being asked"
NO_WAY = (
    "the supervisor of {name} on {node} does not answer through {login}: does that forward "
    "connections to compute nodes (AllowTcpForwarding of its sshd)? Where you may ssh to the "
    "nodes, say `ssh_to_nodes = true` in the site's profile; it is tried again"
)
TROUBLE = "its agent here has met with {error}; it goes on trying"
FAILED_HERE = "its agent here failed: {error!r}"
AGAIN = "{where} is being reached again; the ranks go on meanwhile"
NOT_NOW = "cluster {name} cannot be reached now: {words}"
REST = "{words}; the rest of its records is copied as soon as {where} can be reached"
MAY_BEGIN = "The cell may have begun there: look at `%runs` before you run it again"
LATER = (
    "{name} is not over yet: a process here goes on trying to cancel {job} until it can, and then "
    "copies its records ({words})"
)
NOTHING_MORE = (
    "cluster {name} on {site} was over before all of this run had been copied: the record of the "
    "same name there has the rest"
)
UNKEPT = (
    "the agent of cluster {name} here was ended while this run was on; `%cluster attach {name}` "
    "copies the rest from {site}"
)
NO_PANEL = (
    "JupyterLab's debugger panel shows ranks of this machine, or of the job that you are in; on a "
    "site's ranks `breakpoint()` opens the debugger below the cell"
)
NOT_HERE = "the run goes on there, and is not copied to this machine yet: {error}"

if __name__ == "__main__":
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    run(Path(sys.argv[1]))
