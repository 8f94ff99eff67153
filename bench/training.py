"""A training loop (digits, horovod.torch) as a cell, and the same text under horovodrun."""

from __future__ import annotations

import ast
import contextlib
import json
import os
import re
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from functools import partial
from pathlib import Path
from typing import Any, Protocol

import psutil

from kernel import MARK, processes
from sides import RANKS, Rankroom, alternate, workplace
from table import NotMeasured, Row

SCRIPT = Path(__file__).parent / "scripts" / "digits.py"
THREADS = ("OMP_NUM_THREADS", "MKL_NUM_THREADS", "OPENBLAS_NUM_THREADS", "NUMEXPR_NUM_THREADS")
FEW = 100  # steps, to see how many make a segment
SEGMENT_S = 2.0
PAIRS = 24
# What the script does under horovodrun behind the tutorial's text: a segment when it is asked.
WHEN_ASKED = """
import itertools, json, os
for number in itertools.count():
    while not os.path.exists(f"go.{number}"):
        time.sleep(0.005)
    with open(f"go.{number}") as file:
        report = timed(int(file.read()))
    if hvd.rank() == 0:
        with open("report", "w") as file:
            file.write(json.dumps(report))
        os.rename("report", f"report.{number}")
"""


class Trains(Protocol):
    """One side: ranks that are ready to train, and stand still meanwhile."""

    def segment(self, steps: int) -> dict[str, Any]:
        """Train for some steps: what the loop reports."""

    def pids(self) -> Sequence[int]:
        """The ranks' processes."""


def measure(quick: bool) -> list[Row]:
    """Steps per second of short segments in turns; imports and start-up count on neither side."""
    with workplace() as folder:
        rankroom = Rankroom(folder / "rankroom")
        try:
            with horovodrun(folder / "horovodrun") as script:
                ours, peers = alternated(quick, Cells(rankroom), script)
        finally:
            rankroom.close()
    return [
        Row(
            f"training loop, {RANKS} ranks", "steps/s", speeds("rankroom", ours),
            speeds("horovodrun", peers),
            ratio_at_least=0.98, peer="horovodrun",
            detail={"accuracy": [each["accuracy"] for each in ours + peers]},
        )
    ]  # fmt: skip


def alternated(
    quick: bool, first: Trains, second: Trains
) -> tuple[list[dict[str, Any]], list[dict[str, Any]]]:
    """Segments of both in turns. One side's processes are stopped while the other trains.

    Being idle is not enough: Horovod's threads look for work every millisecond.
    """
    seconds, pairs = (0.5, 3) if quick else (SEGMENT_S, PAIRS)
    sides = (first, second)
    for each in sides:
        _signal(each.pids(), signal.SIGSTOP)
    try:
        # They do not count; whatever is done once only is done here.
        slowest = max(_awake(each, FEW)["seconds"] for each in sides)
        steps = max(FEW, int(FEW * seconds / slowest))
        found = alternate(pairs, *[partial(_awake, each, steps) for each in sides])
    finally:
        for each in sides:
            _signal(each.pids(), signal.SIGCONT)
    return found[0], found[1]


def _awake(side: Trains, steps: int) -> dict[str, Any]:
    _signal(side.pids(), signal.SIGCONT)
    try:
        return side.segment(steps)
    finally:
        _signal(side.pids(), signal.SIGSTOP)


def _signal(pids: Sequence[int], number: signal.Signals) -> None:
    for pid in pids:
        with contextlib.suppress(ProcessLookupError):
            os.kill(pid, number)


class Cells:
    """The loop in cells of a Rankroom cluster, which is started by this."""

    def __init__(self, side: Rankroom) -> None:
        self._side = side
        side.start()
        side.cell(SCRIPT.read_text(), timeout=300)
        self._pids = side.rank_pids()

    def segment(self, steps: int) -> dict[str, Any]:
        self._side.cell(f"report = timed({steps})\nif rank == 0: print('TRAINED', repr(report))")
        lines = "\n".join(self._side.lines(self._side.latest())[0])
        found = re.search(r"TRAINED (\{.*\})", lines)
        if found is None:
            raise NotMeasured(f"the loop did not report; it said:\n{lines[-1000:]}")
        return ast.literal_eval(found[1])

    def pids(self) -> Sequence[int]:
        return self._pids


class Script:
    """The loop under horovodrun."""

    def __init__(self, folder: Path, program: psutil.Popen) -> None:
        self._folder = folder
        self._program = program
        self._number = 0
        self._until(lambda: len(self.pids()) == RANKS, 120)

    def segment(self, steps: int) -> dict[str, Any]:
        report = self._folder / f"report.{self._number}"
        asked = self._folder / "asked"
        asked.write_text(str(steps))
        asked.rename(self._folder / f"go.{self._number}")
        self._number += 1
        self._until(report.exists, 300)
        return json.loads(report.read_text())

    def pids(self) -> Sequence[int]:
        found = processes(self._folder)
        return [each.pid for each in found if _runs(each, self._folder / "digits.py")]

    def _until(self, there: Callable[[], bool], seconds: float) -> None:
        deadline = time.monotonic() + seconds
        while not there():
            if self._program.poll() is not None or time.monotonic() > deadline:
                said = (self._folder / "output").read_text()
                raise NotMeasured(f"horovodrun did not get there; it said:\n{said[-2000:]}")
            time.sleep(0.005)


def _runs(process: psutil.Process, script: Path) -> bool:
    with contextlib.suppress(psutil.Error):
        return process.cmdline()[1:] == [str(script)]
    return False


@contextlib.contextmanager
def horovodrun(folder: Path) -> Iterator[Script]:
    """The script under horovodrun, which has reached its loop when this begins."""
    program = Path(sys.executable).parent / "horovodrun"
    if not program.exists():
        raise NotMeasured("horovodrun is not installed: `rankroom horovod build` brings it")
    folder.mkdir()
    script = folder / "digits.py"
    script.write_text(SCRIPT.read_text() + WHEN_ASKED)
    # What Rankroom gives its ranks, so that both sides compute with as many threads.
    share = str(max(1, len(os.sched_getaffinity(0)) // RANKS))
    with (folder / "output").open("wb") as output:
        started = psutil.Popen(
            [program, "-np", str(RANKS), "--gloo", sys.executable, script],
            env=os.environ | dict.fromkeys(THREADS, share) | {MARK: str(folder)},
            cwd=folder, stdout=output, stderr=subprocess.STDOUT,
        )  # fmt: skip
        try:
            made = Script(folder, started)
            made.segment(1)
            yield made
        finally:
            for each in processes(folder):
                with contextlib.suppress(psutil.Error):
                    each.kill()
            started.wait()


def speeds(name: str, segments: Sequence[dict[str, Any]]) -> list[float]:
    """Steps per second of each; NotMeasured unless it was the loop that was meant, and learned."""
    share = max(1, len(os.sched_getaffinity(0)) // RANKS)
    for result in segments:
        if (result["size"], result["alike"]) != (RANKS, True):
            raise NotMeasured(f"{name}: not the loop that was meant: {result}")
        if result["threads"] != share:
            raise NotMeasured(f"{name}: {result['threads']} threads a rank instead of {share}")
    if segments[-1]["accuracy"] < 0.8:
        raise NotMeasured(f"{name}: it did not learn: accuracy {segments[-1]['accuracy']:.2f}")
    return [result["steps"] / result["seconds"] for result in segments]
