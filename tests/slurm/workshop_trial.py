"""A workshop with many learners on the test cluster: how soon all have seats, how late the teacher
sees what happens, and what that costs.

`make workshop` runs `workshop_trial.py [LEARNERS]` (40), which needs root and Slurm. Each learner
has an account and a job, joins from the login node, and works through lesson 1, with its intended
failure, in a JupyterLab of their own; the ranks of one in ten hang. The exit status is 1 if
something failed or exceeded a limit. test_workshops.py runs a brief trial, but ignores the limits,
because other tests run at the same time.
"""

from __future__ import annotations

import itertools
import json
import re
import statistics
import sys
import time
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parents[2]
for folder in ("tests/support", "lab"):
    if str(ROOT / folder) not in sys.path:
        sys.path.insert(0, str(ROOT / folder))

from machines import Machines, missing  # noqa: E402
from workshop_machines import FOLDER, SOLVED, TEACHER, Played, Workshop  # noqa: E402

A_NODE = 4  # seats per node: eight processors, two ranks each
HANGS = 10  # one learner in this many has ranks that hang
LOOKS = 60  # of a seat's writer, while it is measured
PLAYED_S = 1500.0
BRIEF_WARNING_S = 6.0  # seats are read every 2 s
# Limits for the times and costs of a workshop, as promised in docs/promises.md.
MOST_LATE_S = 3.0  # delay of the console, for each start and end of a run
MOST_SEATS_S = 120.0  # from the first seat to the last
MOST_OF_A_CORE = 0.01  # for the writer of a seat
MOST_REQUESTS = 50  # per learner to slurmctld, for the job, its steps and its end
MOST_A_MINUTE = 12  # more per minute of the workshop: every 20 s, `join` sends three
# The line of `sdiag` about one kind of request.
REQUESTS = re.compile(r"^\s*([A-Z_]+)\s+\(\s*\d+\)\s+count:(\d+)", re.M)
# Runs a seat's writer in an account with an open lesson; prints the share of a core it takes.
WRITER = """
import sys, time
from rankroom.workshop.sharing import ROUND_INTERVAL_S, Sharing
shared = Sharing(sys.argv[1])
shared.look()
begun = time.process_time()
for _ in range(int(sys.argv[2])):
    shared.look()
    time.sleep(ROUND_INTERVAL_S)
print((time.process_time() - begun) / (ROUND_INTERVAL_S * int(sys.argv[2])))
"""


@dataclass
class View:
    """What the teacher's console showed at a time (epoch s), by learner."""

    at: float
    tiles: dict[str, dict[str, Any]]


@dataclass
class Result:
    """What was measured, in seconds; `late` has a console delay per start or end of a run."""

    learners: int
    seats_s: float = 0.0  # from the first seat to the last
    open_s: float = 0.0  # from the first command to the last open notebook
    late: list[float] = field(default_factory=list)
    late_in_browser: list[float] = field(default_factory=list)
    join_cpu_s: list[float] = field(default_factory=list)
    watch_cpu_s: float = 0.0
    console_s: float = 0.0  # for which the console was open
    requests: dict[str, int] = field(default_factory=dict)
    writer_share: float = 0.0  # of a core
    apart_s: float = 0.0  # shortest time between two writes of a seat
    writes: float = 0.0  # per second, of the busiest seat
    failed: list[str] = field(default_factory=list)
    stuck: list[str] = field(default_factory=list)  # learners that the console showed as stuck
    broken: list[str] = field(default_factory=list)  # and as failed
    end_s: float = 0.0  # from the teacher's `collect` to the last job's end

    @property
    def asked(self) -> int:
        """The number of all requests to slurmctld."""
        return sum(self.requests.values())

    @property
    def missed(self) -> list[str]:
        """A message for each limit that was exceeded."""
        most = self.learners * (MOST_REQUESTS + MOST_A_MINUTE * self.console_s / 60)
        late, share = max(self.late, default=0.0), self.writer_share
        in_browser = max(self.late_in_browser, default=0.0)
        bounds = [
            (not self.late, "the console showed no start and no end of a run"),
            (late > MOST_LATE_S, f"the console was {late:.1f} s late, and not {MOST_LATE_S:g}"),
            (
                in_browser > MOST_LATE_S,
                f"the console in a browser was {in_browser:.1f} s late, and not {MOST_LATE_S:g}",
            ),
            (
                self.seats_s > MOST_SEATS_S,
                f"seats came within {self.seats_s:.0f} s, and not {MOST_SEATS_S:g}",
            ),
            (
                share >= MOST_OF_A_CORE,
                f"a seat's writer took {100 * share:.2f} % of a core, and not less than "
                f"{100 * MOST_OF_A_CORE:g}",
            ),
            (self.asked > most, f"slurmctld had {self.asked} requests, and not {most:.0f}"),
        ]
        return [words for is_missed, words in bounds if is_missed]

    @property
    def lines(self) -> list[str]:
        """The measurements, in lines to print."""
        most = sorted(self.requests.items(), key=lambda item: -item[1])[:5]
        named = ", ".join(f"{count} {name}" for name, count in most)
        late = sorted(self.late) or [0.0]
        share = 100 * self.watch_cpu_s / (self.console_s or 1)
        return [
            f"{self.learners} learners, {len(self.failed)} of them without success",
            f"first to last seat: {self.seats_s:.0f} s; first command to last open lesson: "
            f"{self.open_s:.0f} s",
            f"console: {late[-1]:.1f} s late at most, {statistics.median(late):.1f} s in the "
            f"median, of {len(late)} starts and ends of runs; it showed {len(self.broken)} "
            f"learners failed and {len(self.stuck)} stuck",
            *self._browser_lines,
            f"login node: {statistics.mean(self.join_cpu_s or [0]):.1f} s of processor time for "
            f"each `join` in all; the console {share:.1f} % of a core",
            f"slurmctld: {self.asked} requests in {self.console_s:.0f} s, "
            f"{self.asked / self.learners:.0f} a learner: {named}",
            f"a seat: {100 * self.writer_share:.2f} % of a core; its writes {self.apart_s:.1f} s "
            f"apart at least, {self.writes:.2f} a second at most",
            f"end: every job gone {self.end_s:.0f} s after the word",
            *self.failed,
            *(f"too much: {words}" for words in self.missed),
        ]

    @property
    def _browser_lines(self) -> list[str]:
        if not (late := sorted(self.late_in_browser)):
            return []
        return [
            f"console in a browser: {late[-1]:.1f} s late at most, {statistics.median(late):.1f} s "
            f"in the median, of {len(late)}"
        ]


class Trial:
    """One trial, step by step; `say` is called with its progress. The teacher has the console open
    in a terminal and, if `in_browser`, in a browser as well. A brief trial does not measure what a
    seat costs, and learners are warned of its end for a moment only."""

    def __init__(
        self,
        workshop: Workshop,
        say: Callable[[str], None],
        in_browser: bool = False,
        is_brief: bool = False,
    ) -> None:
        self.workshop = workshop
        self.machines = workshop.machines
        self.say = say
        self.result = Result(len(workshop.learners))
        self.views: list[View] = []  # of the terminal
        self.pages: list[View] = []  # of the browser
        self.in_browser, self.is_brief = in_browser, is_brief
        self.joined: dict[str, Played] = {}
        self.players: dict[str, Played] = {}
        self._watch: Played | None = None
        self._page: Played | None = None
        self._alone = float("inf")  # until when each seat had one writer (epoch s)

    def run(self) -> Result:
        """Run the whole trial."""
        self.workshop.open()
        before, begun = requests(self.machines), time.time()
        if self.in_browser:
            self._page = self.workshop.browse()
        self._watch = self.workshop.watch()
        self.join_all()
        self.result.open_s = time.time() - begun
        self.say(f"{len(self.players)} lessons are open after {self.result.open_s:.0f} s")
        self.play_all()
        if not self.is_brief:
            self.measure_writer()
        self.look()
        self.result.console_s = time.time() - begun
        self.result.watch_cpu_s = self.console_cpu()
        self.end(before)
        self.judge()
        return self.result

    def count_requests(self, before: dict[str, int]) -> None:
        after = requests(self.machines)
        grown = {name: count - before.get(name, 0) for name, count in after.items()}
        self.result.requests = {name: count for name, count in grown.items() if count}

    def join_all(self) -> None:
        """Let all learners type `join` at the same time, and start on their lessons."""
        for user in self.workshop.learners:
            self.joined[user] = self.workshop.join(user)
        self.at_once(self.begin)

    def begin(self, user: str) -> None:
        place = self.workshop.learners.index(user)
        solved = SOLVED[: place % (len(SOLVED) + 1)]
        self.players[user] = self.workshop.play(
            user, self.joined[user], solved=solved, hang=place % HANGS == 1
        )

    def play_all(self) -> None:
        """Wait until all have finished the lesson; interrupt hangs that the console has shown."""
        deadline = time.monotonic() + PLAYED_S
        hanging = set(self.workshop.learners[1::HANGS])
        while waiting := [u for u in self.workshop.learners if not self.has_ended(u)]:
            self.look()
            for user in hanging & set(self.result.stuck):
                self.machines.put(user, "go-on", "")
                hanging.discard(user)
            if time.monotonic() > deadline:
                self.result.failed += [f"{u}: {self.players[u].text[-500:]}" for u in waiting]
                return
            time.sleep(0.5)
        self.say("all have worked through the lesson")

    def has_ended(self, user: str) -> bool:
        player = self.players.get(user)  # none without a lesson, which is reported elsewhere
        return not player or '"cell": "end"' in player.text or player.status is not None

    def look(self) -> None:
        """Read what the consoles have printed, and note who is shown as stuck or failed."""
        assert self._watch is not None
        for view in self._new_views(self._watch, self.views):
            for user, tile in view.tiles.items():
                for state, found in (("stuck", self.result.stuck), ("failed", self.result.broken)):
                    if tile["status"]["state"] == state and user not in found:
                        found.append(user)
        if self._page is not None:
            self._new_views(self._page, self.pages)

    def _new_views(self, console: Played, views: list[View]) -> list[View]:
        """Add what a console has shown since the last call to its views; return what is new."""
        seen = len(views)
        for line in console.new_lines():
            if line.startswith("{"):
                view = json.loads(line)
                views.append(
                    View(view["now"], {t["user"]: t for t in view["tiles"] if t["status"]})
                )
            elif console is self._watch or line.startswith("the console: "):
                self.result.failed.append(f"the console: {line.removeprefix('the console: ')}")
        return views[seen:]

    def measure_writer(self) -> None:
        """Measure a second writer's processor time in the account of a learner with live ranks."""
        self._alone = time.time()
        words = ["-c", WRITER, FOLDER, str(LOOKS)]
        command = self.workshop.words(self.workshop.learners[0], *words)
        said = self.machines.run("login", command, self.workshop.learners[0], timeout=600)
        self.result.writer_share = float(said.split()[-1])

    def console_cpu(self) -> float:
        number = self.machines.id(TEACHER)
        said = self.machines.run("login", ["ps", "-u", number, "-o", "cputimes=,args="])
        return sum(float(line.split()[0]) for line in said.splitlines() if "watch" in line)

    def end(self, before: dict[str, int]) -> None:
        """The teacher collects everybody's progress, and ends the workshop."""
        begun = time.time()
        self.collected = self.workshop.typed(TEACHER, "collect", FOLDER)
        said = self.workshop.end(BRIEF_WARNING_S if self.is_brief else None)
        if "no job of it is left" not in said:
            self.result.failed.append(f"end: {said}")
        self.count_requests(before)  # later requests are the trial's own
        self.workshop.until_nothing_runs(300)
        self.result.end_s = time.time() - begun
        if self._page is not None and self._page.ended() != 0:
            self.result.failed.append(f"the browser: {self._page.text[-2000:]}")
        for user, joined in self.joined.items():
            if joined.ended() != 0:
                self.result.failed.append(f"{user}: {joined.text[-500:]}")
        self.result.join_cpu_s = [each.cpu_s for each in self.joined.values()]

    def judge(self) -> None:
        """Compare what the console showed with the learners' records."""
        first: dict[str, float] = {}
        heard: dict[str, list[float]] = {}
        for view in self.views:
            for user, tile in view.tiles.items():
                first.setdefault(user, view.at)
                is_new = heard.setdefault(user, [])[-1:] != [tile["heard"]]
                if is_new and view.at < self._alone:
                    heard[user].append(tile["heard"])
        for user in self.workshop.learners:
            if user not in first:
                self.result.failed.append(f"{user} never had a seat")
            elif user not in self.result.broken:  # the lesson has an intended failure
                self.result.failed.append(f"{user} was never seen to fail: no ranks?")
            self.result.late += self.lateness(user, self.views)
            if self.in_browser:
                self.result.late_in_browser += self.lateness(user, self.pages)
        self.result.seats_s = max(first.values()) - min(first.values()) if first else 0.0
        spans = [b - a for times in heard.values() for a, b in itertools.pairwise(times)]
        self.result.apart_s = min(spans, default=0.0)
        rates = [len(t) / (t[-1] - t[0]) for t in heard.values() if len(t) > 1]
        self.result.writes = max(rates, default=0.0)

    def lateness(self, user: str, views: list[View]) -> list[float]:
        """The time that a console took to show each start and end of a run, or something later in
        its place."""
        found = []
        shown = [(v.at, v.tiles[user]["status"]["run"]) for v in views if user in v.tiles]
        last = views[-1].at if views else 0.0
        for file in (self.machines.home(user) / "own/data/runs").glob("*/run.json"):
            run = json.loads(file.read_text())
            start, end = run["start"] / 1e6, (run["end"] or 0) / 1e6
            newer = [at for at, tile in shown if tile and tile["since"] >= start - 1e-3]
            if start < last and newer:
                found.append(max(0.0, newer[0] - start))
            over = [
                at for at, tile in shown
                if tile and (tile["since"] > start + 1e-3
                             or (tile["since"] >= start - 1e-3 and tile["state"] != "running"))
            ]  # fmt: skip
            if end < last and over:
                found.append(max(0.0, over[0] - end))
            if start < last - 10 and not newer:
                self.result.failed.append(f"the console never showed run {run['id']} of {user}")
        return found

    def at_once(self, act: Callable[[str], None]) -> None:
        def try_(user: str) -> None:
            try:
                act(user)
            except AssertionError as error:
                self.result.failed.append(f"{user}: {error}")

        with ThreadPoolExecutor(len(self.workshop.learners)) as pool:
            list(pool.map(try_, self.workshop.learners))


def requests(machines: Machines) -> dict[str, int]:
    """How many requests of each kind Slurm's controller has answered."""
    said = machines.run("ctl", ["sdiag"]).partition("by user")[0]
    return {name: int(count) for name, count in REQUESTS.findall(said)}


def learners(count: int) -> list[str]:
    return [f"learner{number:02}" for number in range(1, count + 1)]


def main(words: Sequence[str]) -> int:
    count = int(words[0]) if words else 40
    if why := missing():
        print(why)
        return 1
    users = learners(count)
    machines = Machines(nodes=-(-count // A_NODE), users=[TEACHER, *users])
    try:
        machines.up()
        workshop = Workshop(machines, users)
        try:
            result = Trial(workshop, lambda text: print(text, flush=True), in_browser=True).run()
        finally:
            workshop.close()
    finally:
        machines.down()
    print("\n".join(result.lines))
    return 1 if result.failed or result.missed else 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
