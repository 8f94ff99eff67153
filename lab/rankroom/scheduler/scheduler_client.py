"""Talking to a site's scheduler: submit, ask and cancel, here or on its login node.

Each call is a command with a time limit, and a refusal is reported with the command, its output
and what to do. However many processes ask, the scheduler is asked at most once in PERIOD_S.
"""

from __future__ import annotations

import asyncio
import contextlib
import os
import re
import shlex
import socket
import time
from collections.abc import Awaitable, Callable, Container, Sequence
from dataclasses import replace
from types import ModuleType
from typing import Any, TypeVar

from rankroom.errors import (
    NotPrivateError,
    RankroomError,
    SchedulerError,
    SshError,
    StartError,
    UsageError,
)
from rankroom.scheduler import own_folder, pbs, slurm
from rankroom.scheduler.jobs import JobStatus, login_shell
from rankroom.scheduler.remedies import remedy
from rankroom.scheduler.site import Site, expand, profile_of
from rankroom.scheduler.status_cache import StatusCache
from rankroom.scheduler.submitted_jobs import Submitted, all_submitted, named
from rankroom.ssh.host import Host
from rankroom.system import commands as shell

ASK_S = 20.0  # every command of Slurm's waits 9 s when its controller is down
AGAIN_S = 1.0  # until what could not be known is asked again
SUBMIT_S = 150.0  # Slurm's waits two minutes for a controller that is busy
# For a job to be listed whose submission was not answered, and between two looks.
SEEK_S, SEEK_PAUSE_S = 30.0, 3.0
UNSEEN_S = 180.0  # since its submission, in which no list need have a job yet
_KINDS: dict[str, ModuleType] = {"slurm": slurm, "pbs": pbs}
_DENIED, _NO_COMMAND = 126, 127  # the first also of one that is not there, beside a closed folder
T = TypeVar("T")


class LostAnswerError(SchedulerError):
    """A job was submitted, and whether it was accepted is not known."""


class Scheduler:
    """The scheduler of a site, as its commands are reached at `place`."""

    def __init__(self, site: Site, place: Host) -> None:
        if site.scheduler not in _KINDS:
            raise UsageError(NO_SCHEDULER.format(site=site.name))
        self.site = site
        self.place = place
        self.kind: Any = _KINDS[site.scheduler]
        self._asked = StatusCache(f"{site.scheduler}-{place.name or _here()}")
        self._in_login_shell = False
        self._submitted: dict[str, float] = {}  # when, as a full disk keeps no record of it
        self._seen: set[str] = set()  # the jobs that a list had, or that were cancelled

    def script(self, name: str, folder: str, commands: Sequence[str]) -> str:
        """The job script that runs `commands`; `folder` is an absolute path there."""
        text: str = self.kind.script(self.site, name, folder, commands)
        return text

    async def folder(self) -> str:
        """The site's scratch folder as an absolute path there; it is made, private to the user."""
        there = expand(self.site.scratch)
        # The path in a line of its own: login shells greet, and some do so on standard output.
        say = f'printf "\\n{_MARK}%s\\n" "$PWD"'
        make = f'set -u; umask 077; mkdir -p "{there}" && cd "{there}" && {say}'
        # As jobs have it: variables may be set in login shells only.
        done = await self.call(["bash", "-lc", make], ASK_S)
        found = re.search(rf"^{_MARK}(/.*)$", done.output, re.MULTILINE)
        if not done.ok or found is None:
            raise self.failed(done, SCRATCH.format(scratch=self.site.scratch))
        return found[1]

    async def own_folder(self, name: str) -> str:
        """A folder in the scratch folder that only the user may enter; it is made.

        Raises NotPrivateError where one is there that others made or may write to.
        """
        there = f"{await self.folder()}/{name}"
        done = await self.call(["bash", "-c", own_folder.MAKE, "bash", there], ASK_S)
        if done.returncode == own_folder.REFUSED:
            where = self.place.name or "this machine"
            raise NotPrivateError(NOT_PRIVATE.format(folder=there, where=where))
        if not done.ok:
            raise self.failed(done)
        return there

    async def accepted(self, folder: str) -> str | None:
        """What the scheduler says of a job like the site's, which is not submitted; None if it
        cannot tell.

        Raises SchedulerError if it would be refused, StartError if it would never start.
        """
        if not (test := self.kind.TEST):
            return None
        script = self.script("check", folder, ["true"])
        done = await self.call(self._sending(test, script), ASK_S, script)
        if not done.ok:
            raise self.failed(done)
        if (why := await self.too_much(done.output)) and not self.site.job.qos:
            profile = profile_of(self.site.name)
            raise StartError(TOO_MUCH.format(why=why, profile=profile))
        return done.output

    async def too_much(self, said: str) -> str:
        """What the site's job asks for beyond all limits of the partition that it would be in, as
        `said` of it, in words; empty if nothing. A QoS may lift them."""
        job = self.site.job
        chosen = replace(job, partition=job.partition or self.kind.partition(said))
        limits = await self.call(self.kind.LIMITS, ASK_S)
        words: str = self.kind.too_much(replace(self.site, job=chosen), limits.output)
        return words

    async def submit(self, script: str, copy: str = "", others: Container[str] = ()) -> str:
        """Submit a job script; the job's id. `copy` is kept with it. Raises SchedulerError if it is
        refused.

        Where the answer is lost or does not say the id, the job may be there: it is looked for by
        its name, which `others` had before. Raises LostAnswerError, or SshError, while nothing can
        be known of it; StartError if it is not found after an answer without an id.
        """
        name = named(script)
        try:
            done = await self.call(self._sending(self.kind.SUBMIT, script), SUBMIT_S, script)
        except SshError as error:
            if error.why == "lost":
                raise SshError(f"{error}\n{self._perhaps(name)}", error.why) from None
            raise
        if done.ok:
            try:
                job = submitted(self.kind, done.output)
            except StartError as error:  # a wrapper of the site's may have words of its own
                job = await self._seek(name, others, StartError(f"{error}\n{self._perhaps(name)}"))
        elif not done.timed_out and not self.kind.LOST.search(done.output):
            raise self.failed(done)
        else:
            job = await self._seek(name, others, self.failed(done, self._perhaps(name)))
        self._submitted[job] = time.time()
        host = "" if self.place.name else socket.gethostname()
        made = Submitted(self.site.name, self.place.name, job, name, time.time(), copy, host=host)
        made.write()
        return job

    async def _seek(self, name: str, others: Container[str], failed: RankroomError) -> str:
        """The job of this name that is none of the others, once it is listed. Raises `failed` if it
        is not, LostAnswerError if nothing is."""
        until = time.monotonic() + SEEK_S
        while True:
            is_known = False
            with contextlib.suppress(SchedulerError, SshError):
                found = [each for each in await self.find(name) if each not in others]
                is_known = True
                if found:
                    return max(found, key=int)
            if time.monotonic() > until:
                raise failed if is_known else LostAnswerError(str(failed))
            await asyncio.sleep(SEEK_PAUSE_S)

    def _perhaps(self, name: str) -> str:
        return PERHAPS.format(name=name, list=self.kind.LIST)

    async def find(self, name: str) -> list[str]:
        """The ids of the user's jobs of this name that are not over. Raises SchedulerError while
        the scheduler does not answer."""
        done = await self.call(self.kind.find(name), ASK_S)
        if not done.ok:
            raise self.failed(done)
        found: list[str] = self.kind.found(done.output, name)
        return found

    async def ask(self, ids: Sequence[str]) -> dict[str, JobStatus]:
        """How jobs stand, by an answer that may be some seconds old.

        A job is gone only by an answer to a question that was put after this call. Raises
        SchedulerError while the scheduler does not answer; it is asked again after a while.
        """
        called, wanted = time.time(), list(ids)
        while True:
            answer = await self._asked.latest(wanted, self._question)
            if answer.error:
                raise SchedulerError(answer.error)
            found = answered(self.kind, answer.output, wanted)
            unknown = {job for job, status in found.items() if status.state == "gone"}
            if (answer.at >= called and unknown <= set(answer.ids)) or not unknown:
                self._seen |= found.keys() - unknown
                return found
            called = min(called, time.time())  # a clock may be set back
            await asyncio.sleep(max(0.0, answer.again - time.time()))

    async def status(self, job: str) -> JobStatus:
        """How one job stands; as `ask`, but it is gone only by two answers in a row.

        Its followers end what belongs to it then: one list that lacks it is not enough. Nor are two
        for a job that was submitted just now: a site's lists may be some minutes old.
        """
        found = (await self.ask([job]))[job]
        if found.state == "gone":
            found = (await self.ask([job]))[job]
        if found.state != "gone" or not self._is_unseen(job):
            return found
        if words := self.kind.ask_alone(job):
            ended: JobStatus | None = self.kind.ended((await self.call(words, ASK_S)).output, job)
            if ended:
                return ended
        return JobStatus(job, "pending", NOT_LISTED)

    def _is_unseen(self, job: str) -> bool:
        """Whether a job that was submitted lately has been in no list since."""
        if job in self._seen:
            return False
        own = (self.site.name, job)
        kept = (each.at for each in all_submitted() if (each.site, each.job) == own)
        at = self._submitted.get(job) or max(kept, default=0.0)
        return 0 <= time.time() - at < UNSEEN_S

    async def cancel(self, job: str) -> None:
        """End a job; one that has ended is fine. Raises SchedulerError if it cannot be."""
        done = await self.call([*self.kind.CANCEL, job], ASK_S)
        if not done.ok and not self.kind.OVER.search(done.output):
            raise self.failed(done)
        self._seen.add(job)  # it is over once no list has it

    async def call(
        self, argv: Sequence[str], timeout: float, input: str | None = None
    ) -> shell.Completed:
        """Run a command there, in a login shell where only that finds the scheduler's commands."""
        # Of a command that is not there, `env` says so by its status, as csh does not.
        plain = argv if argv[0] == "env" else ["env", *argv]
        words = login_shell(argv) if self._in_login_shell else plain
        done = await self.place.run(words, timeout=timeout, input=input)
        if done.returncode in (_DENIED, _NO_COMMAND) and not self._in_login_shell:
            self._in_login_shell = True
            again = await self.call(argv, timeout, input)
            if done.returncode == _NO_COMMAND or again.returncode != _NO_COMMAND:
                return again
            self._in_login_shell = False
        return shell.Completed(tuple(argv), done.returncode, done.output, done.timed_out)

    def _sending(self, argv: Sequence[str], script: str) -> Sequence[str]:
        """The command that takes a script, and nothing else in the place of what that asks for."""
        unset = [word for name in self.kind.unset(script) for word in ("-u", name)]
        return ["env", *unset, *argv] if unset else argv

    def failed(self, done: shell.Completed, what: str = "") -> SchedulerError:
        """The error for a command that failed: where, what it said, and what to do."""
        failure = done.failure(shlex.join(shell.without_env(done.argv)), self.place.name)
        what = what or remedy(self.site, done)
        return SchedulerError(f"{self.site.name}: {failure}\n{what}")

    async def _question(self, ids: Sequence[str]) -> tuple[str, str]:
        """What the scheduler answers, and what went wrong instead."""
        try:
            done = await self.call(self.kind.ask(ids), ASK_S)
            if not done.ok and (otherwise := self.kind.ask_otherwise(ids, done.output)):
                done = await self.call(otherwise, ASK_S)
            if not done.ok and not self.kind.PARTLY.search(done.output):
                return "", str(self.failed(done))
            self.kind.listed(done.output)
        except SshError:
            raise  # who has no line says nothing of the scheduler to others
        except RankroomError as error:
            return "", str(error)
        return done.output, ""


def _here() -> str:
    """Which scheduler it is that is asked here: machines of several sites may share a home."""
    asked = [os.environ[each] for each in ("SLURM_CONF", "SLURM_CLUSTERS") if each in os.environ]
    return "-".join(["here", socket.gethostname(), *asked])


def submitted(kind: Any, output: str) -> str:
    """A job's id in what was said when it was submitted. Raises StartError if there is none."""
    found = kind.SUBMITTED.findall(output)
    if not found:
        raise StartError(f"{kind.SUBMIT[0]} gave no job id; it said:\n{output.strip()}")
    return str(found[-1])  # what a login shell or a wrapper says comes before it


def answered(kind: Any, output: str, ids: Sequence[str]) -> dict[str, JobStatus]:
    """How each job stands by the answer to a question; one that is not in it is gone."""
    found = kind.listed(output)
    return {each: found.get(each) or JobStatus(each, "gone") for each in ids}


async def as_soon_as_known(
    look: Callable[[], Awaitable[T]], job: str, show: Callable[[str], None]
) -> T:
    """What `look` answers about a job, once it can; until then `show(words)` says that it cannot.

    The job goes on without anybody who looks.
    """
    while True:
        try:
            return await look()
        except (SchedulerError, SshError) as error:
            why = str(error).partition("\n")[0].rstrip(":")
            show(f"job {job}: its state is unknown ({why}); asking again")
            await asyncio.sleep(AGAIN_S)


_MARK = "folder="
NOT_LISTED = "it is not listed yet"
NO_SCHEDULER = (
    'the site {site} has no scheduler (its profile says `scheduler = "none"`): '
    "`%cluster start` without --site starts ranks on this machine"
)
NOT_PRIVATE = (
    "{folder} on {where} belongs to another user, or others may write to it, so what is in it need "
    "not be yours: have it removed, or set the profile's `scratch` to a folder of your own"
)
SCRATCH = (
    "Rankroom writes to the profile's `scratch`, {scratch}: set it to a folder that you may write "
    "to and that login and compute nodes share. Variables in it must be set in a login shell there"
)
PERHAPS = (
    "Whether the job {name} was accepted is not known, and it may start later: before you try "
    "again, look at `{list}` there, and cancel it if it is listed"
)
TOO_MUCH = (
    "such a job is accepted, and would never start: {why}. Ask for less in [job] of {profile}, or "
    "of another partition"
)
