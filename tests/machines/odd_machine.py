"""Simulated machines for tests: each is a process 1 in namespaces, with its own hostname, processes
and mounts, and all of this machine's files. It ends, with everything started or mounted on it, when
it is taken down or when the process that created it ends, however that happens."""

from __future__ import annotations

import contextlib
import json
import os
import shutil
import subprocess
import sys
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path

BOOT = "/proc/sys/kernel/random/boot_id"


EACH = """
import json, traceback
from click.testing import CliRunner
from rankroom.cli import main
done = []
for line in {lines!r}:
    result = CliRunner().invoke(main, line.split(), prog_name="rankroom")
    said, error = result.output, result.exc_info
    if error and error[0] is not SystemExit:
        said += "".join(traceback.format_exception(*error))
    done.append((result.exit_code, said))
print(json.dumps(done))
"""


class Odd:
    """The file errors and clock offset that odd.c applies to processes with this `environment`."""

    def __init__(self, library: Path, folder: Path) -> None:
        self.folder = folder
        folder.mkdir()
        self.environment = {"LD_PRELOAD": str(library), "ODD": str(folder)}

    def fail(self, operation: str, error: int, prefix: Path | str = "") -> None:
        """Make this operation fail with `error` on files whose path begins with `prefix`."""
        self._say(operation, f"{error}:{prefix}")

    def clock_ahead(self, seconds: int) -> None:
        """Set the clock this far ahead of the real time, or behind it if negative."""
        self._say("clock", str(seconds))

    def end(self) -> None:
        """Remove all file errors and the clock offset."""
        for each in self.folder.iterdir():
            each.unlink()

    def _say(self, name: str, what: str) -> None:
        new = self.folder / "new"
        new.symlink_to(what)
        new.replace(self.folder / name)


def missing() -> str:
    """Why such machines cannot be made here; empty if they can."""
    if os.geteuid() != 0:
        return "tests/machines need root"
    if shutil.which("cc") is None:
        return "tests/machines need a C compiler"
    done = subprocess.run(["unshare", "-m", "-p", "-u", "-f", "true"], capture_output=True)
    return "" if done.returncode == 0 else "tests/machines need to make namespaces"


class Machine:
    """One machine. `boot` is its boot id, where that differs from this machine's. `setup` is shell
    code that runs as root while the machine starts, and `first` is shell code that runs before each
    of its commands, whose `environment` is given. Process 1 `reaps` orphans or does not. With
    `network`, the machine has its own network, in which no interface is up.
    """

    def __init__(
        self, name: str, folder: Path, boot: str = "", setup: str = "",
        environment: Mapping[str, str] | None = None, first: str = "",
        reaps: bool = True, network: bool = False,
    ) -> None:  # fmt: skip
        self.name, self._begins = name, first
        self._spaces = ["-m", "-p", "-u", *(["-n"] if network else [])]
        self.environment = {**os.environ, **(environment or {})}
        booted = folder / f"boot-{name}-{boot}"
        if boot:
            booted.write_text(f"{boot}\n")
        about = {"NAME": name, "BOOT": str(booted) if boot else "", "SETUP": setup}
        loop = "trap : CHLD; while :; do sleep 60 & wait $!; done" if reaps else "exec sleep 100000"
        script = f"""
set -e
hostname "$NAME"
mount --make-rprivate /
mount -t proc proc /proc
[ -z "$BOOT" ] || mount --bind "$BOOT" {BOOT}
eval "$SETUP"
echo up
{loop}
"""
        self._process = subprocess.Popen(
            # Each process dies with its parent, down to process 1, which takes all others with it.
            ["setpriv", "--pdeathsig", "KILL", "unshare", *self._spaces, "-f", "--kill-child",
             "bash", "-c", script],
            env={**os.environ, **about}, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE,
            stderr=subprocess.PIPE, text=True,
        )  # fmt: skip
        assert self._process.stdout and self._process.stderr
        if self._process.stdout.readline() != "up\n":
            raise RuntimeError(f"{name} does not come up: {self._process.stderr.read()}")
        pid = self._process.pid
        children = Path(f"/proc/{pid}/task/{pid}/children").read_text().split()
        self._first = children[0]

    def run(
        self, *argv: str | Path, timeout: float = 120, **environment: str
    ) -> subprocess.CompletedProcess[str]:
        """Run a command there until it ends; `stdout` also has what it wrote on stderr."""
        return subprocess.run(
            self._words(argv), env=self.environment | environment, stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, timeout=timeout,
        )  # fmt: skip

    def start(self, *argv: str | Path) -> subprocess.Popen[str]:
        """Start a command there and leave it running; its output is in `stdout`."""
        return subprocess.Popen(
            self._words(argv), env=self.environment, stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True,
        )  # fmt: skip

    def rankroom(self, *words: str, **environment: str) -> str:
        """The output of `rankroom WORDS` there, which must succeed."""
        done = self.run(sys.executable, "-m", "rankroom", *words, **environment)
        assert done.returncode == 0, done.stdout
        return done.stdout

    def refused(self, *words: str) -> str:
        """The output of `rankroom WORDS` there, which must fail without a traceback."""
        done = self.run(sys.executable, "-m", "rankroom", *words)
        assert done.returncode == 1 and "Traceback" not in done.stdout, done.stdout
        return done.stdout

    def each(self, *lines: str, **environment: str) -> list[tuple[int, str]]:
        """The exit status and output of each command, all run in one process; no tracebacks."""
        found = self.do(EACH.format(lines=lines), **environment)
        assert isinstance(found, list)
        for line, (_, said) in zip(lines, found, strict=True):
            assert "Traceback" not in said, f"rankroom {line}: {said}"
        return [(status, said) for status, said in found]

    def do(self, source: str, **environment: str) -> object:
        """The last line that a Python program prints there, decoded from JSON."""
        done = self.run(sys.executable, "-c", source, **environment)
        assert done.returncode == 0, done.stdout
        return json.loads(done.stdout.splitlines()[-1])

    def processes(self, word: str) -> list[str]:
        """The command lines of the machine's processes that contain this word."""
        found = self.run("ps", "-eww", "-o", "args=").stdout.splitlines()
        return [line for line in found if word in line and "ps -eww" not in line]

    def crash(self) -> None:
        """Kill everything on the machine at once."""
        self._process.kill()
        self._process.wait()
        for stream in (self._process.stdout, self._process.stderr):
            if stream:
                stream.close()

    def _words(self, argv: Sequence[str | Path]) -> list[str]:
        enter = ["nsenter", "-t", self._first, *self._spaces, "--", "setpriv", "--pdeathsig"]
        return [*enter, "KILL", "sh", "-c", f'{self._begins} exec "$@"', "sh", *map(str, argv)]


@contextlib.contextmanager
def machines(folder: Path, *names: str, **how: str) -> Iterator[list[Machine]]:
    """Several machines, which are taken down at the end whatever happens."""
    made: list[Machine] = []
    try:
        for name in names:
            made.append(Machine(name, folder, **how))
        yield made
    finally:
        for each in made:
            each.crash()
