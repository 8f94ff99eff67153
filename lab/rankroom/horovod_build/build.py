"""Build Horovod for this environment once, keep the wheel, and install it."""

from __future__ import annotations

import os
import re
import shutil
import time
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

from rankroom.errors import HorovodBuildError
from rankroom.horovod_build.build_remedies import cause, explain
from rankroom.horovod_build.cache import (
    cache_folder,
    can_compile_in,
    clear_scratch,
    keep,
    lock,
    place_to_compile,
    scratch,
    wheel_in,
)
from rankroom.horovod_build.cuda import Gpu, with_compiler
from rankroom.horovod_build.edits.edit import VERSION, apply
from rankroom.horovod_build.edits.python_edits import PYTHON_EDITS
from rankroom.horovod_build.features import features
from rankroom.horovod_build.plan import (
    ALL_EDITS,
    Part,
    Plan,
    build_environment,
    clean_environment,
    make_plan,
)
from rankroom.horovod_build.source import PIP, fetch, unpack
from rankroom.horovod_build.toolchain import demand_pip, find_cmake, find_compiler, preflight
from rankroom.horovod_build.wheel import finish
from rankroom.system import control_groups
from rankroom.system.commands import run_sync

MEMORY_PER_COMPILER_BYTES = 2_000_000_000
COMPILE_TIMEOUT_S = 3 * 3600
# No pip cache: it would return a wheel that was compiled under other conditions.
PIP_WHEEL = [*PIP, "wheel", ".", "--verbose", "--no-cache-dir", "--no-build-isolation"]
Report = Callable[[str, int | None], None]
"""Called with a phase and, where it is known, how many percent of it are done."""


def build(
    gpu: bool | None = None,
    *,
    jobs: int | None = None,
    force: bool = False,
    report: Report = lambda phase, percent: None,
    decided: Callable[[Plan], None] = lambda plan: None,
) -> str:
    """Install this environment's Horovod, built if need be; return what was done, in one line.

    `decided` is called with the plan before anything is built. Raises HorovodBuildError with the
    cause and the remedy.
    """
    plan = make_plan(gpu)
    decided(plan)
    here = features()
    if here and here.key == plan.key and not force:
        return f"already installed: Horovod {here.version} for {plan.names}"
    demand_pip()
    folder = cache_folder()
    folder.mkdir(parents=True, exist_ok=True)
    with lock(folder, lambda: report("wait for another build", None)) as is_alone:
        if is_alone:
            clear_scratch(folder)
        start = time.monotonic()
        wheel = wheel_in(folder / plan.key)
        cached = wheel is not None and not force
        if wheel is None or force:
            wheel = _make(plan, folder, jobs, force, report)
        report("install", None)
        _install(wheel)
    source = "from the cache" if cached else f"built in {time.monotonic() - start:.0f} s"
    return f"installed Horovod {VERSION} for {plan.names}, {source}"


def default_jobs() -> int:
    """Return the number of compiler jobs: one per usable core, as far as the memory permits."""
    left = control_groups.free_memory(control_groups.groups("memory"))
    return max(1, min(control_groups.cores(), left // MEMORY_PER_COMPILER_BYTES))


def _make(plan: Plan, folder: Path, jobs: int | None, force: bool, report: Report) -> Path:
    report("check the tools", None)
    preflight(place_to_compile(folder))
    compiled = []
    for part in plan.parts:
        wheel = wheel_in(folder / "compiled" / part.key)
        if wheel is None or force:
            wheel = compile_part(part, folder, jobs or default_jobs(), report)
        compiled.append(wheel)
    report("apply the Python edits", None)
    marker = {
        "key": plan.key,
        "edits": [edit.id for edit in ALL_EDITS],
        "gpu": plan.gpu,
    }
    with scratch(folder) as place:
        finish(compiled, place, PYTHON_EDITS, marker)
        wheel = keep(place, folder / plan.key)
    for old in folder.glob(f"{plan.native_key}.*"):
        if old.name != plan.key:
            shutil.rmtree(old, ignore_errors=True)
    return wheel


def compile_part(part: Part, folder: Path, jobs: int, report: Report) -> Path:
    """Compile the libraries of `part` into a wheel, kept in the cache `folder`, and return it."""
    report("fetch the source", None)
    archive = fetch(folder / "source")
    with scratch(place_to_compile(folder)) as place:
        if part.gpu:
            if not part.gpu.cuda_home:
                report(f"fetch the compiler for CUDA {part.gpu.cuda_version}", None)
            kept = folder if can_compile_in(folder) else place
            part = replace(part, gpu=with_compiler(part.gpu, kept))
        tree = unpack(archive, place)
        apply(tree, part.edits)
        env = clean_environment(os.environ) | build_environment(
            part,
            cmake=find_cmake(),
            compiler=find_compiler(),
            jobs=jobs,
            nccl_folder=_linkable(part.gpu, place),
        )
        name = part.name
        report(f"configure for {name}", None)
        log = folder / f"build-{name.replace(' ', '-')}.log"
        with log.open("w") as lines:

            def on_line(line: str) -> None:
                lines.write(line + "\n")
                percent = re.match(r"\s*\[ *(\d+)%\]", line)
                if percent:
                    report(f"compile for {name}", int(percent[1]))

            done = run_sync(
                [*PIP_WHEEL, "--no-deps", "--wheel-dir=wheel"],
                env=env,
                cwd=tree,
                timeout=COMPILE_TIMEOUT_S,
                on_line=on_line,
            )
        if not done.ok:
            why = cause(done.output) or f"pip ended with status {done.returncode}"
            remedy = explain(done.output)
            raise HorovodBuildError(
                FAILED.format(name=name, why=why, tail=done.tail(25), log=log, remedy=remedy)
            )
        return keep(tree / "wheel", folder / "compiled" / part.key)


def _install(wheel: Path) -> None:
    done = run_sync(
        [*PIP, "install", "--no-index", "--no-deps", "--force-reinstall", wheel],
        timeout=600,
    )
    if not done.ok:
        raise HorovodBuildError(NOT_INSTALLED.format(wheel=wheel, tail=done.tail(15)))


def _linkable(gpu: Gpu | None, place: Path) -> Path | None:
    """Return a folder with NCCL as libnccl.so, which the linker needs and pip's lacks, or None."""
    if gpu is None or gpu.nccl_library.name == "libnccl.so":
        return None
    folder = place / "nccl"
    folder.mkdir()
    (folder / "libnccl.so").symlink_to(gpu.nccl_library)
    return folder


FAILED = (
    "Horovod did not build for {name}: {why}\nremedy: {remedy}\n"
    "Full log: {log}; its last lines:\n{tail}"
)
NOT_INSTALLED = "pip could not install {wheel}; pip's last lines:\n{tail}"
