"""Say what the installed Horovod can do, and prove it with two ranks."""

from __future__ import annotations

import json
import os
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

from rankroom.errors import HorovodBuildError
from rankroom.horovod.features import Features, features
from rankroom.horovod.prove import LINE
from rankroom.horovod.ranks import first_failure, run_ranks
from rankroom.horovod.toolchain import find_frameworks

RANKS = 2


def check(say: Callable[[str], None], *, timeout: float = 120.0) -> bool:
    """Report through `say`, line by line; whether every framework built in works.

    Raises HorovodBuildError when there is no Horovod, or one for no framework.
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
        works &= _prove(name, say, timeout)
    for name in installed.keys() - here.frameworks.keys():
        say(f"  {name:12}not built in: `rankroom horovod build --force`")
    return works


def describe(here: Features) -> list[str]:
    """What Rankroom's edits give, or what is missing without them."""
    if not here.patched:
        lines = ["  not built by Rankroom (`rankroom horovod build` makes one that has it all)"]
    else:
        lines = [f"  with Rankroom's {len(here.edits)} edits (key {here.key})"]
    has = [
        text
        for given, text in (
            (here.rank_timelines, "a native timeline on every rank"),
            (here.keras3 and "tensorflow" in here.frameworks, "Keras 3"),
            (here.rank_spans, "every rank's collectives in the timeline"),
        )
        if given
    ]
    lines += [f"  has         {', '.join(has)}"] if has else []
    lines += [f"  lacks       {', '.join(here.lacks)}"] if here.lacks else []
    return lines


def _prove(name: str, say: Callable[[str], None], timeout: float) -> bool:
    start = time.monotonic()
    package = str(Path(__file__).parents[2])
    path = os.pathsep.join(filter(None, [package, os.environ.get("PYTHONPATH")]))
    done = run_ranks(
        ["-m", "rankroom.horovod.prove", name], RANKS, timeout=timeout, env={"PYTHONPATH": path}
    )
    proofs = [_proof(rank.output) for rank in done]
    seconds = time.monotonic() - start
    if all(rank.ok for rank in done) and all(proofs):
        built = [what for what, there in proofs[0]["built"].items() if there]
        names = {"gloo": "Gloo", "nccl": "NCCL", "mpi": "MPI"}
        with_ = ", ".join(names[what] for what in built)
        say(f"  {name:12}allreduce on {RANKS} ranks is right ({with_}; {seconds:.0f} s)")
        return True
    rank = first_failure(done) or 0
    first = done[rank]
    why = f"no answer in {timeout:g} s" if first.timed_out else f"exit status {first.returncode}"
    say(f"  {name:12}FAILED on rank {rank} ({why}); its last lines:")
    for line in first.tail(12).splitlines():
        say(f"    {line}")
    return False


def _proof(output: str) -> dict[str, Any]:
    for line in output.splitlines():
        if line.startswith(LINE):
            proof: dict[str, Any] = json.loads(line.removeprefix(LINE))
            return proof
    return {}


NOT_THERE = "no Horovod in this environment: `rankroom horovod build`"
NOTHING_BUILT = (
    "the Horovod in {path} has no framework built in: `rankroom horovod build --force` builds it "
    "for those of this environment"
)
MISMATCH = (
    "  {name:12}built for {built}, but {installed} is installed: `rankroom horovod build --force`"
)
