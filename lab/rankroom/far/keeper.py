"""The process here that keeps a cluster on a site: holds the line, follows the job, copies records.

It belongs to no kernel. Kernels and the Jupyter server ask it as they ask the keeper of ranks on
this machine; it passes on to the desk there what it cannot answer. `python -m rankroom.far.keeper
FOLDER` is started by `far.start`; where the cluster's job is known already, it goes on with that.
"""

from __future__ import annotations

import asyncio
import contextlib
import os
import secrets
import signal
import socket
import sys
import time
import traceback
from collections.abc import Awaitable, Callable
from concurrent.futures import Future
from pathlib import Path
from typing import Any

from rankroom import config
from rankroom.errors import RankroomError, RecordError, SchedulerError, SshError, StartError
from rankroom.far import start
from rankroom.far.copies import Copies
from rankroom.far.frames import Head
from rankroom.far.queue import Queue
from rankroom.far.there import There
from rankroom.record.cluster_file import Allocation, ClusterInfo, ClusterPaths, Far, FarState
from rankroom.record.model import RankInfo
from rankroom.record.store import Store
from rankroom.rpc.server import Question, Server
from rankroom.scheduler.site import Site
from rankroom.ssh.connection import SshConnection
from rankroom.ssh.host import Host, place
from rankroom.supervisor.lease import Lease

LONGEST = 30  # times AGAIN_S between two tries
AGAIN_S = 1.0  # between two tries to have a desk, and to write what a full disk refused
ANSWER_S = 600.0  # a question may be answered by a rank that is busy
RECORDS_S = 30.0  # for records of a cluster that is over to come to their end
STOP_S = 30.0
LOOK_S = 1.0
MARK = "shared"  # a file in the cluster's folder, while it is asked whether it is seen there
# Passed on to the desk as they are.
PASSED = (
    "run", "rejoin", "interrupt", "release", "stacks", "restart", "look", "push", "pull",
    "apply",
)  # fmt: skip
# Of the cluster's keeper there, copied as they are.
COPIED = ("size", "epoch", "exits", "restarts", "past", "starting", "ready", "cwd")


class Keeper:
    """One cluster on a site."""

    def __init__(self, paths: ClusterPaths, info: ClusterInfo, far: Far, site: Site) -> None:
        self.paths, self.info, self.far, self.site = paths, info, far, site
        self.place: Host = place(site.login, terminal=False)
        self.queue = Queue(site, self.place, far, self._said_of_job)
        self.copies = Copies(Store(), far.name or info.name, info.created)
        self.there: There | None = None
        self.over = asyncio.Event()
        self.stopping = False
        self.ready = False  # whether the desk there has the ranks
        self._loop = asyncio.get_running_loop()
        # Whether records there are those here; not known before it was asked once.
        self.shares: bool | None = None
        self._lag = False
        self._submitting = asyncio.Lock()
        self._following: asyncio.Task[None] | None = None
        self._ending: asyncio.Task[None] | None = None
        self._line_open = asyncio.Event()
        self.server = Server("", paths.folder, self.take)
        info.rpc, info.rpc_key = self.server.address, self.server.key
        info.host, info.keeper = socket.gethostname(), os.getpid()
        info.lease = config.lease_hours()
        self.lease = Lease(paths.folder, info.lease * 3600)
        if info.state == "running":  # of a keeper before this one, which is gone
            far.state, far.words = "lost", AGAIN.format(where=site.login or "its agent")
        self.save()

    def save(self) -> None:
        with contextlib.suppress(OSError):  # a full disk; what is told next is written whole
            self.paths.write(self.info)

    def say(self, state: FarState, words: str) -> None:
        """How the cluster stands, for people."""
        if (self.far.state, self.far.words) != (state, words):
            self.far.state, self.far.words = state, words
            note(state, words)
            self.save()

    def fail(self, message: str, state: FarState = "failed") -> None:
        """It is over, for this reason."""
        if not self.over.is_set():
            self.info.state, self.info.message = "failed", message
            self.say(state, message)
            self.save()
            self.over.set()

    # -- its life

    async def keep(self) -> None:
        """From the first try to reach the site until all is over."""
        parts = (self._line, self._serve, self._mind)
        tasks = [asyncio.create_task(self._lasting(part)) for part in parts]
        await self.over.wait()
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
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
                if not self.far.job:
                    self.fail(str(error) if known else FAILED_HERE.format(error=error))
                elif not self.stopping:
                    self.say("lost", TROUBLE.format(error=error))
                await asyncio.sleep(AGAIN_S)

    async def _line(self) -> None:
        """Have the line open, for the first time and again whenever it is lost."""
        line = self.place
        if not isinstance(line, SshConnection):
            self._line_open.set()
            return
        if not self.far.job:
            # Whoever asks for a first job is told at once what is wrong with the way there.
            await line.open(self._told)
        await line.keep(self._told)

    def _told(self, state: str, words: str) -> None:
        if state == "open":
            self._line_open.set()
            return
        self._line_open.clear()
        if state == "asks":
            self.say("asks", f"{self.site.login} asks: {words}")
        elif not self.stopping:
            # How ssh put it is in the log; while it is tried again, each try has words of its own.
            note(words)
            if self.far.job:
                self.say("lost", LOST.format(where=self.site.login))
            else:
                self.say("connecting", words)

    async def _serve(self) -> None:
        """A desk there while the line is open; the job is submitted as soon as there is one."""
        tries = 0
        while not self.over.is_set():
            await self._line_open.wait()
            there = There(self.site, self.place, self._said)
            try:
                await there.open()
                tries = 0
            except SshError:
                await asyncio.sleep(AGAIN_S)
                continue
            except RankroomError as error:
                if not self.far.job:
                    raise
                # Ranks go on without a desk; what is wrong there may be put right.
                self.say("lost", str(error))
                tries += 1
                await asyncio.sleep(AGAIN_S * min(tries, LONGEST))
                continue
            self.there = there
            listening = asyncio.create_task(there.listen())
            try:
                if self.shares is None:
                    self.shares = await self._is_shared(there)
                if not self.far.job:
                    await self._submit(there)
                if self._following is None:
                    self._following = asyncio.create_task(self._lasting(self.queue.follow))
                if self.info.state == "starting":
                    self.say(self.queue.state, self.queue.words)
                await there.tell("follow", name=self.far.name, have=self.copies.have())
                await listening
            except SshError:
                pass
            finally:
                self.there, self.ready = None, False
                listening.cancel()
                await there.close()
            if not self.over.is_set() and self.far.job and not self.stopping:
                self.say("lost", LOST.format(where=self.site.login or "the agent"))
            await asyncio.sleep(0 if self._line_open.is_set() else AGAIN_S)

    async def _is_shared(self, there: There) -> bool:
        """Whether the home there is the one here: records need not be copied then, and the
        cluster there needs a name of its own."""
        file = self.paths.folder / MARK
        text = secrets.token_urlsafe(24)
        file.write_text(text)
        file.chmod(0o600)
        try:
            said, _ = await there.ask("shares", file=str(file), text=text)
        finally:
            file.unlink(missing_ok=True)
        if said["shares"] and not self.far.job:
            self.far.name = f"{self.info.name}-job"
            self.copies = Copies(Store(), self.far.name, self.info.created)
        return bool(said["shares"])

    async def _submit(self, there: There) -> None:
        async with self._submitting:
            if self.stopping:
                return
            self.say("submitting", f"submits a job to {self.site.name}")
            host = str(there.greeting["host"])
            await self.queue.submit(self.far.name, host, self.info.cwd, self.info.auto_restart)
            self.save()

    async def _mind(self) -> None:
        """Let go of a cluster that nobody has held for long, and go on with what disks refused."""
        while True:
            await asyncio.sleep(LOOK_S)
            if self._lag and self.there is not None:
                self._lag = False
                with contextlib.suppress(SshError):
                    await self.there.tell("follow", name=self.far.name, have=self.copies.have())
            if self.lease.over(False):
                if self.copies.live:
                    self.lease = Lease(self.paths.folder, self.info.lease * 3600)
                else:
                    self.info.message = f"no notebook used it for {self.info.lease:g} h"
                    await self.stop()

    # -- what it is told

    def _said(self, head: Head, body: bytes) -> None:
        """What the desk tells."""
        if head["say"] == "record":
            if self.shares:
                return
            try:
                self.copies.take(head, body)
            except RecordError as error:
                if not self._lag:
                    note(error)
                self._lag = True
        elif head["say"] == "cluster":
            self._said_of_cluster(head["info"])
        elif head["say"] == "ready":
            self.ready = True
            self.info.state = "running"
            hosts = ", ".join(sorted({rank.host for rank in self.info.ranks}))
            self.say("running", f"runs on {hosts} (job {self.far.job})")
            self.save()
        elif head["say"] == "trouble":
            note(head["text"])

    def _said_of_cluster(self, told: dict[str, Any] | None) -> None:
        if told is not None and told["allocation"] and not self._is_ours(told["allocation"]["job"]):
            return  # what a job before this one left under the same name
        if told is None:
            # Not there yet, or over and gone: the scheduler knows.
            self.queue.soon.set()
            return
        self.queue.soon.clear()
        for key in COPIED:
            setattr(self.info, key, told[key])
        self.info.ranks = [RankInfo(**rank) for rank in told["ranks"]]
        if told["allocation"]:
            self.info.allocation = Allocation.from_json(told["allocation"])
            self.far.until = self.info.allocation.until or self.far.until
        if told["state"] in ("failed", "stopped"):
            self.info.message = told["message"]
            if not self.stopping:
                self._over_soon()
        elif self.info.state == "starting":
            count = len(self.info.ready)
            self.say("starting", f"{count} of {self.info.size} ranks ready (job {self.far.job})")
        self.save()

    def _is_ours(self, job: str) -> bool:
        # PBS names the server with a job, and not always by the same name.
        return job.partition(".")[0] == self.far.job.partition(".")[0]

    def _said_of_job(self, state: FarState | None, words: str) -> None:
        """What the queue tells: how the job stands, or with None that it is over."""
        if self.stopping:
            return
        if state is None:
            self._over_soon(words)
        elif self.there is not None and not self.ready and self.far.state != "starting":
            self.say(state, words)
        else:
            self.save()

    def _over_soon(self, words: str = "") -> None:
        """It is over by itself: have the records come to their end, then say so."""
        if not self.stopping:
            self.stopping = True
            self._ending = asyncio.create_task(self._lasting(lambda: self._end(words)))

    async def _end(self, words: str) -> None:
        had_ranks = self.ready or bool(self.info.ready)
        deadline = time.monotonic() + RECORDS_S
        while self.copies.live and time.monotonic() < deadline:
            await asyncio.sleep(0.1)
        if not words:
            words = await self.queue.end()
        why = self.info.message or words
        message = f"{why} (job {self.far.job})" if self.far.job not in why else why
        if not had_ranks and (said := await self._log()):
            message = f"{message}; {self.far.log} ends with:\n{said}"
        if had_ranks and not self.copies.live:
            await self._ask("clear", log=self.far.log)
        self.fail(message, "ended" if had_ranks else "failed")

    async def _log(self) -> str:
        """The end of the job's output; empty if it cannot be had."""
        return str((await self._ask("log", path=self.far.log)).get("text", ""))

    async def _ask(self, do: str, **question: Any) -> Head:
        """What the desk answers; nothing where there is none, or it cannot."""
        if self.there is not None and self.far.job:
            with contextlib.suppress(RankroomError, asyncio.TimeoutError):
                return (await asyncio.wait_for(self.there.ask(do, **question), STOP_S))[0]
        return {}

    # -- what it is asked

    def take(self, question: Question) -> None:
        """A question of a kernel or the server; in the thread of the connections here."""
        answering = asyncio.run_coroutine_threadsafe(self._answer(question.content), self._loop)
        answering.add_done_callback(lambda done: question.answer(**_answered(done)))

    async def _answer(self, question: dict[str, Any]) -> dict[str, Any]:
        do = question.pop("do")
        try:
            if do == "stop":
                return {"text": await self.stop()}
            if do == "log":
                return {"text": await self._log()}
            if do == "accepts":
                await self.queue.accepts(start.site_from(question["site"]))
                return {}
            if do in PASSED:
                return await self._pass_on(do, question)
        except RankroomError as error:
            return {"error": type(error).__name__, "text": str(error)}
        return {}

    async def _pass_on(self, do: str, question: dict[str, Any]) -> dict[str, Any]:
        """The desk's answer; bytes that belong to question or answer are in files here."""
        there = self.there
        if there is None or not self.ready:
            raise SshError(NOT_NOW.format(name=self.info.name, words=self.far.words))
        given, into = question.pop("given", None), question.pop("into", None)
        body = Path(given).read_bytes() if given else b""
        try:
            head, data = await asyncio.wait_for(there.ask(do, body, **question), ANSWER_S)
        except SshError as error:  # just now
            raise SshError(NOT_NOW.format(name=self.info.name, words=error)) from None
        if into:
            Path(into).write_bytes(data)
        return head

    async def stop(self) -> str:
        """End the cluster and its job; what is left to say, in words."""
        if self.over.is_set() or self.far.state == "ending":
            return ""
        self.stopping = True
        self.info.state = "ending"
        self.say("ending", "is being stopped")
        self._ending = asyncio.create_task(self._lasting(self._stop))
        done, _ = await asyncio.wait({self._ending}, timeout=STOP_S)
        return "" if done else LATER.format(name=self.info.name, job=self.far.job)

    async def _stop(self) -> None:
        async with self._submitting:
            pass  # a job that is being submitted is known after that
        await self._ask("stop")
        while self.far.job:
            try:
                await self.queue.cancel()
                break
            except (SshError, SchedulerError) as error:
                if self.far.until and time.time() > self.far.until:
                    break  # the job is over by itself
                self.say("ending", f"its job {self.far.job} is not cancelled yet: {error}")
                await asyncio.sleep(5 * AGAIN_S)
        await self._ask("clear", log=self.far.log)
        self.info.state = "stopped"
        self.say("ended", self.info.message or "was stopped")
        self.over.set()

    # -- its end

    async def _clean(self) -> None:
        """Leave nothing but records, here and there; what tells how it failed stays here."""
        if self.info.state == "failed" and self.far.job:
            with contextlib.suppress(SshError, SchedulerError):
                await self.queue.cancel()
        if not self.shares:
            self.copies.leave(NOTHING_MORE.format(name=self.info.name, site=self.site.name))
        await self.place.close()
        if self.info.state == "stopped":
            self.paths.remove()
        else:
            self.save()


def note(*words: object) -> None:
    """A line of the log, where there is room for it."""
    with contextlib.suppress(OSError):
        print(time.strftime("%H:%M:%S"), *words, flush=True)


def _answered(done: Future[dict[str, Any]]) -> dict[str, Any]:
    error = done.exception()
    return {"failed": repr(error)} if error else done.result()


def run(folder: Path) -> None:
    """Keep the cluster in `folder` until it is over."""
    paths = ClusterPaths(folder.name, folder.parent)
    info = paths.read()
    if info is None or info.far is None:
        raise SystemExit(f"no cluster on a site in {folder}")
    far = info.far

    async def keep() -> None:
        keeper = Keeper(paths, info, far, start.site_of(paths))
        # The job goes on, as it does when the machine goes down: another keeper takes it up.
        asyncio.get_running_loop().add_signal_handler(signal.SIGTERM, keeper.over.set)
        await keeper.keep()

    asyncio.run(keep())


LOST = (
    "the connection to {where} is lost; it is opened again by itself, and the ranks go on meanwhile"
)
TROUBLE = "the process that keeps it from here has met with {error}; it goes on trying"
FAILED_HERE = "the process that keeps it from here failed: {error!r}"
AGAIN = "{where} is being reached again; the ranks go on meanwhile"
NOT_NOW = "cluster {name} cannot be reached now: {words}"
LATER = (
    "{name} cannot be reached: its job {job} is cancelled as soon as it can be, by a process that "
    "goes on trying here"
)
NOTHING_MORE = (
    "cluster {name} on {site} was over before all of this run had come here: what there is more of "
    "it is in the record of the same name there"
)

if __name__ == "__main__":
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    run(Path(sys.argv[1]))
