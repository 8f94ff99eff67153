"""The checks of `bench/gpu.py`: cells on real ranks, each with a GPU, or a CPU to rehearse."""

from __future__ import annotations

import ast
import contextlib
import importlib.util
import json
import os
import statistics
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from textwrap import dedent
from typing import Any

import gpu_cells as cells
from kernel import MARK
from rankroom.cluster import actions
from rankroom.cluster.local import Cluster
from rankroom.run.run import Run

PRELOAD = "torch,horovod.torch"
CELL_S = 90.0
AT_ONCE_S = 5.0  # for ranks to be released, or interrupted
TIMES = 5


class Failed(Exception):
    """What a check found is not what was promised."""


class LeftOut(Exception):
    """This machine has not what a check needs."""


@dataclass
class Machine:
    """This machine, and the ranks that most checks share; `gpus` is 0 in a rehearsal."""

    folder: Path
    gpus: int
    about: str = ""
    preloaded: list[bool] = field(default_factory=list)
    begun: float = field(default_factory=time.monotonic)
    _shared: Cluster | None = None

    def __post_init__(self) -> None:
        os.environ[MARK] = str(self.folder)

    @property
    def size(self) -> int:
        """How many ranks there are: one for each GPU, or two."""
        return self.gpus or 2

    @property
    def backend(self) -> str:
        return "nccl" if self.gpus else "gloo"

    @property
    def ranks(self) -> Cluster:
        """One for each GPU, with frameworks imported before they were forked."""
        if self._shared is None:
            # The number is not given: it is what is promised.
            self._shared = Cluster.local(preload=PRELOAD)
            self.preloaded = self.values(self._shared, cells.PRELOADED)
            self.values(self._shared, cells.SETUP)
            self.about = self.values(self._shared, cells.ABOUT)[0]
        return self._shared

    def needs_gpus(self, count: int) -> None:
        """Raises LeftOut on a machine with fewer; a rehearsal has ranks instead."""
        if 0 < self.gpus < count:
            raise LeftOut(f"needs {count} GPUs, and there is 1")

    def values(self, cluster: Cluster, source: str, **options: Any) -> list[Any]:
        """What each rank's last expression came to. Raises Failed if the cell did not end well."""
        run = self.finish(cluster, source, **options)
        if run.state != "done":
            raise Failed(f"a cell ended as {run.state}: {run.info.failure}")
        return [ast.literal_eval(run.results[rank]) for rank in sorted(run.results)]

    def finish(self, cluster: Cluster, source: str, **options: Any) -> Run:
        """Run a cell to its end. Raises Failed if it does not end."""
        run = cluster.run(dedent(source), **options)
        if not run.wait(CELL_S):
            stacks = "\n".join(cluster.stacks().values())
            print(stacks, file=sys.stderr)
            raise Failed(f"a cell hung for {CELL_S:.0f} s; the stacks are above")
        return run

    def close(self) -> None:
        """End the shared ranks."""
        shared, self._shared = self._shared, None
        if shared is not None:
            shared.stop()


@contextlib.contextmanager
def cluster(ranks: int | None = None, **environment: str) -> Iterator[Cluster]:
    """Ranks for one check."""
    before = {name: os.environ.get(name) for name in environment}
    os.environ.update(environment)
    try:
        made = Cluster.local(ranks=ranks)
    finally:
        for name, value in before.items():
            os.environ.pop(name) if value is None else os.environ.update({name: value})
    try:
        yield made
    finally:
        made.stop()


# -- the checks: each returns what it found, in a line


def horovod(machine: Machine) -> str:
    """`rankroom horovod check`, on GPUs where each of its ranks has one."""
    done = subprocess.run(
        [sys.executable, "-m", "rankroom", "horovod", "check"],
        stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, timeout=300,
    )  # fmt: skip
    lines = [line.strip() for line in done.stdout.splitlines() if "allreduce on" in line]
    torch = next((line for line in lines if line.startswith("torch")), "")
    if done.returncode:
        raise Failed(done.stdout.strip())
    if machine.gpus and "NCCL" not in torch:
        raise Failed("Horovod is built without NCCL: `rankroom horovod build --gpu`")
    if machine.gpus > 1 and "on 2 GPUs" not in torch:
        raise Failed(f"it did not use the GPUs: {torch}")
    return "\n".join(lines)


def preload(machine: Machine) -> str:
    """Ranks are forked with torch imported, and can still use the GPU: no context was opened."""
    sums = machine.values(machine.ranks, "torch.ones(3, device=device).sum().item()")
    if not all(machine.preloaded):
        raise Failed("the ranks were not forked from a process that has imported torch")
    if sums != [3.0] * machine.size:
        raise Failed(f"a forked rank computes wrongly: {sums}")
    return f"{len(sums)} forked ranks had torch and Horovod, and use their devices"


def own(machine: Machine) -> str:
    """One rank for each GPU, each with a device of its own; CUDA_VISIBLE_DEVICES counts."""
    found = machine.values(machine.ranks, cells.OWN)
    kind = "cuda:{}" if machine.gpus else "cpu"
    expected = [kind.format(rank) for rank in range(machine.size)]
    if [device for device, _, _ in found] != expected:
        raise Failed(f"the ranks' devices are {[device for device, _, _ in found]}")
    if machine.gpus and len({uuid for _, uuid, _ in found}) != machine.gpus:
        raise Failed(f"ranks share a GPU: {found}")
    if warning := machine.ranks.warning():
        raise Failed(f"there is a warning: {warning}")
    if machine.gpus < 2:
        return f"{', '.join(expected)}; a choice of GPUs was left out"
    visible = os.environ.get("CUDA_VISIBLE_DEVICES")
    names = visible.split(",") if visible else [str(gpu) for gpu in range(machine.gpus)]
    with cluster(CUDA_VISIBLE_DEVICES=names[machine.gpus - 1]) as chosen:
        [(device, uuid, _)] = machine.values(chosen, cells.SETUP + cells.OWN)
    if (device, uuid) != ("cuda:0", found[-1][1]):
        raise Failed(f"of the last GPU alone, a rank has {device}, {uuid}; it is {found[-1][1]}")
    return f"{', '.join(expected)}; the last GPU alone is cuda:0"


def shared(machine: Machine) -> str:
    """More ranks than GPUs: that two share one is warned about, and works."""
    with cluster(machine.size + 1) as more:
        warning = more.warning()
        sums = machine.values(more, f"{cells.SETUP}\ntorch.ones(8, device=device).sum().item()")
    if bool(warning) != bool(machine.gpus) or sums != [8.0] * (machine.size + 1):
        raise Failed(f"{sums}, and the warning: {warning!r}")
    return warning or "no warning, on the CPU"


def collectives(machine: Machine) -> str:
    """Collectives of Horovod and torch.distributed are right; NCCL takes the place of Gloo."""
    found = machine.values(machine.ranks, cells.COLLECTIVES.format(backend=machine.backend))
    wrong = {name for each in found for name, is_right in each["right"].items() if not is_right}
    if wrong or {each["backend"] for each in found} != {machine.backend}:
        raise Failed(f"wrong: {sorted(wrong)}; {found[0]}")
    return f"{', '.join(found[0]['right'])} are right on {machine.size} ranks, by {machine.backend}"


def bandwidth(machine: Machine) -> str:
    """Allreduce on the ranks' devices: bytes through each link in a second."""
    machine.needs_gpus(2)
    words = []
    for count in (1 << 14, 1 << 26) if machine.gpus else (1 << 14, 1 << 20):
        found = machine.values(
            machine.ranks, cells.ALLREDUCE.format(backend=machine.backend, count=count // 4)
        )
        for name in found[0]:
            turns = zip(*[each[name] for each in found], strict=True)
            seconds = statistics.median(map(max, turns))  # of the last rank
            rate = 2 * (machine.size - 1) / machine.size * count / seconds
            words.append(
                f"{name}, {count >> 10} KiB: {seconds * 1e6:,.0f} µs, {rate / 1e9:.2f} GB/s"
            )
    return "\n".join(words)


def ddp(machine: Machine) -> str:
    """A small net with DDP: steps a second in a cell, beside the same text under torchrun."""
    machine.needs_gpus(2)
    text = cells.DDP.format(backend=machine.backend, seconds=1.0 if machine.gpus else 0.3)
    script = machine.folder / "ddp.py"
    script.write_text(
        cells.TORCHRUN + text + "\nif rank == 0: print('SPEEDS', json.dumps(speeds()))\n"
    )
    ours, theirs = [], []
    for _ in range(2):  # in turns
        ours += machine.values(machine.ranks, f"{text}\nspeeds()")[0]
        theirs += torchrun(machine, script)
    ratio = statistics.median(ours) / statistics.median(theirs)
    return (
        f"{statistics.median(ours):,.0f} steps/s, torchrun {statistics.median(theirs):,.0f}: "
        f"{ratio:.2f} × (each {len(ours)} segments, {min(ours):,.0f}–{max(ours):,.0f} and "
        f"{min(theirs):,.0f}–{max(theirs):,.0f})"
    )


def torchrun(machine: Machine, script: Path) -> list[float]:
    """What rank 0 of a script under torchrun prints of its speed."""
    command = ["-m", "torch.distributed.run", "--standalone", f"--nproc-per-node={machine.size}"]
    threads = max(1, len(os.sched_getaffinity(0)) // machine.size)
    done = subprocess.run(
        [sys.executable, *command, script], env=os.environ | {"OMP_NUM_THREADS": str(threads)},
        stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, timeout=CELL_S,
    )  # fmt: skip
    said = [line for line in done.stdout.splitlines() if line.startswith("SPEEDS ")]
    if not said:
        raise Failed(f"torchrun: {done.stdout[-1500:]}")
    return list(json.loads(said[0].partition(" ")[2]))


def release(machine: Machine) -> str:
    """A peer's error releases ranks that are blocked in a collective; they keep their variables."""
    machine.needs_gpus(2)
    words = []
    machine.values(machine.ranks, cells.COLLECTIVES.format(backend=machine.backend))
    for library, call in cells.RAISES.items():
        taken = [released(machine, library, call) for _ in range(TIMES)]
        words.append(
            f"{library}: {statistics.median(taken) * 1e3:.0f} ms "
            f"({min(taken) * 1e3:.0f}–{max(taken) * 1e3:.0f}, n={len(taken)}), variables kept"
        )
    return "\n".join(words)


def released(machine: Machine, library: str, call: str) -> float:
    """Seconds from a rank's error until the last of the others was let go."""
    ranks, last = machine.ranks, machine.size - 1
    machine.values(ranks, "kept = ['precious', rank, torch.full((2,), rank, device=device)]\n0")
    run = machine.finish(ranks, call)
    states = [rank.state for rank in run.info.ranks]
    if states != ["released"] * last + ["error"]:
        raise Failed(f"{library}: the ranks ended as {states}; {run.info.failure}")
    ended = ranks.pull("let_go")
    kept = machine.values(ranks, "kept[0], kept[1], kept[2].tolist()")
    if kept != [("precious", rank, [rank, rank]) for rank in range(machine.size)]:
        raise Failed(f"{library}: of the variables there is left {kept}")
    sums = machine.values(ranks, "[hvd_sum(), dist_sum()]")
    if sums != [[machine.size * (machine.size + 1) / 2] * 2] * machine.size:
        raise Failed(f"{library}: collectives of the next cell give {sums}")
    seconds = max(float(ended[rank]) for rank in range(last)) - float(ended[last])
    if seconds > AT_ONCE_S:
        raise Failed(f"{library}: released only after {seconds:.1f} s")
    return seconds


def interrupt(machine: Machine) -> str:
    """An interrupt ends a loop that keeps the device busy; the next cell works."""
    sign = machine.folder / "looping"
    taken = []
    for _ in range(TIMES):
        sign.unlink(missing_ok=True)
        run = machine.ranks.run(cells.LOOP.format(sign=str(sign)))
        deadline = time.monotonic() + CELL_S
        while not sign.exists():
            if time.monotonic() > deadline or run.state != "running":
                raise Failed(f"the loop did not begin: {run.state}, {run.info.failure}")
            time.sleep(0.01)
        begun = time.monotonic()
        run.interrupt()
        if not run.wait(AT_ONCE_S) or run.state != "interrupted":
            raise Failed(f"{AT_ONCE_S:.0f} s after an interrupt the run is {run.state}")
        taken.append(time.monotonic() - begun)
        if any(total <= 0 for total in machine.values(machine.ranks, "turns")):
            raise Failed("a variable is gone")
    return f"{statistics.median(taken) * 1e3:.0f} ms ({max(taken) * 1e3:.0f} at most, n={TIMES})"


def samples(machine: Machine) -> str:
    """The record says how busy each rank's GPU is; also of a rank that was forked again."""
    # The node's agent asks the driver, too, and then forks.
    asked = actions.look(machine.ranks.name)
    machine.ranks.restart([machine.size - 1])
    machine.values(machine.ranks, cells.SETUP)
    run = machine.finish(machine.ranks, cells.WORK)
    if run.state != "done":
        raise Failed(f"the cell ended as {run.state}: {run.info.failure}")
    wanted = ("gpu", "gpu_memory") if machine.gpus else ("cpu", "memory")
    words = []
    for rank in range(machine.size):
        found = [each for each in run.events if (each["kind"], each["rank"]) == ("sample", rank)]
        most = [max((each.get(name, 0) for each in found), default=0) for name in wanted]
        if not all(most):
            raise Failed(f"rank {rank} has no {wanted} in {len(found)} samples; asked, {asked}")
        words.append(f"rank {rank} {most[0]:.0f} % and {most[1] / 1e9:.1f} GB")
    return ", ".join(words)


def profiler(machine: Machine) -> str:
    """With --profile, what runs on each rank's GPU is in the timeline."""
    run = machine.finish(machine.ranks, cells.WORK, profile=True)
    timeline = run.timeline
    counts = {}
    for kind in ("op", "kernel") if machine.gpus else ("op",):
        counts[kind] = [len(timeline.lane(rank, kind)) for rank in range(machine.size)]
        if run.state != "done" or not all(counts[kind]):
            raise Failed(f"{run.state}; spans of kind {kind} by rank: {counts[kind]}")
    return ", ".join(f"{sum(each)} spans of kind {kind}" for kind, each in counts.items())


def tensorflow(machine: Machine) -> str:
    """TensorFlow on each rank keeps to that rank's GPU: by a strategy, and with Horovod."""
    if importlib.util.find_spec("tensorflow") is None:
        raise LeftOut("there is no TensorFlow")
    words = []
    for name, source in cells.STRATEGY.items():
        with cluster(machine.size) as ranks:
            found = machine.values(ranks, source)
        seen = [everything for everything, _, _ in found]
        if machine.gpus and not any(seen):
            raise LeftOut("this TensorFlow sees no GPU: it is built for the CPU")
        expected = [[f"GPU:{rank}"] if machine.gpus else [] for rank in range(machine.size)]
        if [visible for _, visible, _ in found] != expected:
            raise Failed(f"{name}: TensorFlow's devices are {[each[1] for each in found]}")
        if any(total != machine.size for _, _, total in found):
            raise Failed(f"{name}: a sum over the ranks gives {[each[2] for each in found]}")
        whose = "its own GPU" if machine.gpus else "none, on the CPU"
        words.append(f"{name}: each rank has {whose}; a sum over the ranks is right")
    return "\n".join(words)


CHECKS: dict[str, Callable[[Machine], str]] = {
    "horovod": horovod, "preload": preload, "own": own, "shared": shared,
    "collectives": collectives, "bandwidth": bandwidth, "ddp": ddp, "release": release,
    "interrupt": interrupt, "profiler": profiler, "samples": samples, "tensorflow": tensorflow,
}  # fmt: skip
MEASURED = ("bandwidth", "ddp")
