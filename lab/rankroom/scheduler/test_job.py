"""The test job of a site's check: does what works on the login node work on a compute node?"""

from __future__ import annotations

import asyncio
import contextlib
import json
import secrets
import shlex
import time
from collections.abc import Callable, Sequence
from typing import Any

from rankroom.errors import CheckFailed, RankroomError
from rankroom.scheduler import probe
from rankroom.scheduler.scheduler_client import COMMAND_TIMEOUT_S, Scheduler
from rankroom.scheduler.site import Site, clock, profile_of
from rankroom.ssh.host import Host
from rankroom.system import commands as shell
from rankroom.system.python_command import SHELL_ASSIGNMENTS

JOB_TIME_LIMIT_S = {"slurm": 60, "pbs": 300}  # PBS queues often refuse less than five minutes
START_TIMEOUT_S = 900.0  # for the job to start
POLL_INTERVAL_S = 1.0
LOG_ATTEMPTS = 5  # attempts to read its log: a shared file system may show it late


class TestJob:
    """A short job on one node; `folder` is the site's scratch folder there.

    `tell` is called with its status. `job` is its id, and `waited` its seconds in the queue.
    """

    def __init__(self, site: Site, place: Host, folder: str, tell: Callable[[str], None]) -> None:
        self.site = site.asking(
            nodes=1, time=clock(min(JOB_TIME_LIMIT_S[site.scheduler], site.seconds))
        )
        self.place = place
        self.folder = folder
        self.tell = tell
        self.scheduler = Scheduler(self.site, place)
        self.job = ""
        self.waited = 0.0

    async def run(self, argv: Sequence[str]) -> dict[str, Any]:
        """Return what the probe `argv` finds on the node. Raises CheckFailed with the job's log."""
        file = f"{self.folder}/check-{secrets.token_hex(4)}"
        done = await self._run_at_site('echo "$2" >"$1"', file, SHARED_MARK)
        if not done.ok:
            raise CheckFailed(FULL.format(folder=self.folder))
        # In English, as its error is recognized.
        look = f"LC_ALL=C cat {shlex.quote(file)}"
        commands = [look, f"{SHELL_ASSIGNMENTS} {shlex.join(argv)}"]
        try:
            text = self.scheduler.script("check", self.folder, commands)
            others = await self.scheduler.find("check")
            self.job = await self.scheduler.submit(text, others=others)
            await self._wait()
            return self._judge(await self._log())
        finally:
            with contextlib.suppress(RankroomError):
                await self._clear(file)

    async def _wait(self) -> None:
        begun = time.monotonic()
        started = False
        while True:
            status = await self.scheduler.status(self.job)
            self.tell(f"job {self.job} {status.words} · {time.monotonic() - begun:.0f} s")
            started = started or status.state != "pending"
            if not started:
                self.waited = time.monotonic() - begun
            if status.state in ("ended", "gone"):
                return
            if status.never and not status.patience:
                raise CheckFailed(NEVER.format(job=self.job, words=status.words))
            if not started and self.waited > START_TIMEOUT_S:
                about = {"job": self.job, "words": status.words, "minutes": START_TIMEOUT_S / 60}
                raise CheckFailed(LONG.format(**about))
            await asyncio.sleep(POLL_INTERVAL_S)

    async def _log(self) -> str:
        """Return the job's output; empty if it cannot be seen from the login node."""
        look = 'cat "$1"/check-"$2".log "$1/$2".*OU 2>/dev/null; true'
        for _ in range(LOG_ATTEMPTS):
            if said := (await self._run_at_site(look, self.folder, self.job)).output.strip():
                return said
            await asyncio.sleep(POLL_INTERVAL_S)
        return ""

    def _judge(self, said: str) -> dict[str, Any]:
        found = probed(said)
        if SHARED_MARK in said and found:
            return found
        words = FAILED if SHARED_MARK in said or "No such file" not in said else NOT_SHARED
        about = {
            "job": self.job, "folder": self.folder, "profile": profile_of(self.site.name),
            "said": "\n".join(f"  {line}" for line in said.splitlines()[-20:]),
        }  # fmt: skip
        raise CheckFailed((words if said else NO_LOG).format(**about))

    async def _clear(self, file: str) -> None:
        """Cancel the job if it has not ended, and remove its files."""
        if self.job:
            await self.scheduler.cancel(self.job)
        remove = 'rm -f "$1"; [ -z "$3" ] || rm -f "$2/check-$3.log" "$2/$3".*OU'
        await self._run_at_site(remove, file, self.folder, self.job)

    async def _run_at_site(self, code: str, *words: str) -> shell.Completed:
        return await self.place.run(["sh", "-c", code, "sh", *words], timeout=COMMAND_TIMEOUT_S)


def probed(output: str) -> dict[str, Any]:
    """Return what the probe found, from output with other lines in it; empty if nothing."""
    for line in output.splitlines():
        if line.startswith(probe.MARK):
            with contextlib.suppress(ValueError):
                return dict(json.loads(line.removeprefix(probe.MARK)))
    return {}


SHARED_MARK = "rankroom-scratch-is-shared"
FULL = (
    "Nothing can be written to {folder}: free some space (`rankroom runs prune` there removes old "
    "records), or set `scratch` to another folder"
)
NEVER = (
    "job {job} {words}. It was cancelled: ask for less, or for another partition, in the profile"
)
LONG = (
    "after {minutes:.0f} minutes, job {job} {words}; it was cancelled: try again when the queue is "
    "shorter"
)
NO_LOG = (
    "job {job} is over, and its log in {folder} is missing or empty: the compute node does not see "
    "that folder as the login node does, or the job was ended before it wrote a line. Set "
    "`scratch` in {profile} to a folder on a file system that both share; if it is on one, look at "
    "what your shell's profile does on compute nodes"
)
NOT_SHARED = (
    "job {job} ran, and the compute node does not see {folder} as the login node does; its log "
    "says:\n{said}\nSet `scratch` in {profile} to a folder on a file system that both share"
)
FAILED = (
    "job {job} failed; its log says:\n{said}\nWhat works on the login node may be missing on "
    "compute nodes: look at [environment] of {profile}"
)
