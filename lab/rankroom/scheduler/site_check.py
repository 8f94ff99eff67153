"""Check a site step by step: that it works, or which step does not, and why."""

from __future__ import annotations

import re
import shlex
import sys
import time
from collections.abc import AsyncIterator, Awaitable, Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

import rankroom
from rankroom.errors import CheckFailed, RankroomError
from rankroom.scheduler import jobs, probe
from rankroom.scheduler.scheduler_client import COMMAND_TIMEOUT_S, Scheduler
from rankroom.scheduler.site import Site, profile_of
from rankroom.scheduler.test_job import FULL, TestJob, probed
from rankroom.ssh.host import Host
from rankroom.system import commands as shell
from rankroom.system import python_command

State = Literal["ok", "warned", "failed", "skipped"]
PROBE_SOURCE = python_command.SAFE_PATH + "\n" + Path(probe.__file__).read_text("utf-8")
PYTHON_TIMEOUT_S = 120.0  # a first import on a busy shared file system


@dataclass(frozen=True)
class Step:
    """The result of one step: `words` is one line, and the remedy if the step failed."""

    name: str
    state: State
    words: str


class Check:
    """The steps for one site. `tell` is called with the test job's status while it is awaited."""

    def __init__(self, site: Site, place: Host, tell: Callable[[str], None]) -> None:
        self.site = site
        self.place = place
        self.tell = tell
        self.scheduler = Scheduler(site, place) if site.scheduler != "none" else None
        self.folder = ""
        self.found: dict[str, Any] = {}

    async def steps(self, job: bool) -> AsyncIterator[Step]:
        """Try each step and yield its result. Steps that need a failed one are not tried."""
        all_: list[tuple[str, str, Callable[[], Awaitable[Step]]]] = [
            ("login node", "", self.reach),
            ("scheduler", "login node", self.commands),
            ("scratch", "login node", self.scratch),
            ("account and partition", "scheduler", self.accepted),
            ("environment", "login node", self.environment),
            ("Python with Rankroom", "environment", self.python),
        ]
        if self.site.container.image:
            all_.append(("container", "Python with Rankroom", self.container))
        all_.append(("Horovod", all_[-1][0], self.horovod))
        if job:
            all_.append(("test job", "account and partition", self.job))
        bad: set[str] = set()
        for name, needs, attempt in all_:
            if needs in bad:
                bad.add(name)
                yield Step(name, "skipped", f'skipped, because the step "{needs}" failed')
                continue
            try:
                step = await attempt()
            except RankroomError as error:
                step = Step(name, "failed", str(error))
            if step.state == "failed":
                bad.add(name)
            yield step

    async def reach(self) -> Step:
        begun = time.monotonic()
        await self.place.open()
        if not self.place.name:
            return Step("login node", "ok", "this machine")
        took = time.monotonic() - begun
        return Step("login node", "ok", f"{self.place.name} answers ({took:.1f} s)")

    async def commands(self) -> Step:
        if self.scheduler is None:
            return Step("scheduler", "skipped", "this site has none")
        version = await self.scheduler.call(self.scheduler.kind.VERSION, COMMAND_TIMEOUT_S)
        if not version.ok:
            raise self.scheduler.failed(version)
        alive = await self.scheduler.call(self.scheduler.kind.ALIVE, COMMAND_TIMEOUT_S)
        if not alive.ok:
            raise self.scheduler.failed(alive)
        said = version.output.strip().splitlines()[-1]
        return Step("scheduler", "ok", f"{said} answers")

    async def scratch(self) -> Step:
        if self.scheduler is None:
            return Step("scratch", "skipped", "no job writes to it")
        self.folder = await self.scheduler.folder()
        # With a full quota, folders and empty files can still be created.
        write = (
            'dd if=/dev/zero of="$1/.check" bs=65536 count=1 conv=fsync 2>&1; s=$?; '
            'rm -f "$1/.check"; exit $s'
        )
        done = await self.place.run(
            ["sh", "-c", write, "sh", self.folder], timeout=COMMAND_TIMEOUT_S
        )
        if not done.ok:
            remedy = "" if done.timed_out else FULL.format(folder=self.folder)
            raise self.failed("writing a file", done, remedy)
        return Step("scratch", "ok", f"{self.folder} can be written to")

    async def accepted(self) -> Step:
        name = "account and partition"
        if self.scheduler is None:
            return Step(name, "skipped", "there are no jobs here")
        said = await self.scheduler.accepted(self.folder or "/tmp")
        if said is None:
            return Step(name, "skipped", "PBS can tell only for a real job: try `--job`")
        words = f"a job as in the profile is accepted: {_last(said)}"
        # Without a QoS that may lift the limits, this was an error.
        if why := await self.scheduler.too_much(said):
            return Step(name, "warned", f"{words}; unless its QoS lifts that limit, {why}")
        return Step(name, "ok", words)

    async def environment(self) -> Step:
        lines = jobs.environment(self.site)
        if not lines:
            return Step("environment", "ok", "as your login shell there sets it")
        # The line that fails is the last one that was started.
        numbered = [
            part for n, line in enumerate(lines) for part in (f"echo {_LINE_MARK}{n}", line)
        ]
        done = await self.place.run(
            ["bash", "-lc", "\n".join(["set -e", *numbered])], timeout=PYTHON_TIMEOUT_S
        )
        begun = [int(n) for n in re.findall(rf"^{_LINE_MARK}(\d+)$", done.output, re.MULTILINE)]
        # Older versions of `module` report what they do not find, and continue.
        missed = re.search(r"Unable to locate a modulefile|module\(s\) are unknown", done.output)
        if done.ok and not missed:
            return Step("environment", "ok", "; ".join(lines))
        line = lines[begun[-1]] if begun and not done.ok else lines[0]
        said = re.sub(rf"^{_LINE_MARK}\d+\n", "", done.output, flags=re.MULTILINE)
        done = shell.Completed(done.argv, done.returncode, said, done.timed_out)
        raise self.failed(line, done, ENVIRONMENT.format(profile=profile_of(self.site.name)))

    async def python(self) -> Step:
        python = self.site.environment.python if self.scheduler else sys.executable
        return await self._python("Python with Rankroom", [python])

    async def container(self) -> Step:
        return await self._python("container", self._of_ranks())

    async def _python(self, name: str, python: list[str]) -> Step:
        """Check that Python is there, with the same version of Rankroom as here."""
        argv = [*python, *python_command.flags(python), "-c", PROBE_SOURCE]
        there = jobs.in_environment(self.site, argv) if self.scheduler else argv
        done = await self.place.run(there, timeout=PYTHON_TIMEOUT_S)
        self.found = probed(done.output)
        if not self.found:
            remedy = NO_PYTHON.format(profile=profile_of(self.site.name))
            raise self.failed(f"{shlex.join(argv[:-1])} …", done, remedy)
        self._same_version(self.found)
        where = f"{self.found['rankroom']}, Python {self.found['python']}"
        return Step(name, "ok", f"{where}, {self.found['executable']}")

    def _of_ranks(self) -> list[str]:
        """Return the command that runs Python for ranks."""
        if self.site.container.image:
            return jobs.contained(self.site, [self.site.container.python])
        return [self.site.environment.python]

    async def horovod(self) -> Step:
        return self._horovod(self.found)

    async def job(self) -> Step:
        """Run a short job on one node that checks there what the steps before checked here."""
        if self.scheduler is None:
            return Step("test job", "skipped", "this site has no scheduler")
        if not self.folder:
            raise CheckFailed("the test job needs the scratch folder, but that step failed")
        trial = TestJob(self.site, self.place, self.folder, self.tell)
        found = await trial.run([*self._of_ranks(), "-c", PROBE_SOURCE])
        self._same_version(found)
        horovod = self._horovod(found)
        words = f"job {trial.job} ran on {found['host']} after {trial.waited:.0f} s in the queue"
        return Step("test job", horovod.state, f"{words}; {horovod.words}")

    def _same_version(self, found: dict[str, Any]) -> None:
        """Raise CheckFailed unless Rankroom is there in the same version as here."""
        ours, theirs = rankroom.__version__, found.get("rankroom")
        about = {
            "python": found["executable"], "ours": ours, "theirs": theirs,
            "error": found.get("error", ""), "host": found["host"], "number": found["python"],
            "profile": profile_of(self.site.name),
        }  # fmt: skip
        if tuple(map(int, found["python"].split("."))) < (3, 10):
            raise CheckFailed(OLD_PYTHON.format(**about))
        if theirs is None:
            raise CheckFailed(NO_RANKROOM.format(**about))
        if theirs != ours:
            raise CheckFailed(OTHER_VERSION.format(**about))

    def _horovod(self, found: dict[str, Any]) -> Step:
        build = f"{found['executable']} -m rankroom horovod build"
        if "horovod" not in found:
            return Step("Horovod", "warned", NO_HOROVOD.format(build=build))
        if error := found.get("horovod_error"):
            return Step("Horovod", "failed", BROKEN_HOROVOD.format(error=error, build=build))
        what = f"Horovod {found['horovod']} for {', '.join(found['frameworks']) or 'no framework'}"
        if not found["ours"]:
            return Step("Horovod", "warned", f"{what}, {FOREIGN_HOROVOD.format(build=build)}")
        if self.site.job.gpus_per_node and found.get("nccl") is False:
            return Step("Horovod", "warned", f"{what}, {CPU_HOROVOD.format(build=build)}")
        return Step("Horovod", "ok", what)

    def failed(self, command: str, done: shell.Completed, remedy: str) -> CheckFailed:
        """Return the error for a command that is not the scheduler's."""
        return CheckFailed(f"{done.failure(command, self.place.name)}\n{remedy}".rstrip())


def _last(said: str) -> str:
    return said.strip().splitlines()[-1].removeprefix("sbatch: ") if said.strip() else ""


def failed(steps: Sequence[Step]) -> bool:
    """Return whether the site does not work as it is."""
    return any(step.state == "failed" for step in steps)


_LINE_MARK = "rankroom-line="
ENVIRONMENT = "Correct [environment] of {profile}: `modules`, `setup`, `venv`, `conda`"
NO_PYTHON = (
    "No Python answers there: set `python`, `venv`, `conda` or `modules` in "
    "[environment] of {profile}, or [container]"
)
OLD_PYTHON = (
    "{python} on {host} is Python {number}, and Rankroom needs 3.10 or newer: choose another by "
    "`modules`, `venv` or `conda` in [environment] of {profile}"
)
NO_RANKROOM = (
    "{python} on {host} has no Rankroom ({error}). Copy the wheel that `make dist` made here, and "
    "install it there:\n  {python} -m pip install rankroom-{ours}-py3-none-any.whl"
)
OTHER_VERSION = (
    "Rankroom is {theirs} for {python} on {host}, and {ours} here: both sides need the same. Copy "
    "the wheel that `make dist` made here, and install it there:\n"
    "  {python} -m pip install rankroom-{ours}-py3-none-any.whl"
)
NO_HOROVOD = (
    "Horovod is not installed; torch.distributed and tf.distribute work without it. To install it: "
    "`{build}`"
)
BROKEN_HOROVOD = "cannot be imported: {error}\nBuild it again there: `{build} --force`"
CPU_HOROVOD = (
    "built for the CPU, and jobs have GPUs, whose tensors it refuses: `{build} --gpu` builds it "
    "for them on a machine without one, too"
)
FOREIGN_HOROVOD = (
    "not built by Rankroom: only rank 0's collectives are recorded. To rebuild it: `{build}`"
)
