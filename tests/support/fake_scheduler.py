"""A fake scheduler: its commands are first on PATH, its state is a folder that the test writes.

Tests use the fixture `fake`; `fakes/README.md` describes the commands.
"""

from __future__ import annotations

import os
from collections.abc import Sequence
from pathlib import Path

import pytest

from rankroom.system import commands

FAKES = Path(__file__).parent / "fakes"
DOWN = "slurm_load_jobs error: Unable to contact slurm controller (connect failure)"


class FakeScheduler:
    """What the fake commands answer, and when they were called."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        (folder / "instead").mkdir(parents=True)
        (folder / "jobs").mkdir()

    def set(self, job: str, line: str) -> None:
        """Set the answer about a job: squeue's line, or the inside of qstat's JSON object."""
        fresh = self.folder / f"fresh-{job}"
        fresh.write_text(f"{line}\n")
        fresh.replace(self.folder / "jobs" / job)

    def cancelled(self, job: str) -> None:
        """Forget a job."""
        (self.folder / "jobs" / job).unlink()

    def instead(self, command: str, script: str) -> None:
        """From now on, run a shell script in place of a command."""
        # Atomically, as the command may be called at the same moment.
        fresh = self.folder / f"fresh-{command}"
        fresh.write_text(f"{script}\n")
        fresh.replace(self.folder / "instead" / command)

    def again(self, command: str) -> None:
        """End the effect of `instead` on a command."""
        (self.folder / "instead" / command).unlink()

    def fails(self, command: str, said: str, code: int = 1) -> None:
        """From now on, let a command print an error and fail."""
        self.instead(command, f"cat >&2 <<'END'\n{said}\nEND\nexit {code}")

    def script(self, job: str) -> str:
        """The script that was submitted for a job."""
        return (self.folder / "scripts" / job).read_text()

    def calls(self, command: str) -> list[float]:
        """When a command was called, in epoch seconds."""
        log = self.folder / "calls"
        words = [line.split() for line in log.read_text().splitlines()] if log.exists() else []
        return [float(at) for at, name, *_ in words if name == command]


class Elsewhere:
    """A login node that is this machine under another name."""

    name = "login.example.org"

    def words(self, argv: Sequence[str]) -> list[str]:
        return list(argv)

    async def open(self) -> None:
        pass

    async def close(self) -> None:
        pass

    async def run(
        self,
        argv: Sequence[str],
        *,
        timeout: float | None = None,
        input: str | None = None,
        on_line: object = None,
    ) -> commands.Completed:
        return await commands.run(["env", *argv], timeout=timeout, input=input)


def put_first(folder: Path, monkeypatch: pytest.MonkeyPatch) -> FakeScheduler:
    """Both schedulers' commands first on PATH, with their state in `folder`."""
    monkeypatch.setenv("FAKE_SCHEDULER", str(folder))
    path = [str(FAKES / "slurm"), str(FAKES / "pbs"), os.environ["PATH"]]
    monkeypatch.setenv("PATH", os.pathsep.join(path))
    return FakeScheduler(folder)
