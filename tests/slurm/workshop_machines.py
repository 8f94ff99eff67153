"""A workshop on the test cluster: its teacher, its learners, and the commands that they type."""

from __future__ import annotations

import contextlib
import fcntl
import json
import os
import re
import shutil
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from browser import CHROMIUM, PLAYWRIGHT, UI
from labs import jobs, make_home, profile, settings
from machines import CHECKOUT, Machines

PYTHON = sys.executable
TEACHER = "teacher"
FOLDER = "/home/course/trial"
PLAYER = Path(__file__).with_name("lesson_player.py")
SOLVED = ["hello.1", "hello.2", "hello.3"]
PIPE_BYTES = 1 << 20  # of a console's output that may be unread
# What `join` prints on a login node: the ssh command, and the address with the token.
WAY = re.compile(
    r"ssh -N -L \d+:([\d.]+):(\d+) .*?"
    r"(http://127\.0\.0\.1:\d+/lab/tree/\S+\?token=(\S+))",
    re.DOTALL,
)
SUPPORT = CHECKOUT / "tests" / "support"
# The teacher's profile; learners have none.
PROFILE = profile(nodes=1)
PLAN = """\
name = "Trial"
teacher = "Tom Teacher"
folder = "{folder}"
way = "{way}"
site = "test"
learners = {learners}
lessons = [[1, 45]]
time = "01:00:00"
{more}
"""


# The command `rankroom` that warns learners for so many seconds before a workshop ends.
ENDS_SOON = """
from rankroom.workshop import workshop_folder
workshop_folder.END_WARNING_S = {seconds}
from rankroom.cli import main
main()
"""


@dataclass
class Played:
    """A program, the lines that it has printed so far, and the processor time it took (s)."""

    process: subprocess.Popen[str]
    lines: list[str] = field(default_factory=list)
    cpu_s: float = 0.0
    status: int | None = None
    _taken: int = 0

    def __post_init__(self) -> None:
        self._reader = threading.Thread(target=self._read, daemon=True)
        self._reader.start()

    @property
    def text(self) -> str:
        return "\n".join(self.lines)

    def new_lines(self) -> list[str]:
        """The lines printed since the last call."""
        new = self.lines[self._taken :]
        self._taken += len(new)
        return new

    def until(self, holds: Callable[[str], Any], seconds: float = 600) -> Any:
        """Wait until `holds` is true of the output; return its value. Fails if the program ends."""
        deadline = time.monotonic() + seconds
        while not (found := holds(self.text)):
            alive = self._reader.is_alive() and time.monotonic() < deadline
            if not alive and not (found := holds(self.text)):
                raise AssertionError(f"{self.process.args!r} wrote only:\n{self.text}")
            if found:
                break
            time.sleep(0.05)
        return found

    def ended(self, seconds: float = 400) -> int:
        """Wait for the program to end; return its exit status."""
        self._reader.join(seconds)
        assert self.status is not None, f"it goes on: {self.text}"
        return self.status

    def close(self) -> None:
        with contextlib.suppress(ProcessLookupError):
            os.kill(self.process.pid, signal.SIGTERM)  # Popen's method may reap the process
        self._reader.join(30)

    def _read(self) -> None:
        assert self.process.stdout is not None
        for line in self.process.stdout:
            self.lines.append(line.rstrip("\n"))
        # The usage includes all descendants that were waited for, also those on the machine.
        _, status, usage = os.wait4(self.process.pid, 0)
        self.cpu_s = usage.ru_utime + usage.ru_stime
        self.status = self.process.returncode = os.waitstatus_to_exitcode(status)


class Workshop:
    """The machines and users of a workshop; `close` ends everything that was started."""

    def __init__(self, machines: Machines, learners: Sequence[str]) -> None:
        self.machines = machines
        self.learners = list(learners)
        self._started: list[Played] = []
        for user in (TEACHER, *learners):
            if not (machines.home(user) / "own").exists():
                sites = {"test": PROFILE} if user == TEACHER else {}
                make_home(machines, machines.home(user) / "own", user, **sites)
            for left in ("own/data", ".local/share/rankroom", "Trial", "go-on"):
                path = machines.home(user) / left
                path.unlink() if path.is_file() else shutil.rmtree(path, ignore_errors=True)
        course = machines.root / FOLDER.lstrip("/")
        shutil.rmtree(course, ignore_errors=True)
        course.parent.mkdir(exist_ok=True)
        course.parent.chmod(0o755)
        os.chown(course.parent, int(machines.id(TEACHER)), int(machines.id(TEACHER)))

    def words(self, user: str, *words: str) -> list[str]:
        home = Path("/home") / user / "own"
        # All nodes of the test cluster share this machine's cores, and learners start at once.
        own = [*settings(home), "COLUMNS=200", "RANKROOM_START_SECONDS=600"]
        return ["env", *own, PYTHON, *words]

    def typed(self, user: str, *words: str, machine: str = "login", timeout: float = 400) -> str:
        """What `rankroom workshop WORDS` prints."""
        command = self.words(user, "-m", "rankroom", "workshop", *words)
        return self.machines.run(machine, command, user, timeout)

    def end(self, warning_s: float | None = None) -> str:
        """End the workshop as its teacher; return what that prints. With `warning_s`, learners are
        warned that long before."""
        if warning_s is None:
            return self.typed(TEACHER, "end", FOLDER)
        source = ENDS_SOON.format(seconds=warning_s)
        command = self.words(TEACHER, "-c", source, "workshop", "end", FOLDER)
        return self.machines.run("login", command, TEACHER, 400)

    def start(
        self, user: str, *words: str | Path, machine: str = "login", session: bool = False
    ) -> Played:
        """Start Python with these arguments as a user, and leave it running, with `session` in a
        session of its own."""
        return self._begin(user, self.words(user, *words), machine, session)

    def _begin(
        self, user: str, command: list[str], machine: str = "login", session: bool = False
    ) -> Played:
        made = Played(
            self.machines.start(
                machine, command, user, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE,
                stderr=subprocess.STDOUT, start_new_session=session,
            )
        )  # fmt: skip
        self._started.append(made)
        return made

    def open(self, way: str = "ssh", more: str = "", learners: Sequence[str] | None = None) -> str:
        """Open the workshop; return what the teacher reads."""
        listed = self.learners if learners is None else learners
        text = PLAN.format(folder=FOLDER, way=way, learners=json.dumps(listed), more=more)
        return self.typed(TEACHER, "open", str(self.machines.put(TEACHER, "plan.toml", text)))

    def join(self, user: str) -> Played:
        """Start `rankroom workshop join` on the login node."""
        return self.start(user, "-m", "rankroom", "workshop", "join", "--no-browser", FOLDER)

    def play(self, user: str, joined: Played, **options: Any) -> Played:
        """Start to work through lesson 1 in the JupyterLab that was joined."""
        found = joined.until(WAY.search)
        address, token = f"http://{found[1]}:{found[2]}", found[4]
        return self.play_at(user, address, token, **options)

    def play_at(
        self, user: str, address: str, token: str, machine: str = "login", **options: Any
    ) -> Played:
        """Start to work through lesson 1 in the JupyterLab at an address."""
        notebook = f"/home/{user}/Trial/01_hello_ranks.ipynb"
        words = ["-u", str(PLAYER), address, token, notebook, json.dumps(options)]
        return self.start(user, *words, machine=machine)

    def watch(self) -> Played:
        """Start the teacher's console in a terminal: a line of JSON each half second."""
        words = ["-u", "-m", "rankroom", "workshop", "watch", FOLDER, "--json"]
        return self._shown(self.start(TEACHER, *words, session=True))

    def browse(self) -> Played:
        """Open the teacher's console in a browser until the workshop is over: a line of JSON
        whenever it shows something new."""
        folder = self.machines.home(TEACHER) / "browser"
        folder.mkdir()
        os.chown(folder, int(self.machines.id(TEACHER)), int(self.machines.id(TEACHER)))
        home = f"/home/{TEACHER}/browser"
        own = [
            f"RANKROOM_UI_WORKSHOP={FOLDER}", f"RANKROOM_UI_HOME={home}",
            f"RANKROOM_PYTHON={PYTHON}", f"RANKROOM_CHROMIUM={CHROMIUM}",
        ]  # fmt: skip
        argv = [PLAYWRIGHT, "test", "room.spec.ts", "--config", UI / "playwright.config.ts"]
        command = ["env", *own, *map(str, argv), "--output", f"{home}/results"]
        return self._shown(self._begin(TEACHER, command, session=True))

    def _shown(self, console: Played) -> Played:
        """Wait for a console's first line, and give its processes priority.

        A real teacher's terminal and browser have their own machines; here they share processors
        with all learners' ranks, fifty processes for each. For the same reason, the pipe is large
        enough that a console need not wait for its reader.
        """
        assert console.process.stdout is not None
        fcntl.fcntl(console.process.stdout, fcntl.F_SETPIPE_SZ, PIPE_BYTES)
        console.until(lambda text: "\n{" in f"\n{text}")
        self.machines.prefer("login", TEACHER)
        return console

    def tiles(self) -> dict[str, Any]:
        """What the teacher sees now, by learner."""
        view = json.loads(self.typed(TEACHER, "watch", FOLDER, "--once", "--json"))
        return {tile["user"]: tile for tile in view["tiles"]}

    def until_tile(
        self, user: str, holds: Callable[[dict[str, Any]], Any], seconds: float = 120
    ) -> dict[str, Any]:
        """Wait until `holds` is true of the learner's tile at the teacher; return the tile."""
        deadline = time.monotonic() + seconds
        while not holds(tile := self.tiles()[user]):
            assert time.monotonic() < deadline, tile
            time.sleep(0.3)
        found: dict[str, Any] = tile
        return found

    def jobs(self) -> list[str]:
        """The jobs of all learners."""
        return [job for user in self.learners for job in jobs(self.machines, user)]

    def processes(self) -> list[str]:
        """The learners' processes on all machines, without those that wait to be reaped."""
        found = []
        for machine in ("login", *self.machines.nodes):
            for user in self.learners:
                found += self.machines.processes(machine, user)
        return [line for line in found if "<defunct>" not in line]

    def until_nothing_runs(self, seconds: float = 120) -> None:
        """Wait until no job and no process of a learner is left."""
        deadline = time.monotonic() + seconds
        while left := (self.jobs() or self.processes()):
            assert time.monotonic() < deadline, left
            time.sleep(0.5)

    def close(self) -> None:
        """End everything that was started, including the learners' jobs."""
        for each in self._started:
            if each.status is None:
                each.close()
        self._started.clear()
        for user in self.learners:
            if jobs(self.machines, user):
                self.machines.run("login", ["scancel", "-u", user], user)
        for machine in ("login", *self.machines.nodes):
            for user in self.learners:
                if self.machines.processes(machine, user):
                    self.machines.run(machine, ["pkill", "-KILL", "-u", self.machines.id(user)])
        self.until_nothing_runs()


def seats(machines: Machines) -> Path:
    """The folder of the seats, as seen from here."""
    return machines.root / FOLDER.lstrip("/") / "seats"
