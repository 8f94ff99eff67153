"""CUDA and NCCL for a build that uses GPUs: this machine's own, or NVIDIA's compiler from pip."""

from __future__ import annotations

import os
import re
import shutil
import sys
import sysconfig
from dataclasses import dataclass, replace
from pathlib import Path

from rankroom.errors import HorovodBuildError
from rankroom.horovod_build.cache import keep_folder, scratch
from rankroom.horovod_build.source import PIP
from rankroom.system.commands import run_sync

FETCH_TIMEOUT_S = 1800
DEFAULT_CUDA_HOME = "/usr/local/cuda"
# From this CUDA on, the package index has the whole compiler; of older ones, only parts.
OLDEST_FETCHED_CUDA = 13
COMPILER_PACKAGES = (
    "nvidia-cuda-nvcc",
    "nvidia-cuda-crt",
    "nvidia-cuda-cccl",
    "nvidia-cuda-runtime",
    "nvidia-nvvm",
)


@dataclass(frozen=True)
class Gpu:
    """A CUDA compiler and an NCCL to build with; the compiler is fetched if `cuda_home` is None."""

    cuda_home: Path | None
    cuda_version: str
    nccl_include: Path
    nccl_library: Path
    nccl_version: str


def find_gpu(cuda: str) -> Gpu | str:
    """Return what to build with for a framework made with CUDA `cuda` ("13.0"), or what is missing.

    A compiler of another major version is ignored: its headers do not fit the framework's.
    """
    home, version = _toolkit(_major(cuda))
    if home is None and _major(cuda) < OLDEST_FETCHED_CUDA:
        return NO_NVCC.format(cuda=cuda, major=_major(cuda), fetched=OLDEST_FETCHED_CUDA)
    nccl = _nccl(home)
    if nccl is None:
        return NO_NCCL
    include, library = nccl
    header = _read(include / "nccl.h")
    parts = [
        re.search(rf"#define NCCL_{part} +(\d+)", header) for part in ("MAJOR", "MINOR", "PATCH")
    ]
    nccl_version = ".".join(part[1] for part in parts if part) or "unknown"
    return Gpu(home, version or cuda, include, library, nccl_version)


def with_compiler(gpu: Gpu, folder: Path) -> Gpu:
    """Return `gpu` with a compiler, fetched into `folder` if the machine has none.

    Raises HorovodBuildError if pip cannot fetch it.
    """
    if gpu.cuda_home:
        return gpu
    home = folder / f"cuda-{gpu.cuda_version}"
    if not (home / "bin" / "nvcc").is_file():
        with scratch(folder) as place:
            wanted = [f"{name}=={gpu.cuda_version}.*" for name in COMPILER_PACKAGES]
            command = [*PIP, "install", "--no-deps", f"--target={place}", *wanted]
            done = run_sync(command, timeout=FETCH_TIMEOUT_S)
            made = place / "nvidia" / f"cu{_major(gpu.cuda_version)}"
            if not done.ok or not (made / "bin" / "nvcc").is_file():
                raise HorovodBuildError(
                    NOT_FETCHED.format(cuda=gpu.cuda_version, tail=done.tail(10))
                )
            # The wheels lack the names that CMake and the linker look for.
            (made / "lib64").symlink_to("lib")
            for library in made.glob("lib/libcudart.so.*"):
                (made / "lib" / "libcudart.so").symlink_to(library.name)
            keep_folder(made, home)
    return replace(gpu, cuda_home=home)


def _toolkit(major: int) -> tuple[Path | None, str]:
    """Return the machine's CUDA toolkit of this major version, and its exact version."""
    chosen = os.environ.get("HOROVOD_CUDA_HOME")
    on_path = shutil.which("nvcc")
    homes = [chosen, os.environ.get("CUDA_HOME"), os.environ.get("CUDA_PATH"), DEFAULT_CUDA_HOME]
    homes += [str(Path(on_path).resolve().parent.parent) if on_path else None]
    for home in filter(None, homes):
        if Path(home, "bin", "nvcc").is_file():
            output = run_sync([Path(home, "bin", "nvcc"), "--version"], timeout=60).output
            release = re.search(r"release (\d+\.\d+)", output)
            # A toolkit that was chosen for Horovod is used as it is.
            if home == chosen or (release and _major(release[1]) == major):
                return Path(home), release[1] if release else "unknown"
    return None, ""


def _nccl(cuda_home: Path | None) -> tuple[Path, Path] | None:
    """Return NCCL's header directory and library file: the user's, PyTorch's or the system's."""
    pip = [Path(entry, "nvidia", "nccl") for entry in sys.path if entry]
    homes = [os.environ.get(name) for name in ("HOROVOD_NCCL_HOME", "NCCL_HOME", "NCCL_ROOT")]
    roots = [Path(home) for home in filter(None, homes)] + pip
    roots += [cuda_home] if cuda_home else []
    roots += [Path("/usr")]
    triplet = sysconfig.get_config_var("MULTIARCH") or "x86_64-linux-gnu"
    for root in roots:
        if not (root / "include" / "nccl.h").is_file():
            continue
        for folder in ("lib", "lib64", f"lib/{triplet}"):
            for name in ("libnccl.so.2", "libnccl.so"):
                if (root / folder / name).exists():
                    return root / "include", root / folder / name
    return None


def _major(version: str) -> int:
    return int(version.partition(".")[0])


def _read(path: Path) -> str:
    return path.read_text("utf-8", "replace") if path.is_file() else ""


NO_NVCC = (
    "no compiler for CUDA {cuda}, which the framework was built with: install CUDA toolkit {major} "
    "and set CUDA_HOME to it, or install a framework built for CUDA {fetched} or newer, whose "
    "compiler pip can fetch"
)
NO_NCCL = "no NCCL: install libnccl-dev or PyTorch's nvidia-nccl package, or set NCCL_HOME"
NOT_FETCHED = (
    "pip could not fetch the compiler for CUDA {cuda}: install the CUDA toolkit and set CUDA_HOME "
    "to it, or build for the CPU (`--no-gpu`). pip's last lines:\n{tail}"
)
