"""Client of a site's scheduler: submit, query and cancel jobs, here or on its login node.

Each call is a command with a timeout; a failure is reported with the command, its output and the
remedy. However many processes ask, the scheduler is queried at most once in MIN_QUERY_INTERVAL_S.
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

COMMAND_TIMEOUT_S = 20.0  # every Slurm command waits 9 s when the controller is down
RETRY_DELAY_S = 1.0  # before a failed query is repeated
SUBMIT_TIMEOUT_S = 150.0  # sbatch waits two minutes for a busy controller
# Until a job is listed whose submission got no reply, and between two attempts.
FIND_JOB_TIMEOUT_S, FIND_JOB_INTERVAL_S = 30.0, 3.0
LISTING_DELAY_S = 180.0  # after its submission, while lists may not have a job yet
# A job that has waited for so long could start at first: limits of a partition change by night, or
# as its nodes are drained. That it never will has to be reported for a day then.
COULD_START_AFTER_S, CHANGED_LIMIT_PATIENCE_S = 600.0, 86400.0
_MODULE_BY_SCHEDULER: dict[str, ModuleType] = {"slurm": slurm, "pbs": pbs}
_STATUS_DENIED, _STATUS_NOT_FOUND = (
    126,
    127,
)  # the first also for a missing command, if a PATH folder is closed
T = TypeVar("T")


class LostAnswerError(SchedulerError):
    """A job was submitted, and whether it was accepted is unknown."""


class Scheduler:
    """The scheduler of a site, whose commands are run at `place`."""

    def __init__(self, site: Site, place: Host) -> None:
        if site.scheduler not in _MODULE_BY_SCHEDULER:
            raise UsageError(NO_SCHEDULER.format(site=site.name))
        self.site = site
        self.place = place
        self.kind: Any = _MODULE_BY_SCHEDULER[site.scheduler]
        self._asked = StatusCache(f"{site.scheduler}-{place.name or _here()}")
        self._in_login_shell = False
        self._submitted: dict[str, float] = {}  # when; a full disk keeps no record of it
        self._seen: set[str] = set()  # the jobs that were in a list, or were cancelled

    def script(self, name: str, folder: str, commands: Sequence[str]) -> str:
        """Return the job script that runs `commands`; `folder` is an absolute path there."""
        text: str = self.kind.script(self.site, name, folder, commands)
        return text

    async def folder(self) -> str:
        """Create the site's scratch folder, private to the user; return its absolute path there."""
        there = expand(self.site.scratch)
        # The path goes on a line of its own: login shells may print greetings to standard output.
        say = f'printf "\\n{_MARK}%s\\n" "$PWD"'
        make = f'set -u; umask 077; mkdir -p "{there}" && cd "{there}" && {say}'
        # A login shell, as in jobs: variables may be set only there.
        done = await self.call(["bash", "-lc", make], COMMAND_TIMEOUT_S)
        found = re.search(rf"^{_MARK}(/.*)$", done.output, re.MULTILINE)
        if not done.ok or found is None:
            raise self.failed(done, SCRATCH_FAILED.format(scratch=self.site.scratch))
        return found[1]

    async def own_folder(self, name: str) -> str:
        """Create a folder in the scratch folder that only the user may enter; return its path.

        Raises NotPrivateError if there is one that others created or may write to.
        """
        there = f"{await self.folder()}/{name}"
        done = await self.call(
            ["bash", "-c", own_folder.MAKE_SCRIPT, "bash", there], COMMAND_TIMEOUT_S
        )
        if done.returncode == own_folder.STATUS_REFUSED:
            where = self.place.name or "this machine"
            raise NotPrivateError(NOT_PRIVATE.format(folder=there, where=where))
        if not done.ok:
            raise self.failed(done)
        return there

    async def accepted(self, folder: str) -> str | None:
        """Return the scheduler's answer to a test with a job like the site's; None if it has no
        test.

        Raises SchedulerError if it would be refused, StartError if it would never start.
        """
        if not (test := self.kind.TEST):
            return None
        script = self.script("check", folder, ["true"])
        done = await self.call(self._sending(test, script), COMMAND_TIMEOUT_S, script)
        if not done.ok:
            raise self.failed(done)
        if (why := await self.too_much(done.output)) and not self.site.job.qos:
            profile = profile_of(self.site.name)
            raise StartError(TOO_MUCH.format(why=why, profile=profile))
        return done.output

    async def too_much(self, said: str) -> str:
        """Return, in words, what the site's job requests beyond all limits of its partition, as
        `said` in its test; empty if nothing. A QoS may lift the limits."""
        job = self.site.job
        chosen = replace(job, partition=job.partition or self.kind.partition(said))
        limits = await self.call(self.kind.LIMITS, COMMAND_TIMEOUT_S)
        words: str = self.kind.too_much(replace(self.site, job=chosen), limits.output)
        return words

    async def submit(self, script: str, copy: str = "", others: Container[str] = ()) -> str:
        """Submit a job script and return the job's id; `copy` is recorded with it.

        Raises SchedulerError if the job is refused. If the reply is lost or has no id, the job may
        exist: it is looked up by its name, which the jobs in `others` had before. Raises
        LostAnswerError or SshError while nothing can be known about it, StartError if the reply had
        no id and it is not found.
        """
        name = named(script)
        try:
            done = await self.call(
                self._sending(self.kind.SUBMIT, script), SUBMIT_TIMEOUT_S, script
            )
        except SshError as error:
            if error.why == "lost":
                raise SshError(f"{error}\n{self._unknown_submission(name)}", error.why) from None
            raise
        if done.ok:
            try:
                job = submitted(self.kind, done.output)
            except StartError as error:  # a site's wrapper may print its own words
                job = await self._seek(
                    name, others, StartError(f"{error}\n{self._unknown_submission(name)}")
                )
        elif not done.timed_out and not self.kind.LOST.search(done.output):
            raise self.failed(done)
        else:
            job = await self._seek(name, others, self.failed(done, self._unknown_submission(name)))
        self._submitted[job] = time.time()
        host = "" if self.place.name else socket.gethostname()
        made = Submitted(self.site.name, self.place.name, job, name, time.time(), copy, host=host)
        made.write()
        return job

    async def _seek(self, name: str, others: Container[str], failed: RankroomError) -> str:
        """Return the job of this name that is not one of `others`, once it is listed. Raises
        `failed` if it is not listed in time, LostAnswerError if the list cannot be read."""
        until = time.monotonic() + FIND_JOB_TIMEOUT_S
        while True:
            is_known = False
            with contextlib.suppress(SchedulerError, SshError):
                found = [each for each in await self.find(name) if each not in others]
                is_known = True
                if found:
                    return max(found, key=int)
            if time.monotonic() > until:
                raise failed if is_known else LostAnswerError(str(failed))
            await asyncio.sleep(FIND_JOB_INTERVAL_S)

    def _unknown_submission(self, name: str) -> str:
        return SUBMISSION_UNKNOWN.format(name=name, list=self.kind.LIST)

    async def find(self, name: str) -> list[str]:
        """Return the ids of the user's jobs of this name that are not over. Raises SchedulerError
        while the scheduler does not answer."""
        done = await self.call(self.kind.find(name), COMMAND_TIMEOUT_S)
        if not done.ok:
            raise self.failed(done)
        found: list[str] = self.kind.found(done.output, name)
        return found

    async def ask(self, ids: Sequence[str]) -> dict[str, JobStatus]:
        """Return the status of jobs, from an answer that may be some seconds old.

        A job is gone only by an answer to a query made after this call. Raises SchedulerError while
        the scheduler does not answer; it is queried again after a while.
        """
        called, wanted = time.time(), list(ids)
        while True:
            answer = await self._asked.latest(wanted, self._query)
            if answer.error:
                raise SchedulerError(answer.error)
            found = answered(self.kind, answer.output, wanted)
            unknown = {job for job, status in found.items() if status.state == "gone"}
            if (answer.at >= called and unknown <= set(answer.ids)) or not unknown:
                if silent := [j for j in unknown if self.kind.is_silent_on(answer.output, j)]:
                    raise SchedulerError(SILENT_ON.format(site=self.site.name, job=silent[0]))
                self._seen |= found.keys() - unknown
                return {
                    job: self._with_patience(replace(status, at=answer.at))
                    for job, status in found.items()
                }
            called = min(called, time.time())  # a clock may be set back
            await asyncio.sleep(max(0.0, answer.again - time.time()))

    async def status(self, job: str) -> JobStatus:
        """Return the status of one job, as `ask` does, but gone only after two answers in a row.

        Callers then end what belongs to the job, so one list that lacks it is not enough. Neither
        are two for a job that was just submitted: a site's lists may be some minutes old.
        """
        found = (await self.ask([job]))[job]
        if found.state == "gone":
            found = (await self.ask([job]))[job]
        if found.state != "gone" or not self._is_unseen(job):
            return found
        if words := self.kind.ask_alone(job):
            ended: JobStatus | None = self.kind.ended(
                (await self.call(words, COMMAND_TIMEOUT_S)).output, job
            )
            if ended:
                return ended
        return JobStatus(job, "pending", NOT_LISTED)

    def _is_unseen(self, job: str) -> bool:
        """Return whether a recently submitted job has not been in a list since."""
        if job in self._seen:
            return False
        age = self._age(job)
        return age is not None and 0 <= age < LISTING_DELAY_S

    def _with_patience(self, status: JobStatus) -> JobStatus:
        """Return the status of a job that will never start as one that may: if it could before, or
        if the reason may be about one of its partitions only."""
        if status.never and "," in self.site.job.partition:
            return replace(status, never=False)
        age = self._age(status.id)  # unknown for a job that was submitted elsewhere
        if not status.never or (age is not None and age < COULD_START_AFTER_S):
            return status
        return replace(status, patience=max(status.patience, CHANGED_LIMIT_PATIENCE_S))

    def _age(self, job: str) -> float | None:
        """Return how long ago a job was submitted, in seconds; None if that is not known."""
        own = (self.site.name, job)
        kept = (each.at for each in all_submitted() if (each.site, each.job) == own)
        at = self._submitted.get(job) or max(kept, default=0.0)
        return time.time() - at if at else None

    async def cancel(self, job: str) -> None:
        """Cancel a job, which may have ended already. Raises SchedulerError if that fails."""
        done = await self.call([*self.kind.CANCEL, job], COMMAND_TIMEOUT_S)
        if not done.ok and not self.kind.OVER.search(done.output):
            raise self.failed(done)
        self._seen.add(job)  # it is over once it is in no list

    async def call(
        self, argv: Sequence[str], timeout: float, input: str | None = None
    ) -> shell.Completed:
        """Run a command there, in a login shell if only that finds the scheduler's commands."""
        # `env` reports a missing command by its exit status, which csh does not.
        plain = argv if argv[0] == "env" else ["env", *argv]
        words = login_shell(argv) if self._in_login_shell else plain
        done = await self.place.run(words, timeout=timeout, input=input)
        if done.returncode in (_STATUS_DENIED, _STATUS_NOT_FOUND) and not self._in_login_shell:
            self._in_login_shell = True
            again = await self.call(argv, timeout, input)
            if done.returncode == _STATUS_NOT_FOUND or again.returncode != _STATUS_NOT_FOUND:
                return again
            self._in_login_shell = False
        return shell.Completed(tuple(argv), done.returncode, done.output, done.timed_out)

    def _sending(self, argv: Sequence[str], script: str) -> Sequence[str]:
        """Return the command that submits a script, without variables that override its options."""
        unset = [word for name in self.kind.unset(script) for word in ("-u", name)]
        return ["env", *unset, *argv] if unset else argv

    def failed(self, done: shell.Completed, what: str = "") -> SchedulerError:
        """Return the error for a command that failed: where, its output, and what to do."""
        failure = done.failure(shlex.join(shell.without_env(done.argv)), self.place.name)
        what = what or remedy(self.site, done)
        return SchedulerError(f"{self.site.name}: {failure}\n{what}")

    async def _query(self, ids: Sequence[str]) -> tuple[str, str]:
        """Query the scheduler; return its output, and the error if that failed."""
        try:
            done = await self.call(self.kind.ask(ids), COMMAND_TIMEOUT_S)
            if not done.ok and (otherwise := self.kind.ask_otherwise(ids, done.output)):
                done = await self.call(otherwise, COMMAND_TIMEOUT_S)
            if done.timed_out or not (done.ok or self.kind.is_partial(done.output)):
                return "", str(self.failed(done))
            self.kind.listed(done.output)
        except SshError:
            raise  # a lost connection says nothing about the scheduler
        except RankroomError as error:
            return "", str(error)
        return done.output, ""


def _here() -> str:
    """Name the scheduler of this machine, as machines of several sites may share a home."""
    asked = [os.environ[each] for each in ("SLURM_CONF", "SLURM_CLUSTERS") if each in os.environ]
    return "-".join(["here", socket.gethostname(), *asked])


def submitted(kind: Any, output: str) -> str:
    """Return the job's id in the output of its submission. Raises StartError if there is none."""
    found = kind.SUBMITTED.findall(output)
    if not found:
        raise StartError(f"{kind.SUBMIT[0]} gave no job id; it said:\n{output.strip()}")
    return str(found[-1])  # what a login shell or a wrapper prints comes before it


def answered(kind: Any, output: str, ids: Sequence[str]) -> dict[str, JobStatus]:
    """Return the status of each job from the output of a query; one that is not in it is gone."""
    found = kind.listed(output)
    return {each: found.get(each) or JobStatus(each, "gone") for each in ids}


async def retry_until_known(
    look: Callable[[], Awaitable[T]], job: str, show: Callable[[str], None]
) -> T:
    """Call `look` until it succeeds, and return its result; `show(words)` reports each failure.

    The job itself goes on unobserved.
    """
    while True:
        try:
            return await look()
        except (SchedulerError, SshError) as error:
            why = str(error).partition("\n")[0].rstrip(":")
            show(f"job {job}: its state is unknown ({why}); asking again")
            await asyncio.sleep(RETRY_DELAY_S)


_MARK = "folder="
NOT_LISTED = "it is not listed yet"
SILENT_ON = "{site}: the scheduler's answer says nothing of job {job}"
NO_SCHEDULER = (
    'the site {site} has no scheduler (its profile says `scheduler = "none"`): `%cluster start` '
    "without --site starts ranks on this machine. If the site does have one, set `scheduler` to "
    '"slurm" or "pbs"'
)
NOT_PRIVATE = (
    "{folder} on {where} belongs to another user or is writable by others, so its contents cannot "
    "be trusted: have it removed, or set the profile's `scratch` to a folder of your own"
)
SCRATCH_FAILED = (
    "Rankroom writes to the profile's `scratch`, {scratch}: set it to a folder that you may write "
    "to and that login and compute nodes share. Variables in it must be set in a login shell there"
)
SUBMISSION_UNKNOWN = (
    "It is unknown whether job {name} was accepted; it may still start. Before you try again, run "
    "`{list}` there, and cancel the job if it is listed"
)
TOO_MUCH = (
    "such a job is accepted but would never start: {why}. Ask for less in [job] of {profile}, or "
    "for another partition"
)
