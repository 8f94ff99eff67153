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
from rankroom.errors import UsageError
from rankroom.run.run import Run

sys.path.append(str(Path(__file__).parents[1] / "tests" / "support"))
from spanned import spans

PRELOAD = "torch,horovod.torch"
CELL_S = 30.0  # timeout for a cell
TOOLS_S = 90.0  # torch.compile is slow
HANG_S = 15.0  # for a hang to be explained
AT_ONCE_S = 5.0  # for ranks to be released, or interrupted
TIMES = 5


class Failed(Exception):
    """The result of a check is not the promised one."""


class LeftOut(Exception):
    """This machine lacks something that a check needs."""


@dataclass
class Machine:
    """This machine, and the ranks that most checks use; `gpus` is 0 in a rehearsal."""

    folder: Path
    gpus: int
    share: int = 1  # ranks per GPU
    about: str = ""
    preloaded: list[bool] = field(default_factory=list)
    begun: float = field(default_factory=time.monotonic)
    _shared: Cluster | None = None

    def __post_init__(self) -> None:
        os.environ[MARK] = str(self.folder)

    @property
    def size(self) -> int:
        """The number of ranks: `share` for each GPU, or two without GPUs."""
        return self.gpus * self.share or 2

    @property
    def backend(self) -> str:
        return "nccl" if self.gpus else "gloo"

    @property
    def ranks(self) -> Cluster:
        """A cluster with `share` ranks per GPU, forked after the import of frameworks."""
        if self._shared is None:
            # By default, there must be one rank per GPU, so the number is not given then.
            ranks = None if self.share == 1 else self.size
            self._shared = Cluster.local(ranks=ranks, preload=PRELOAD)
            self.preloaded = self.values(self._shared, cells.PRELOADED)
            self.values(self._shared, cells.SETUP)
            self.about = self.values(self._shared, cells.ABOUT)[0]
        return self._shared

    def needs_ranks(self, count: int) -> None:
        """Raise LeftOut if there are fewer ranks."""
        if self.size < count:
            raise LeftOut(f"needs {count} GPUs, and there is 1: `--share 2` has ranks share it")

    def values(
        self, cluster: Cluster, source: str, seconds: float = CELL_S, **options: Any
    ) -> list[Any]:
        """Return the value of each rank's last expression. Raises Failed if the cell failed."""
        run = self.finish(cluster, source, seconds, **options)
        if run.state != "done":
            raise Failed(f"a cell ended as {run.state}: {run.info.failure}")
        return [ast.literal_eval(run.results[rank]) for rank in sorted(run.results)]

    def finish(self, cluster: Cluster, source: str, seconds: float = CELL_S, **options: Any) -> Run:
        """Run a cell to its end. Raises Failed if it does not end."""
        run = cluster.run(dedent(source), **options)
        if not run.wait(seconds):
            stacks = "\n".join(cluster.stacks().values())
            print(stacks, file=sys.stderr)
            raise Failed(f"a cell hung for {seconds:.0f} s; the stacks are above")
        return run

    def close(self) -> None:
        """End the shared ranks."""
        shared, self._shared = self._shared, None
        if shared is not None:
            shared.stop()


@contextlib.contextmanager
def cluster(ranks: int | None = None, **environment: str) -> Iterator[Cluster]:
    """Start ranks for one check, with these environment variables."""
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


# -- the checks: each returns its result as text


def horovod(machine: Machine) -> str:
    """`rankroom horovod check`, on GPUs if each of its ranks has one."""
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
    """One rank for each GPU, each with a device of its own; CUDA_VISIBLE_DEVICES is respected."""
    found = machine.values(machine.ranks, cells.OWN)
    kind = "cuda:{}" if machine.gpus else "cpu"
    expected = [kind.format(rank % max(1, machine.gpus)) for rank in range(machine.size)]
    if [device for device, _, _ in found] != expected:
        raise Failed(f"the ranks' devices are {[device for device, _, _ in found]}")
    if machine.gpus and len({uuid for _, uuid, _ in found}) != machine.gpus:
        raise Failed(f"ranks share a GPU: {found}")
    if bool(warning := machine.ranks.warning()) != (machine.share > 1):
        raise Failed(f"the warning is {warning!r}")
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
    """More ranks than GPUs: a warning says that ranks share a GPU, and NCCL works between them."""
    with cluster(machine.size + 1) as more:
        warning = more.warning()
        machine.values(more, cells.SETUP)
        found = machine.values(more, cells.COLLECTIVES.format(backend=machine.backend))
    wrong = {name for each in found for name, is_right in each["right"].items() if not is_right}
    if bool(warning) != bool(machine.gpus) or wrong:
        raise Failed(f"wrong: {sorted(wrong)}; the warning: {warning!r}")
    return (
        f"{warning or 'no warning, on the CPU'}; {machine.backend} is right on {len(found)} ranks"
    )


def ports(machine: Machine) -> str:
    """Once NCCL and Horovod are initialized, the ranks listen on loopback addresses only."""
    machine.values(machine.ranks, cells.COLLECTIVES.format(backend=machine.backend))
    found = {each for every in machine.values(machine.ranks, cells.LISTENING) for each in every}
    if far := sorted(each for each in found if not each.startswith(("127.", "::1", "::ffff:127."))):
        raise Failed(f"the ranks listen on {', '.join(far)}, which other machines may reach")
    return f"{len(found)} addresses, all on loopback"


def collectives(machine: Machine) -> str:
    """Collectives of Horovod and torch.distributed are correct, also when NCCL replaces Gloo."""
    found = machine.values(machine.ranks, cells.COLLECTIVES.format(backend=machine.backend))
    wrong = {name for each in found for name, is_right in each["right"].items() if not is_right}
    if wrong or {each["backend"] for each in found} != {machine.backend}:
        raise Failed(f"wrong: {sorted(wrong)}; {found[0]}")
    return f"{', '.join(found[0]['right'])} are right on {machine.size} ranks, by {machine.backend}"


def bandwidth(machine: Machine) -> str:
    """Allreduce on the ranks' devices: its time and bus bandwidth."""
    machine.needs_ranks(2)
    words = []
    for count in (1 << 14, 1 << 26) if machine.gpus else (1 << 14, 1 << 20):
        found = machine.values(
            machine.ranks, cells.ALLREDUCE.format(backend=machine.backend, count=count // 4)
        )
        for name in found[0]:
            turns = zip(*[each[name] for each in found], strict=True)
            seconds = statistics.median(map(max, turns))  # of the slowest rank
            rate = 2 * (machine.size - 1) / machine.size * count / seconds
            words.append(
                f"{name}, {count >> 10} KiB: {seconds * 1e6:,.0f} µs, {rate / 1e9:.2f} GB/s"
            )
    return "\n".join(words)


def ddp(machine: Machine) -> str:
    """A small net with DDP: steps per second in a cell, and of the same code under torchrun."""
    machine.needs_ranks(2)
    text = cells.DDP.format(backend=machine.backend, seconds=1.0 if machine.gpus else 0.3)
    script = machine.folder / "ddp.py"
    script.write_text(
        cells.TORCHRUN + text + "\nif rank == 0: print('SPEEDS', json.dumps(speeds()))\n"
    )
    ours, theirs = [], []
    for _ in range(2):  # alternately
        ours += machine.values(machine.ranks, f"{text}\nspeeds()")[0]
        theirs += torchrun(machine, script)
    ratio = statistics.median(ours) / statistics.median(theirs)
    return (
        f"{statistics.median(ours):,.0f} steps/s, torchrun {statistics.median(theirs):,.0f}: "
        f"{ratio:.2f} × (each {len(ours)} segments, {min(ours):,.0f}–{max(ours):,.0f} and "
        f"{min(theirs):,.0f}–{max(theirs):,.0f})"
    )


def torchrun(machine: Machine, script: Path) -> list[float]:
    """Return the speeds that rank 0 of a script prints under torchrun."""
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
    machine.needs_ranks(2)
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
    """Return the seconds from a rank's error until the last of the others was released."""
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


def hangs(machine: Machine) -> str:
    """Ranks that wait for each other forever: the wait is explained, and they can be ended."""
    machine.needs_ranks(2)
    words, wrong = [], False
    for name, (source, wanted) in cells.HANGS.items():
        machine.values(machine.ranks, cells.COLLECTIVES.format(backend=machine.backend))
        run = machine.ranks.run(source)
        until, said = time.monotonic() + HANG_S, ""
        while time.monotonic() < until and not run.wait(0.1) and not said.startswith(wanted):
            hang = machine.ranks.store.load(run.id).hang
            said = hang.text if hang is not None else said
        begun = time.monotonic()
        with contextlib.suppress(UsageError):
            machine.ranks.release()
        if not run.wait(1.0):
            run.interrupt()
        ended = run.wait(AT_ONCE_S)
        seconds = time.monotonic() - begun
        words.append(f"{name}: {said or 'nothing is said'}; {run.state} {seconds:.1f} s later")
        wrong |= not (ended and said.startswith(wanted))
        if not ended:
            machine.close()
    if wrong:
        raise Failed("\n".join(words))
    return "\n".join(words)


def samples(machine: Machine) -> str:
    """The record has the load of each rank's GPU, also for a rank that was restarted."""
    # This makes the node agent query the driver before it forks a rank.
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


def waits(machine: Machine) -> str:
    """The timeline shows the wait for a late rank: in a collective, and in averaging gradients."""
    machine.needs_ranks(2)
    run = machine.finish(machine.ranks, cells.LATE.replace("BACKEND", machine.backend))
    if run.state != "done":
        raise Failed(f"the cell ended as {run.state}: {run.info.failure}")
    words = []
    for name in ("all_reduce gradients", "all_reduce #2"):
        longest = [
            max((each.end - each.start for each in spans(run, rank, "collective")
                 if each.name == name), default=-1) / 1e6
            for rank in (0, machine.size - 1)
        ]  # fmt: skip
        words.append(f"{name}: rank 0 {longest[0]:.2f} s, the one that was late {longest[1]:.2f} s")
        if not 0 <= longest[1] < 0.25 < longest[0]:
            raise Failed(words[-1])
    return "\n".join(words)


def metrics(machine: Machine) -> str:
    """Logging a tensor on the device does not wait for it, and its value is recorded."""
    run = machine.finish(machine.ranks, cells.METRICS)
    if run.state != "done":
        raise Failed(f"the cell ended as {run.state}: {run.info.failure}")
    calls, work = zip(*[ast.literal_eval(each) for each in run.results.values()], strict=True)
    if machine.gpus and max(calls) > min(work) / 10:
        raise Failed(f"a call took {max(calls) * 1e3:.1f} ms beside {min(work) * 1e3:.1f} of work")
    losses = [each for each in run.metrics() if each["name"] == "loss"]
    if len(losses) != 20 * machine.size:
        raise Failed(f"{len(losses)} values have come of {20 * machine.size}")
    return f"{max(calls) * 1e6:.0f} µs a call, while {min(work) * 1e3:.1f} ms of work are queued"


def broken(machine: Machine) -> str:
    """How a GPU that is out of memory, and one whose context an error has ended, are reported."""
    words = []
    with cluster(machine.size) as ranks:
        machine.values(ranks, cells.SETUP)
        for name, source in cells.BREAKS.items():
            run = machine.finish(ranks, source)
            again = machine.finish(ranks, "torch.ones(3, device=device).sum().item()")
            words.append(f"{name}: {run.state}, {run.info.failure}")
            words.append(f"  then: {again.state}, {again.info.failure} {again.results}")
        ranks.restart(range(machine.size))
        machine.values(ranks, f"{cells.SETUP}\ntorch.ones(3, device=device).sum().item()")
    return "\n".join([*words, "after a restart all is well"])


def tools(machine: Machine) -> str:
    """torch.compile, mixed precision, FSDP and a DataLoader with pinned memory, as cells."""
    taken = {}
    for name, source in cells.TOOLS.items():
        begun = time.monotonic()
        found = machine.values(machine.ranks, source.replace("BACKEND", machine.backend), TOOLS_S)
        if not all(found):
            raise Failed(f"{name}: the result is wrong on ranks {found}")
        taken[name] = time.monotonic() - begun
    return ", ".join(f"{name} ({seconds:.1f} s)" for name, seconds in taken.items())


def profiler(machine: Machine) -> str:
    """With --profile, the timeline shows what runs on each rank's GPU."""
    run = machine.finish(machine.ranks, cells.WORK, profile=True)
    timeline = run.timeline
    counts = {}
    for kind in ("op", "kernel") if machine.gpus else ("op",):
        counts[kind] = [len(timeline.lane(rank, kind)) for rank in range(machine.size)]
        if run.state != "done" or not all(counts[kind]):
            raise Failed(f"{run.state}; spans of kind {kind} by rank: {counts[kind]}")
    return ", ".join(f"{sum(each)} spans of kind {kind}" for kind, each in counts.items())


def tensorflow(machine: Machine) -> str:
    """TensorFlow uses each rank's own GPU only: with a strategy, and with Horovod."""
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
    "collectives": collectives, "ports": ports, "bandwidth": bandwidth, "ddp": ddp,
    "release": release, "interrupt": interrupt, "hangs": hangs, "waits": waits, "metrics": metrics,
    "tools": tools, "broken": broken, "profiler": profiler, "samples": samples,
    "tensorflow": tensorflow,
}  # fmt: skip
MEASURED = ("bandwidth", "ddp")
