"""Prove, even without a GPU, that Horovod builds for GPUs: with NCCL, for CUDA 13 and for CUDA 12.

`tools/gpu_build.py [--cuda 13] [--force]`. For each CUDA: create an environment in the cache with
pip's PyTorch for it, run `rankroom horovod build --gpu`, check which NCCL is built in, and run an
allreduce on two ranks. Before CUDA 13, the machine must have the CUDA toolkit: without it, this
shows that pip has no compiler, and the message of the build. Takes minutes and gigabytes. Exits
with 1 if something failed.
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
import tempfile
import time
import zipfile
from pathlib import Path

import packages
from interpreters import size
from machine import output, run
from rankroom.horovod_build.cuda import NO_NVCC, OLDEST_FETCHED_CUDA, find_gpu
from rankroom.horovod_build.source import PIP
from setup import CACHE, ROOT, locked

FOLDER = CACHE / "gpu-build"
# By CUDA, a PyTorch whose default build from pip is for it: the lock's, and the newest for 12.
TORCH = {"13": locked("torch"), "12": "2.10.0"}
# Requirements of the build, without JupyterLab.
NEEDED = (
    "cffi", "click", "cloudpickle", "cmake", "numpy", "nvidia-ml-py", "packaging", "psutil",
    "pyyaml", "setuptools", "wheel",
)  # fmt: skip
# The programs of a CUDA compiler; if one is missing, nothing can be compiled.
PROGRAMS = ("nvcc", "cudafe++", "cicc", "ptxas", "fatbinary", "nvlink")
FACTS = """
import json, torch, horovod.torch
print(json.dumps({"torch": torch.__version__, "cuda": torch.version.cuda,
                  "nccl": horovod.torch.nccl_built(), "of_torch": torch.cuda.nccl.version()}))
"""


class Failed(Exception):
    """A result is not as required."""


def main() -> int:
    """Try each requested CUDA."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    parser.add_argument("--cuda", action="append", choices=TORCH, help="only for this one")
    parser.add_argument("--force", action="store_true", help="compile, whatever is in the cache")
    asked = parser.parse_args()
    failed = False
    for cuda in asked.cuda or TORCH:
        begun = time.monotonic()
        try:
            words = without_toolkit(cuda) if is_missing(cuda) else built(cuda, asked.force)
        except (Failed, SystemExit) as error:
            words, failed = f"FAILED: {error}", True
        print(f"CUDA {cuda}: {words} ({time.monotonic() - begun:.0f} s)", flush=True)
    return int(failed)


def refusal(cuda: str) -> str:
    """Return the message of a build that has no compiler for this CUDA."""
    return NO_NVCC.format(cuda=f"{cuda}.0", major=cuda, fetched=OLDEST_FETCHED_CUDA)


def is_missing(cuda: str) -> bool:
    """Return whether the build finds this CUDA's compiler neither here nor in pip."""
    return find_gpu(f"{cuda}.0") == refusal(cuda)


def without_toolkit(cuda: str) -> str:
    """Return a report for a machine without a toolkit. Raises Failed if pip has a compiler."""
    name = f"nvidia-cuda-nvcc-cu{cuda}"
    with tempfile.TemporaryDirectory() as folder:
        run([*PIP, "download", "--quiet", "--no-deps", f"--dest={folder}", name])
        [wheel] = Path(folder).glob("*.whl")
        found = programs(wheel)
        version = wheel.name.split("-")[1]
    lacks = [each for each in PROGRAMS if each not in found]
    if "nvcc" in found:
        raise Failed(f"{name} {version} has nvcc: let horovod_build/cuda.py fetch it")
    return (
        f"not built, as there is no CUDA toolkit here. Of a compiler, {name} {version} has "
        f"{', '.join(found)} and lacks {', '.join(lacks)}. The build says: {refusal(cuda)}"
    )


def programs(wheel: Path) -> list[str]:
    """Return the programs of a compiler that a wheel contains."""
    with zipfile.ZipFile(wheel) as archive:
        names = {Path(name).name for name in archive.namelist() if "/bin/" in name}
    return [each for each in PROGRAMS if each in names]


def built(cuda: str, force: bool) -> str:
    """Build Horovod in an environment of its own, and use it. Raises Failed or SystemExit."""
    place = FOLDER / f"cuda{cuda}"
    python = place / "bin" / "python"
    if not python.is_file():
        outside = getattr(sys, "_base_executable", sys.executable)
        run([outside, "-m", "venv", "--clear", place])
    os.environ[packages.TORCH] = "cuda"
    packages.install(python, [f"{name}=={locked(name)}" for name in NEEDED], TORCH[cuda])
    own = {
        "RANKROOM_CACHE": str(CACHE),
        "PYTHONPATH": str(ROOT / "lab"),
        "PATH": f"{python.parent}{os.pathsep}{os.environ['PATH']}",
    }
    command: list[str | Path] = [python, "-m", "rankroom", "horovod"]
    build = [*command, "build", "--gpu", *(["--force"] if force else [])]
    run(build, Path(), quiet=False, **own)
    facts = json.loads(output(python, "-c", FACTS) or "{}")
    if not facts or not str(facts["cuda"]).startswith(f"{cuda}."):
        raise Failed(f"it cannot be loaded, or is for another CUDA: {facts}")
    nccl = (facts["nccl"] // 10000, facts["nccl"] // 100 % 100, facts["nccl"] % 100)
    if nccl != tuple(facts["of_torch"]):
        raise Failed(f"NCCL {nccl} is built in, and PyTorch has {facts['of_torch']}")
    checked = subprocess.run(
        [*command, "check"], env=os.environ | own, stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT, text=True,
    )  # fmt: skip
    lines = [each.strip() for each in checked.stdout.splitlines() if " is right (" in each]
    if checked.returncode or not lines or "NCCL" not in lines[0]:
        raise Failed(checked.stdout)
    version = ".".join(map(str, nccl))
    return (
        f"PyTorch {facts['torch']} (CUDA {facts['cuda']}), Horovod with NCCL {version}; "
        f"{' '.join(lines[0].split())}; {size(place):.1f} GB in {place}"
    )


if __name__ == "__main__":
    sys.exit(main())
