"""A Python process inside a job, as a notebook's kernel would be: code goes in, values come out."""

from __future__ import annotations

import json
import os
import select
import sys
import time
from pathlib import Path
from typing import Any

from machines import Machines
from remote_python import LISTENER


class JobPython:
    """A job of `user` with a Python process on its first node; `options` are sbatch's."""

    def __init__(self, machines: Machines, user: str, *options: str) -> None:
        self.machines, self.user = machines, user
        home = machines.home(user)
        self._pipes: list[int] = []
        self._read = b""
        ends = []
        for name in ("asked", "said"):
            pipe = home / f"{name}.{time.monotonic_ns()}"
            os.mkfifo(pipe, 0o600)
            os.chown(pipe, int(machines.id(user)), int(machines.id(user)))
            # For reading and writing, so that opening does not block.
            self._pipes.append(os.open(pipe, os.O_RDWR))
            ends.append(f"/home/{user}/{pipe.name}")
        lines = [f"#SBATCH {each}" for each in ("--time=10", "--output=job-%j.log", *options)]
        words = [str(each) for each in (sys.executable, LISTENER, *ends)]
        script = "\n".join(["#!/bin/bash", *lines, " ".join(words), ""])
        script_path = machines.put(user, f"job-{time.monotonic_ns()}.sh", script)
        said = machines.run("login", ["sbatch", "--parsable", script_path], user)
        self.job = said.strip()
        assert self.job.isdigit(), said
        self.log = home / f"job-{self.job}.log"

    def do(self, source: str, seconds: float = 180) -> Any:
        """Run code there; return the value of its last expression. Fails with its traceback."""
        os.write(self._pipes[0], json.dumps(source).encode() + b"\n")
        deadline = time.monotonic() + seconds
        while b"\n" not in self._read:
            left = max(0.0, deadline - time.monotonic())
            if not select.select([self._pipes[1]], [], [], left)[0]:
                log = self.log.read_text() if self.log.exists() else "no log"
                raise AssertionError(f"no answer within {seconds:.0f} s: {source!r}; {log}")
            self._read += os.read(self._pipes[1], 1 << 20)
        line, _, self._read = self._read.partition(b"\n")
        answer = json.loads(line)
        if "error" in answer:
            raise AssertionError(answer["error"])
        return answer["value"]

    def processes(self) -> dict[str, list[str]]:
        """The user's processes, by node, other than those of the job itself."""
        found = {}
        for node in self.machines.nodes:
            words = self.machines.processes(node, self.user)
            # The job script, the listener, and an ended supervisor that is never reaped.
            own = ("slurm_script", LISTENER.name, "<defunct>")
            kept = [line for line in words if not any(each in line for each in own)]
            if kept:
                found[node] = kept
        return found

    def until_gone(self, seconds: float = 60) -> float:
        """Wait until no such process is left on any node; return how long that took (s)."""
        begun = time.monotonic()
        while left := self.processes():
            assert time.monotonic() - begun < seconds, left
            time.sleep(0.1)
        return time.monotonic() - begun

    def close(self) -> None:
        self.machines.run("login", ["scancel", self.job], self.user)
        for pipe in self._pipes:
            os.close(pipe)

    def __enter__(self) -> JobPython:
        return self

    def __exit__(self, *error: object) -> None:
        self.close()


def cluster_folder(machines: Machines, user: str, name: str = "*") -> Path:
    """The folder of the user's only cluster (of that name), as seen from here."""
    [folder] = (machines.home(user) / ".local/share/rankroom/clusters").glob(name)
    return folder
