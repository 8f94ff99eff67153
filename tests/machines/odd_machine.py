"""Machines of their own for tests: each is a process 1 in namespaces, with its own name, processes
and mounts, and all of this machine's files. One ends, with all that was started on it and mounted
there, when it is taken down, and with the process that made it, however that ends."""

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
    """What is odd about files and clock, as odd.c has it, for processes with this `environment`."""

    def __init__(self, library: Path, folder: Path) -> None:
        self.folder = folder
        folder.mkdir()
        self.environment = {"LD_PRELOAD": str(library), "ODD": str(folder)}

    def fail(self, operation: str, error: int, prefix: Path | str = "") -> None:
        """From now on this operation fails so on files whose path begins with `prefix`."""
        self._say(operation, f"{error}:{prefix}")

    def clock_ahead(self, seconds: int) -> None:
        """Set the clock."""
        self._say("clock", str(seconds))

    def end(self) -> None:
        """Nothing is odd any more."""
        for each in self.folder.iterdir():
            each.unlink()

    def _say(self, name: str, what: str) -> None:
        new = self.folder / "new"
        new.symlink_to(what)
        new.replace(self.folder / name)


def missing() -> str:
    """Why there can be no such machines here; empty if there can."""
    if os.geteuid() != 0:
        return "tests/machines need root"
    if shutil.which("cc") is None:
        return "tests/machines need a C compiler"
    done = subprocess.run(["unshare", "-m", "-p", "-u", "-f", "true"], capture_output=True)
    return "" if done.returncode == 0 else "tests/machines need to make namespaces"


class Machine:
    """One machine. `boot` is when it was booted, as another one than this; `setup` are shell
    commands, run as its root before anything else is, and `first` are some that precede each of its
    commands, whose `environment` is given. Process 1 `reaps` what others leave, or does not; with
    `network` it has one of its own, of which nothing is up.
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
            # Each of them dies with the one before, down to process 1, and all others with that.
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
        """Run a command there, to its end; what it writes on stdout and stderr."""
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
        """What `rankroom WORDS` writes there; it must end well."""
        done = self.run(sys.executable, "-m", "rankroom", *words, **environment)
        assert done.returncode == 0, done.stdout
        return done.stdout

    def refused(self, *words: str) -> str:
        """The words with which `rankroom WORDS` fails there; no traceback."""
        done = self.run(sys.executable, "-m", "rankroom", *words)
        assert done.returncode == 1 and "Traceback" not in done.stdout, done.stdout
        return done.stdout

    def each(self, *lines: str, **environment: str) -> list[tuple[int, str]]:
        """The same of several, in one process: exit status and output of each; no tracebacks."""
        found = self.do(EACH.format(lines=lines), **environment)
        assert isinstance(found, list)
        for line, (_, said) in zip(lines, found, strict=True):
            assert "Traceback" not in said, f"rankroom {line}: {said}"
        return [(status, said) for status, said in found]

    def do(self, source: str, **environment: str) -> object:
        """What the last line of a Python program prints there, as JSON."""
        done = self.run(sys.executable, "-c", source, **environment)
        assert done.returncode == 0, done.stdout
        return json.loads(done.stdout.splitlines()[-1])

    def processes(self, word: str) -> list[str]:
        """The command lines there with this word in them."""
        found = self.run("ps", "-eww", "-o", "args=").stdout.splitlines()
        return [line for line in found if word in line and "ps -eww" not in line]

    def crash(self) -> None:
        """Everything on it is gone at once."""
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
    """Several, which are taken down at the end whatever happens."""
    made: list[Machine] = []
    try:
        for name in names:
            made.append(Machine(name, folder, **how))
        yield made
    finally:
        for each in made:
            each.crash()
