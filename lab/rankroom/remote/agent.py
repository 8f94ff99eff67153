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
import hashlib
import secrets
import signal
import sys
import time
import traceback
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Any

from rankroom import config, errors
from rankroom.errors import RankroomError, SchedulerError, SshError, StartError
from rankroom.record.claim import claim
from rankroom.record.cluster_file import (
    Allocation,
    ClusterInfo,
    ClusterPaths,
    Remote,
    RemoteState,
    is_past,
)
from rankroom.record.model import RankInfo
from rankroom.record.store import Store
from rankroom.remote import start
from rankroom.remote.login_node import LoginNode
from rankroom.remote.queue import Queue
from rankroom.remote.replica import Replicas
from rankroom.rpc.client import Answer, Client
from rankroom.rpc.server import Question, Server
from rankroom.scheduler.site import Site
from rankroom.ssh.connection import SshConnection
from rankroom.ssh.host import Host, place
from rankroom.supervisor.lease import Lease

LONGEST = 30  # times AGAIN_S between two tries
AGAIN_S = 1.0  # between two tries to reach the supervisor, and to write what a full disk refused
FIND_S = 20.0  # for one look on the login node at where the supervisor listens
ANSWER_S = 600.0  # a question may be answered by a rank that is busy
NEWS_S = 30.0  # for the supervisor to say how it stands; it does so every 20 s at the latest
FIRST_S = 10.0  # the same for the first time
STOP_S = 30.0
LOOK_S = 1.0
MARK = "shared"  # a file in the cluster's folder, while it is asked whether it is seen there
# Passed on to the supervisor as they are.
PASSED = ("run", "follow", "interrupt", "release", "stacks", "restart", "look", "apply", "forget")
# Of what the supervisor says of the cluster, copied as they are.
COPIED = ("size", "epoch", "exits", "restarts", "past", "starting", "ready", "cwd")


class Agent:
    """One cluster on a site."""

    def __init__(self, paths: ClusterPaths, info: ClusterInfo, remote: Remote, site: Site) -> None:
        self.paths, self.info, self.remote, self.site = paths, info, remote, site
        self.place: Host = place(site.login, terminal=False)
        self.login = LoginNode(site, self.place)
        self.queue = Queue(site, self.place, remote, self._said_of_job)
        self.records = self._records(remote.name or info.name)
        self.supervisor: Client | None = None  # while it can be asked
        self.over = asyncio.Event()
        self.stopping = False
        self.ready = False  # whether all ranks are
        self._loop = asyncio.get_running_loop()
        # Whether records there are those here; not known before it was asked once.
        self.shares: bool | None = None
        self._host = ""  # of the login node, as it calls itself
        self._address = self._key = self._node = ""  # of the supervisor
        self._to_node: SshConnection | None = None  # where the site allows that
        self._was_reached = False  # since it is known where it is
        self._submitting = asyncio.Lock()
        self._following: asyncio.Task[None] | None = None
        self._ending: asyncio.Task[None] | None = None
        self._connected = asyncio.Event()
        self._cut = asyncio.Event()
        self._claim = claim(paths, info)
        self.server = Server("", paths.folder, self.take)
        info.rpc, info.rpc_key = self.server.address, self.server.key
        info.lease = config.lease_hours()
        self.lease = Lease(paths.folder, info.lease * 3600)
        if info.state == "running":  # of an agent before this one, which is gone
            remote.state, remote.words = "lost", AGAIN.format(where=site.login or "its supervisor")
        self.save()

    def _records(self, cluster: str) -> Replicas:
        return Replicas(Store(), cluster, self.info.created, self._ask_supervisor, self.login, note)

    def save(self) -> None:
        with contextlib.suppress(OSError):  # a full disk; the next change is written whole
            self.paths.write(self.info)

    def say(self, state: RemoteState, words: str) -> None:
        """How the cluster stands, for people."""
        if (self.remote.state, self.remote.words) != (state, words):
            self.remote.state, self.remote.words = state, words
            note(state, words)
            self.save()

    def fail(self, message: str, state: RemoteState = "failed") -> None:
        """It is over, for this reason."""
        if not self.over.is_set():
            self.info.state, self.info.message = "failed", message
            self.say(state, message)
            self.save()
            self.over.set()

    # -- its life

    async def keep(self) -> None:
        """From the first try to reach the site until all is over."""
        parts = (self._hold_connection, self._serve, self._mind)
        tasks = [asyncio.create_task(self._lasting(part)) for part in parts]
        await self.over.wait()
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
        await self.records.stop()
        await self._clean()

    async def _lasting(self, part: Callable[[], Awaitable[None]]) -> None:
        """Do one part of the keeping. What fails here, a full disk or a fork that is refused, say,
        fails the cluster only while it has no job; a job is not ended for that."""
        while not self.over.is_set():
            try:
                await part()
                return
            except StartError as error:  # the scheduler says that it will not be
                self.fail(str(error))
            except Exception as error:
                known = isinstance(error, RankroomError)
                if not known:
                    note(traceback.format_exc())
                if not self.remote.job:
                    self.fail(str(error) if known else FAILED_HERE.format(error=error))
                elif not self.stopping:
                    self.say("lost", TROUBLE.format(error=error))
                await asyncio.sleep(AGAIN_S)

    async def _hold_connection(self) -> None:
        """Have the connection open, for the first time and again whenever it is lost."""
        connection = self.place
        if not isinstance(connection, SshConnection):
            self._connected.set()
            return
        if not self.remote.job:
            # A client that asks for a first job learns at once what is wrong with the way there.
            await connection.open(self._told)
        await connection.keep(self._told)

    def _told(self, state: str, words: str) -> None:
        if state == "open":
            self._cut.clear()
            self._connected.set()
            return
        if state == "asks":
            self.say("asks", f"{self.site.login} asks: {words}")
            return
        self._connected.clear()
        self._cut.set()
        if not self.stopping:
            # How ssh put it is in the log; while it is tried again, each try has words of its own.
            note(words)
            if self.remote.job:
                self.say("lost", LOST.format(where=self.site.login))
            else:
                self.say("connecting", words)

    async def _serve(self) -> None:
        """Submit the job, find its supervisor, and listen to that while it can be reached."""
        tries = 0
        while not self.over.is_set():
            await self._connected.wait()
            try:
                await self._serve_once()
                tries = 0
            except SshError as error:
                note(error)
            except RankroomError as error:
                if not self.remote.job:
                    raise
                # Ranks go on; what is wrong there may be put right.
                self.say("lost", str(error))
                tries += 1
            finally:
                await self._hang_up()
            await asyncio.sleep(AGAIN_S * min(max(1, tries), LONGEST))

    async def _serve_once(self) -> None:
        if self.shares is None:
            await self._meet()
        if not self.remote.job:
            await self._submit()
        if self._following is None:
            self._following = asyncio.create_task(self._lasting(self.queue.follow))
        if self.info.state == "starting":
            self.say(self.queue.state, self.queue.words)
        while not self._address and not self.over.is_set():
            if self.queue.state not in ("starting", "running"):
                await asyncio.sleep(LOOK_S)
                continue
            words = (self.remote.name, self.remote.job, str(FIND_S))
            found = (await self.login.ask("find", *words, seconds=FIND_S))["cluster"]
            if found is not None:
                self._address, self._key = found["rpc"], found["rpc_key"]
                self._node = str(found["host"])
                self._said_of_cluster(found)
        if self._address:
            await self._listen()

    async def _listen(self) -> None:
        """Take what the supervisor says of its cluster, until it cannot be reached any more."""
        self.supervisor = Client(await self._way(), self._key, beats=True)
        known, patience = -1, FIRST_S
        while not self.over.is_set():
            try:
                said = await self._ask_supervisor(patience, do="news", known=known)
            except asyncio.TimeoutError:
                self.queue.soon.set()  # it may be gone
                if not self.stopping:
                    words = SILENT if self._was_reached or not self.site.login else NO_WAY
                    about = {"name": self.info.name, "node": self._node, "login": self.site.login}
                    self.say("lost", words.format(**about))
                return
            self._was_reached = True
            known, patience = said["version"], NEWS_S
            if not self.stopping:
                self.queue.soon.clear()
            self._said_of_cluster(said["cluster"])
            if not self.shares:
                for run_id in said["runs"]:
                    self.records.begin(run_id)

    async def _way(self) -> str:
        """The address here that leads to the supervisor's."""
        line = self.place
        if not isinstance(line, SshConnection):
            return self._address
        host, _, port = self._address.removeprefix("tcp://").rpartition(":")
        if self.site.ssh_to_nodes:
            self._to_node = line = SshConnection(line.name, False, node=self._node)
            await line.open(self._told)
        digest = hashlib.sha256(str(self.paths.folder).encode()).hexdigest()[:8]
        local = line.socket.with_name(f"{line.socket.name[:8]}-{digest}")
        await line.forward(local, host, int(port))
        return f"ipc://{local}"

    async def _hang_up(self) -> None:
        held, self.supervisor, self.ready = self.supervisor, None, False
        await self.records.stop()
        if held is not None:
            await asyncio.to_thread(held.close)

    async def _ask_supervisor(self, seconds: float, *buffers: bytes, **question: Any) -> Answer:
        """The supervisor's answer. Raises SshError once the connection is cut, TimeoutError."""
        if self.supervisor is None:
            raise SshError(self.remote.words, "unreachable")
        asked = asyncio.wrap_future(self.supervisor.ask(*buffers, **question))
        cut = asyncio.create_task(self._cut.wait())
        try:
            both: set[asyncio.Future[Any]] = {asked, cut}
            await asyncio.wait(both, timeout=seconds, return_when=asyncio.FIRST_COMPLETED)
            if asked.done():
                return asked.result()
            if cut.done():
                raise SshError(LOST.format(where=self.site.login), "lost")
            raise asyncio.TimeoutError
        finally:
            cut.cancel()
            asked.cancel()

    async def _meet(self) -> None:
        """Learn who is there, and whether the home there is the one here: records need not be
        copied then, and the cluster there needs a name of its own."""
        file = self.paths.folder / MARK
        text = secrets.token_urlsafe(24)
        file.write_text(text)
        file.chmod(0o600)
        try:
            there = await self.login.ask("hello", str(file))
        finally:
            file.unlink(missing_ok=True)
        self._host, self.shares = str(there["host"]), there["text"] == text
        if self.shares and not self.remote.job:
            self.remote.name = f"{self.info.name}-job"
            self.records = self._records(self.remote.name)

    async def _submit(self) -> None:
        async with self._submitting:
            if self.stopping:
                return
            self.say("submitting", f"submits a job to {self.site.name}")
            info = self.info
            await self.queue.submit(self.remote.name, self._host, info.cwd, info.auto_restart)
            self.save()

    async def _mind(self) -> None:
        """Let go of a cluster that no client has held for long."""
        while True:
            await asyncio.sleep(LOOK_S)
            if self.lease.over(bool(self.records.live)):
                self.info.message = f"no notebook used it for {self.info.lease:g} h"
                await self.stop()

    # -- what it learns

    def _said_of_cluster(self, told: dict[str, Any]) -> None:
        for key in COPIED:
            setattr(self.info, key, told[key])
        self.info.ranks = [RankInfo(**rank) for rank in told["ranks"]]
        if told["allocation"]:
            self.info.allocation = Allocation.from_json(told["allocation"])
            self.remote.until = self.info.allocation.until or self.remote.until
        all_known = len(self.info.ranks) == self.info.size and all(r.pid for r in self.info.ranks)
        if told["state"] in ("failed", "stopped"):
            self.info.message = told["message"]
            if not self.stopping:
                self._over_soon()
        elif self.info.state == "starting" and not (
            all_known and len(self.info.ready) == self.info.size
        ):
            count = len(self.info.ready)
            self.say("starting", f"{count} of {self.info.size} ranks ready (job {self.remote.job})")
        elif self.supervisor is not None and not self.stopping:
            self.ready = True
            self.info.state = "running"
            hosts = ", ".join(sorted({rank.host for rank in self.info.ranks}))
            self.say("running", f"runs on {hosts} (job {self.remote.job})")
        self.save()

    def _said_of_job(self, state: RemoteState | None, words: str) -> None:
        """What the queue tells: how the job stands, or with None that it is over."""
        if self.stopping:
            return
        if state is None:
            self._over_soon(words)
        elif self.info.state == "starting" and not (self._cut.is_set() or self._address):
            self.say(state, words)  # from then on it is the supervisor that says, or is silent
        else:
            self.save()

    def _over_soon(self, words: str = "") -> None:
        """It is over by itself: have the records come to their end, then say so."""
        if not self.stopping:
            self.stopping = True
            self._ending = asyncio.create_task(self._lasting(lambda: self._end(words)))

    async def _end(self, words: str) -> None:
        had_ranks = self.ready or bool(self.info.ready)
        words = words or await self.queue.end()
        if had_ranks:
            await self.records.finish(bool(self.shares))
        why = self.info.message or words
        message = f"{why} (job {self.remote.job})" if self.remote.job not in why else why
        if not had_ranks and (said := await self._log()):
            message = f"{message}; {self.remote.log} ends with:\n{said}"
        if had_ranks and not self.records.live:
            await self._try("clear", self.remote.name, self.remote.log)
        self.fail(message, "ended" if had_ranks else "failed")

    async def _log(self) -> str:
        """The end of the job's output; empty if it cannot be had."""
        said = await self._try("log", self.remote.log) if self.remote.log else {}
        return str(said.get("text", ""))

    async def _try(self, command: str, *words: str) -> dict[str, Any]:
        """What the login node answers, nothing where it cannot be asked."""
        with contextlib.suppress(RankroomError, asyncio.TimeoutError):
            return await self.login.ask(command, *words)
        return {}

    # -- what it is asked

    def take(self, question: Question) -> None:
        """A question of a kernel or the server; in the thread of the connections here."""
        asyncio.run_coroutine_threadsafe(self._answer(question), self._loop)

    async def _answer(self, question: Question) -> None:
        try:
            said = await self._do(question)
            question.answer(*said.buffers, **said)
        except RankroomError as error:
            question.answer(error=type(error).__name__, text=str(error))
        except Exception as error:
            question.answer(failed=repr(error))

    async def _do(self, question: Question) -> Answer:
        do = question.content["do"]
        if do == "stop":
            return Answer(text=await self.stop())
        if do == "log":
            return Answer(text=await self._log())
        if do == "accepts":
            await self.queue.accepts(start.site_from(question.content["site"]))
            return Answer()
        if do in PASSED:
            return await self._pass_on(question)
        raise RankroomError(errors.UNKNOWN.format(name=self.info.name, do=do))

    async def _pass_on(self, question: Question) -> Answer:
        """What the supervisor answers."""
        if self.supervisor is None or not self.ready:
            raise SshError(NOT_NOW.format(name=self.info.name, words=self.remote.words))
        try:
            said = await self._ask_supervisor(ANSWER_S, *question.buffers, **question.content)
        except SshError as error:  # just now
            raise SshError(NOT_NOW.format(name=self.info.name, words=error)) from None
        if question.content["do"] in ("run", "follow") and said.get("run") and not self.shares:
            # The record is here, and written to, before anybody speaks of it.
            with contextlib.suppress(RankroomError, asyncio.TimeoutError):
                await self.records.bring(said["run"]["id"])
            self.records.begin(said["run"]["id"])
        return said

    async def stop(self) -> str:
        """End the cluster and its job; what is left to say, in words."""
        if self.over.is_set() or self.remote.state == "ending":
            return ""
        self.stopping = True
        self.info.state = "ending"
        self.say("ending", "is being stopped")
        self._ending = asyncio.create_task(self._lasting(self._stop))
        done, _ = await asyncio.wait({self._ending}, timeout=STOP_S)
        return "" if done else LATER.format(name=self.info.name, job=self.remote.job)

    async def _stop(self) -> None:
        async with self._submitting:
            pass  # a job that is being submitted is known after that
        await self._end_ranks()
        while self.remote.job:
            try:
                await self.queue.cancel()
                break
            except (SshError, SchedulerError) as error:
                if is_past(self.remote.until):
                    break  # the job is over by itself
                self.say("ending", f"its job {self.remote.job} is not cancelled yet: {error}")
                await asyncio.sleep(5 * AGAIN_S)
        if self.records.live or (self.shares and self.info.ready):
            await self.records.finish(bool(self.shares))
        await self._try("clear", self.remote.name, self.remote.log)
        self.info.state = "stopped"
        self.say("ended", self.info.message or "was stopped")
        self.over.set()

    async def _end_ranks(self) -> None:
        """Have the supervisor end the ranks, so that what they said last is in the records."""
        with contextlib.suppress(RankroomError, asyncio.TimeoutError):
            await self._ask_supervisor(FIRST_S, do="stop")
            known, until = -1, time.monotonic() + FIRST_S
            while time.monotonic() < until:
                said = await self._ask_supervisor(FIRST_S, do="news", known=known)
                known = said["version"]
                if said["cluster"]["state"] in ("stopped", "failed"):
                    return

    # -- its end

    async def _clean(self) -> None:
        """Leave nothing but records, here and there; what tells how it failed stays here."""
        if self.info.state == "failed" and self.remote.job:
            with contextlib.suppress(SshError, SchedulerError):
                await self.queue.cancel()
        if not self.shares:
            self.records.leave(NOTHING_MORE.format(name=self.info.name, site=self.site.name))
        await self._hang_up()
        if self._to_node is not None:
            await self._to_node.close()
            await self._to_node.end()  # the node is another's now
        await self.place.close()
        if self.info.state == "stopped":
            self.paths.remove()
        else:
            self.save()


def note(*words: object) -> None:
    """A line of the log, where there is room for it."""
    with contextlib.suppress(OSError):
        print(time.strftime("%H:%M:%S"), *words, flush=True)


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
        asyncio.get_running_loop().add_signal_handler(signal.SIGTERM, agent.over.set)
        await agent.keep()

    asyncio.run(keep())


LOST = (
    "the connection to {where} is lost; it is opened again by itself, and the ranks go on meanwhile"
)
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
LATER = (
    "{name} cannot be reached: a process here goes on trying to cancel its job {job}, until it can"
)
NOTHING_MORE = (
    "cluster {name} on {site} was over before all of this run had been copied: the record of the "
    "same name there has the rest"
)

if __name__ == "__main__":
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    run(Path(sys.argv[1]))
