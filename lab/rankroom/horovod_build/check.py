"""Report what the installed Horovod can do, and verify it with two ranks."""

from __future__ import annotations

import json
import os
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

from rankroom.errors import HorovodBuildError
from rankroom.horovod_build.features import Features, features
from rankroom.horovod_build.prove import LINE
from rankroom.horovod_build.ranks import first_failure, run_ranks
from rankroom.horovod_build.toolchain import find_frameworks
from rankroom.system import python_command
from rankroom.system.exits import describe_exit, where

RANKS = 2
MAX_LINES = 12
MAX_LINE_CHARS = 160
CRASH_REPORTS = ("terminate called", "Fatal Python error")


def check(say: Callable[[str], None], *, timeout: float = 120.0) -> bool:
    """Report through `say`, line by line; return whether every framework built in works.

    Raises HorovodBuildError if there is no Horovod, or it is built for no framework.
    """
    here = features()
    if here is None:
        raise HorovodBuildError(NOT_THERE)
    say(f"Horovod {here.version} in {here.path}")
    for line in describe(here):
        say(line)
    if not here.frameworks:
        raise HorovodBuildError(NOTHING_BUILT.format(path=here.path))
    installed = {framework.name: framework.version for framework in find_frameworks()}
    works = True
    for name, version in here.frameworks.items():
        if name not in installed:
            say(f"  {name:12}built in, but not installed here")
            continue
        if version not in ("unknown", installed[name]):
            say(MISMATCH.format(name=name, built=version, installed=installed[name]))
        works &= _prove([name], say, timeout)
    if works and {"torch", "tensorflow"} <= here.frameworks.keys() & installed.keys():
        for order in (["torch", "tensorflow"], ["tensorflow", "torch"]):
            works &= _prove(order, say, timeout)
        if not works:
            say(CLASH_PATCHED if here.patched else CLASH)
    for name in installed.keys() - here.frameworks.keys():
        say(f"  {name:12}not built in; to add it: `rankroom horovod build --force`")
    return works


def describe(here: Features) -> list[str]:
    """Return lines on what Rankroom's edits provide, or what is missing without them."""
    if not here.patched:
        lines = ["  not built by Rankroom (`rankroom horovod build` makes one that has it all)"]
    else:
        lines = [f"  with Rankroom's {len(here.edits)} edits (key {here.key})"]
    lines += [f"  has         {', '.join(here.has)}"] if here.has else []
    lines += [f"  lacks       {', '.join(here.lacks)}"] if here.lacks else []
    return lines


def _prove(frameworks: list[str], say: Callable[[str], None], timeout: float) -> bool:
    """Run two ranks with these frameworks, loaded in this order; return whether they work."""
    name = frameworks[0] if len(frameworks) == 1 else "both"
    first_loaded = "" if len(frameworks) == 1 else f" in one process, {frameworks[0]} first,"
    start = time.monotonic()
    package = str(Path(__file__).parents[2])
    path = os.pathsep.join(filter(None, [package, os.environ.get("PYTHONPATH")]))
    done = run_ranks(
        python_command.command("rankroom.horovod_build.prove", *frameworks)[1:],
        RANKS,
        timeout=timeout,
        env={"PYTHONPATH": path, "PYTHONFAULTHANDLER": "1"},
        inits=len(frameworks),
    )
    proofs = [_proof(rank.output) for rank in done]
    seconds = time.monotonic() - start
    if all(rank.ok for rank in done) and all(proofs):
        built = [what for what, there in proofs[0]["built"].items() if there]
        names = {"gloo": "Gloo", "nccl": "NCCL", "mpi": "MPI"}
        with_ = ", ".join(names[what] for what in built)
        about = f"{with_}; {seconds:.0f} s" if name != "both" else f"{seconds:.0f} s"
        on = "GPUs" if proofs[0]["gpus"] == len(frameworks) else "ranks"
        say(f"  {name:12}allreduce on {RANKS} {on}{first_loaded} is right ({about})")
        return True
    rank = first_failure(done) or 0
    first = done[rank]
    why = f"no answer in {timeout:g} s" if first.timed_out else describe_exit(first.returncode)
    say(f"  {name:12}FAILED{first_loaded} on rank {rank} ({why}{where(first.output)}); it printed:")
    for line in _most_informative_lines(first.output):
        say(f"    {line[:MAX_LINE_CHARS]}")
    return False


def _most_informative_lines(output: str) -> list[str]:
    """Return the most informative lines: the last ones or, after a crash, those that report it."""
    lines = output.rstrip().splitlines()
    crash = next((n for n, line in enumerate(lines) if line.startswith(CRASH_REPORTS)), None)
    return lines[-MAX_LINES:] if crash is None else lines[crash : crash + MAX_LINES]


def _proof(output: str) -> dict[str, Any]:
    for line in output.splitlines():
        if line.startswith(LINE):
            proof: dict[str, Any] = json.loads(line.removeprefix(LINE))
            return proof
    return {}


CLASH = (
    "  each works on its own, but not both in one process: import only one of horovod.torch and "
    "horovod.tensorflow in a cluster (`%cluster restart` before the other), or build a Horovod "
    "that supports both: `rankroom horovod build`"
)
CLASH_PATCHED = (
    "  each works on its own, but not both in one process: rebuild Horovod (`rankroom horovod "
    "build --force`); until then import only one of horovod.torch and horovod.tensorflow in a "
    "cluster (`%cluster restart` before the other)"
)
NOT_THERE = "Horovod is not installed in this environment: build it with `rankroom horovod build`"
NOTHING_BUILT = (
    "the Horovod in {path} has no framework built in: `rankroom horovod build --force` builds it "
    "for those of this environment"
)
MISMATCH = (
    "  {name:12}built for {built}, but {installed} is installed: rebuild it with "
    "`rankroom horovod build --force`"
)
