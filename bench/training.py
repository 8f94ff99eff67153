"""Training loops as cells, compared with what users have without Rankroom: horovodrun, torchrun.

The peer's Horovod is built without Rankroom's edits (tools/plain_horovod.py). Both sides train in
short alternating segments, each with its own processes. Those of one side are stopped while the
other trains: being idle is not enough, as Horovod's threads poll for work every millisecond.
"""

from __future__ import annotations

import contextlib
import json
import os
import re
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

import psutil

from kernel import MARK, Answer, processes
from rankroom.record.cluster_file import ClusterPaths
from sides import Rankroom, alternate, workplace
from table import NotMeasured, Row

ROOT = Path(__file__).resolve().parent.parent
SCRIPTS = Path(__file__).parent / "scripts"
THREADS = ("OMP_NUM_THREADS", "MKL_NUM_THREADS", "OPENBLAS_NUM_THREADS", "NUMEXPR_NUM_THREADS")
TRAIN = "timed({}, {})"  # steps, batch size
SEGMENT_S = 0.25
FEWEST = 4  # steps of a segment, at least
PAIRS = 200
CALIBRATIONS = 5  # measurements of a step, before its batch is chosen
# Appended to each loop: a timed segment, and a check that the loop has really trained.
TIMED = """
import resource, time

def used():
    usage = resource.getrusage(resource.RUSAGE_SELF)
    return usage.ru_utime + usage.ru_stime

def timed(steps, of=32):
    global batch
    batch = of
    together()
    begun, before = time.perf_counter(), used()
    train(steps)
    together()
    seconds, cpu = time.perf_counter() - begun, used() - before
    return {"size": size, "steps": steps, "seconds": seconds, "cpu": cpu, "threads": threads()}

def trained():
    return {"is_alike": is_alike(), "loss": loss()}
"""
# Appended after that, on both sides: evaluates requests, mostly for a segment. In Rankroom, all of
# it is one cell, as training is; the cost of starting a cell is measured elsewhere.
WHEN_ASKED = """
import itertools, json, os, time
for number in itertools.count():
    while not os.path.exists(f"{FOLDER}/go.{number}"):
        time.sleep(0.005)
    with open(f"{FOLDER}/go.{number}") as file:
        asked = file.read()
    if asked == "over":
        break
    report = eval(asked)
    if rank == 0:
        with open(f"{FOLDER}/report", "w") as file:
            file.write(json.dumps(report))
        os.rename(f"{FOLDER}/report", f"{FOLDER}/report.{number}")
"""


@dataclass(frozen=True)
class Loop:
    """A training loop: `kind` of a script, number of layers (two tensors each), ms per step."""

    name: str
    script: str
    kind: str
    layers: int
    width: int
    ms: float
    at_least: float
    ranks: int = 2

    @property
    def what(self) -> str:
        return f"{self.name}, {2 * self.layers} tensors, {self.ms:g} ms, {self.ranks} ranks"

    def text(self, folder: Path) -> str:
        """Return the whole program, which exchanges requests and reports through files."""
        text = (SCRIPTS / self.script).read_text()
        for name, value in (("KIND", self.kind), ("LAYERS", self.layers), ("WIDTH", self.width)):
            text = re.sub(rf"(?m)^{name} = .*", f"{name} = {value!r}", text)
        return text + TIMED + f"FOLDER = {str(folder)!r}\n" + WHEN_ASKED


TORCH, TENSORFLOW = "torch_loop.py", "tensorflow_loop.py"
LOOPS = (
    Loop("horovod.torch", TORCH, "horovod", 1, 10, 1, 0.99),
    Loop("horovod.torch", TORCH, "horovod", 2, 128, 3, 0.99),
    Loop("horovod.torch", TORCH, "horovod", 30, 128, 20, 0.995),
    Loop("horovod.torch", TORCH, "horovod", 100, 128, 100, 0.995),
    Loop("horovod.torch", TORCH, "horovod", 30, 64, 20, 0.995, ranks=4),
    Loop("horovod.torch", TORCH, "horovod", 2, 128, 3, 1.0, ranks=16),
    Loop("tensorflow, eager", TENSORFLOW, "eager", 3, 128, 20, 0.995),
    Loop("tensorflow, tf.function", TENSORFLOW, "function", 3, 128, 3, 0.99),
    Loop("tensorflow, tf.function", TENSORFLOW, "function", 30, 128, 20, 0.995),
    Loop("Keras fit", TENSORFLOW, "keras", 3, 128, 20, 0.995),
    Loop("DDP", TORCH, "ddp", 2, 128, 3, 0.99),
    Loop("DDP", TORCH, "ddp", 30, 128, 20, 0.99),
    Loop("FSDP", TORCH, "fsdp", 2, 128, 3, 0.99),
    Loop("DeepSpeed", TORCH, "deepspeed", 2, 128, 3, 0.99),
)


@dataclass
class Side:
    """Ranks that train on request, and are stopped in between."""

    folder: Path
    pids: Callable[[], Sequence[int]]
    failed: Callable[[], str | None]  # their output if they have ended, else None
    _number: int = 0

    def ask(self, expression: str, seconds: float = 300) -> dict[str, Any]:
        """Evaluate an expression in the loop's namespace on all ranks; return rank 0's value."""
        report = self.folder / f"report.{self._number}"
        self._send(expression)
        self.until(report.exists, seconds)
        return json.loads(report.read_text())

    def end(self) -> None:
        """End the loop."""
        self._send("over")

    def _send(self, text: str) -> None:
        asked = self.folder / "asked"
        asked.write_text(text)
        asked.rename(self.folder / f"go.{self._number}")
        self._number += 1

    def until(self, there: Callable[[], bool], seconds: float) -> None:
        """Wait until `there()`. Raises NotMeasured after `seconds`, or if the ranks have ended."""
        deadline = time.monotonic() + seconds
        while not there():
            if (said := self.failed()) is not None:
                raise NotMeasured(f"the loop ended; it said:\n{said[-2000:]}")
            if time.monotonic() > deadline:
                raise NotMeasured(f"the loop did not answer within {seconds:.0f} s")
            time.sleep(0.005)


def measure(quick: bool) -> list[Row]:
    """Measure steps per second in short alternating segments, and processor time per step."""
    rows = []
    for loop in LOOPS[1:2] if quick else LOOPS:
        print(f"  … {loop.what}", file=sys.stderr, flush=True)
        rows += _compared(loop, 5 if quick else PAIRS)
    return rows


def _compared(loop: Loop, pairs: int) -> list[Row]:
    peer = "torchrun" if loop.kind in ("ddp", "fsdp", "deepspeed") else "horovodrun"
    with (
        workplace() as folder,
        cell(folder / "rankroom", loop) as ranks,
        launched(peer, folder / peer, loop) as script,
    ):
        found = alternated(pairs, loop, (ranks, TRAIN), (script, TRAIN))
    return found.rows(loop.what, peer, loop.at_least, 1.0)


@dataclass
class Segments:
    """The measured segments of both sides of a loop, in pairs."""

    loop: Loop
    batch: int
    ours: list[dict[str, Any]]
    peers: list[dict[str, Any]]

    def rows(
        self, what: str, peer: str, at_least: float | None, cpu_at_most: float | None
    ) -> list[Row]:
        """Return rows of speed and processor time. Raises NotMeasured if another loop has run."""
        both = (self.ours, self.peers)
        for name, side in (("rankroom", self.ours), (peer, self.peers)):
            _is_what_was_meant(name, self.loop, side)
        speeds = [[each["steps"] / each["seconds"] for each in side] for side in both]
        times = [[each["cpu"] / each["steps"] for each in side] for side in both]
        detail = {"batch": self.batch}
        return [
            Row(what, "steps/s", *speeds, ratio_at_least=at_least, peer=peer, detail=detail),
            Row(
                f"processor time of a step, {what}", "ms", *times,
                ratio_at_most=cpu_at_most, peer=peer, detail=detail,
            ),
        ]  # fmt: skip


def alternated(pairs: int, loop: Loop, *both: tuple[Side, str]) -> Segments:
    """Run segments of both sides alternately, each with its own request (such as `TRAIN`).

    The batch size is chosen such that a step of the second side takes the loop's time. Raises
    NotMeasured unless the ranks of each side have trained together.
    """
    for side, _ in both:
        _signal(side.pids(), signal.SIGSTOP)
    try:
        batch = 8
        for _ in range(8):
            # This is also the warm-up. The minimum is used, as a disturbed segment would look
            # like a loop with longer steps.
            taken = [[_awake(side, way.format(30, batch)) for side, way in both][1]
                     for _ in range(CALIBRATIONS)]  # fmt: skip
            step = min(each["seconds"] / each["steps"] * 1000 for each in taken)
            if step > 0.85 * loop.ms:
                break
            batch = min(8192, max(batch + 4, int(batch * min(3.0, loop.ms / step))))
        steps = max(FEWEST, int(SEGMENT_S * 1000 / step))
        found = alternate(
            pairs, *[partial(_awake, side, way.format(steps, batch)) for side, way in both]
        )
    finally:
        for side, _ in both:
            _signal(side.pids(), signal.SIGCONT)
    for side, _ in both:
        _has_trained(side.ask("trained()"))
    return Segments(loop, batch, *found)


def _awake(side: Side, asked: str) -> dict[str, Any]:
    _signal(side.pids(), signal.SIGCONT)
    try:
        return side.ask(asked)
    finally:
        _signal(side.pids(), signal.SIGSTOP)


def _signal(pids: Sequence[int], number: signal.Signals) -> None:
    for pid in pids:
        with contextlib.suppress(ProcessLookupError):
            os.kill(pid, number)


@contextlib.contextmanager
def cell(folder: Path, loop: Loop, more: str = "") -> Iterator[Side]:
    """Run the loop as a cell of a Rankroom cluster, after the code `more`; yield once it waits for
    requests."""
    room = Rankroom(folder, loop.ranks)
    try:
        room.start()
        pids = room.rank_pids()
        source = f"{room.magic}\n{more}\n{loop.text(folder)}"
        with ThreadPoolExecutor(1) as pool:
            running = pool.submit(room.kernel.run, source, timeout=3600)
            side = Side(folder, lambda: pids, lambda: _outcome(running))
            try:
                side.ask("timed(1)")
                yield side
            finally:
                side.end()
    finally:
        room.close()


def _outcome(running: Future[Answer]) -> str | None:
    if not running.done():
        return None
    return str(running.exception() or running.result().error or running.result().text)


def _running(folder: Path, script: Path) -> list[int]:
    return [each.pid for each in processes(folder) if _runs(each, script)]


def _said(program: psutil.Popen, folder: Path) -> str | None:
    return None if program.poll() is None else (folder / "output").read_text()


def _forked(folder: Path) -> list[int]:
    """Return the pids of the ranks of the cluster whose home is in `folder`."""
    found = [ClusterPaths(each.name, each.parent).read() for each in folder.glob("home/clusters/*")]
    return [rank.pid for info in found if info is not None for rank in info.ranks]


def _runs(process: psutil.Process, script: Path) -> bool:
    with contextlib.suppress(psutil.Error):
        return process.cmdline()[-1] == str(script) and "-m" not in process.cmdline()
    return False


@contextlib.contextmanager
def launched(launcher: str, folder: Path, loop: Loop, edited: bool = False) -> Iterator[Side]:
    """Run the script under a launcher, `rankroom run` or a peer's; yield once it waits for
    requests. A peer's Horovod is without our edits unless `edited`."""
    folder.mkdir()
    script = folder / "loop.py"
    script.write_text(loop.text(folder))
    # The same as Rankroom sets for its ranks, so that both sides use as many threads.
    env = os.environ | dict.fromkeys(THREADS, str(_share(loop))) | {MARK: str(folder)}
    if launcher == "horovodrun":
        if not edited:
            env["PYTHONPATH"] = str(plain_horovod())
        command = ["-m", "horovod.runner.launch", "-np", str(loop.ranks), "--gloo", sys.executable]
    elif launcher == "torchrun":
        command = ["-m", "torch.distributed.run", "--standalone", f"--nproc-per-node={loop.ranks}"]
    else:
        env["RANKROOM_HOME"] = str(folder / "home")
        command = ["-m", "rankroom", "run", f"--ranks={loop.ranks}"]
    with (folder / "output").open("wb") as output:
        started = psutil.Popen(
            [sys.executable, *command, script],
            env=env, cwd=folder, stdout=output, stderr=subprocess.STDOUT,
        )  # fmt: skip
        try:
            pids = partial(_running, folder, script)
            if launcher == "rankroom":
                pids = partial(_forked, folder)
            side = Side(folder, pids, partial(_said, started, folder))
            side.until(lambda: len(side.pids()) == loop.ranks, 120)
            side.ask("timed(1)")
            yield side
        finally:
            for each in processes(folder):
                with contextlib.suppress(psutil.Error):
                    each.kill()
            started.wait()


def plain_horovod() -> Path:
    """Return the folder of the peer's Horovod, which is built on the first call."""
    built = subprocess.run(
        [sys.executable, ROOT / "tools" / "plain_horovod.py"],
        stdout=subprocess.PIPE, text=True, check=False,
    )  # fmt: skip
    if built.returncode:
        raise NotMeasured("Horovod without Rankroom's edits could not be built")
    return Path(built.stdout.strip())


def _share(loop: Loop) -> int:
    return max(1, len(os.sched_getaffinity(0)) // loop.ranks)


def _has_trained(found: dict[str, Any]) -> None:
    """Raise NotMeasured unless all ranks have the same weights, with a plausible loss."""
    # Deep models learn slowly: a guess among ten digits has a loss of 2.303.
    if not found["is_alike"] or not found["loss"] < 2.35:
        raise NotMeasured(f"it did not train together: {found}")


def _is_what_was_meant(name: str, loop: Loop, segments: Sequence[dict[str, Any]]) -> None:
    """Raise NotMeasured unless it has run with the loop's ranks and threads."""
    for result in segments:
        if (result["size"], result["threads"]) != (loop.ranks, _share(loop)):
            raise NotMeasured(f"{name}: not the loop that was meant: {result}")
