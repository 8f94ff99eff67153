"""What will be built here, the key it is cached under, and the environment that asks for it."""

from __future__ import annotations

import hashlib
import os
import platform
import sys
import sysconfig
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from rankroom.errors import HorovodBuildError
from rankroom.horovod.edits import VERSION, digest
from rankroom.horovod.native_edits import NATIVE
from rankroom.horovod.python_edits import PYTHON_EDITS
from rankroom.horovod.toolchain import Framework, Gpu, find_frameworks, find_gpu

ALL_EDITS = NATIVE + PYTHON_EDITS
# What a user may say about the processors to build for; part of the key.
TUNING = ("HOROVOD_BUILD_ARCH_FLAGS", "HOROVOD_BUILD_CUDA_CC_LIST")


@dataclass(frozen=True)
class Plan:
    """Everything a wheel depends on."""

    frameworks: Sequence[Framework]
    gpu: Gpu | None

    @property
    def native_key(self) -> str:
        """Names what is compiled; readable first, exact by its last part."""
        tag = f"cp{sys.version_info[0]}{sys.version_info[1]}"
        names = [f"{framework.name}{framework.version}" for framework in self.frameworks]
        names += [f"cuda{self.gpu.cuda_version}"] if self.gpu else []
        exact = [
            VERSION,
            str(sysconfig.get_config_var("EXT_SUFFIX")),
            platform.machine(),
            "-".join(platform.libc_ver()),
            *(repr(framework) for framework in self.frameworks),
            f"{self.gpu.cuda_version} {self.gpu.nccl_version}" if self.gpu else "",
            *(os.environ.get(name, "") for name in TUNING),
            digest(NATIVE),
        ]
        sha = hashlib.sha256("\0".join(exact).encode()).hexdigest()[:10]
        return "-".join([VERSION, tag, *names, sha])

    @property
    def key(self) -> str:
        return f"{self.native_key}.{digest(PYTHON_EDITS)}"

    @property
    def names(self) -> str:
        """What Horovod is built for, for the user."""
        names = [f"{framework.name} {framework.version}" for framework in self.frameworks]
        if self.gpu:
            names.append(f"CUDA {self.gpu.cuda_version} with NCCL {self.gpu.nccl_version}")
        return ", ".join(names)


def make_plan(gpu: bool | None = None) -> Plan:
    """What to build here; `gpu` None means: if the framework and the machine have CUDA.

    With both frameworks, PyTorch decides: Horovod refuses GPU operations beside a PyTorch that
    has none. Raises HorovodBuildError without a framework, or when `gpu` is asked in vain.
    """
    frameworks = find_frameworks()
    if gpu is False:
        return Plan(frameworks, None)
    leading = frameworks[0]
    if not leading.cuda:
        if gpu:
            raise HorovodBuildError(CPU_FRAMEWORK.format(framework=leading))
        return Plan(frameworks, None)
    found = find_gpu()
    if isinstance(found, Gpu):
        return Plan(frameworks, found)
    if gpu:
        raise HorovodBuildError(NO_GPU.format(reason=found))
    return Plan(frameworks, None)


def build_environment(
    plan: Plan, *, cmake: Path, compiler: str, jobs: int, nccl_folder: Path | None = None
) -> dict[str, str]:
    """The variables Horovod's own build reads, and nothing else.

    `nccl_folder` holds the library under the name the linker looks for.
    """
    built = {framework.name for framework in plan.frameworks}
    env = {
        "HOROVOD_LOCAL_VERSION": "rankroom",
        "HOROVOD_WITH_PYTORCH" if "torch" in built else "HOROVOD_WITHOUT_PYTORCH": "1",
        "HOROVOD_WITH_TENSORFLOW" if "tensorflow" in built else "HOROVOD_WITHOUT_TENSORFLOW": "1",
        "HOROVOD_WITHOUT_MXNET": "1",
        "HOROVOD_WITHOUT_MPI": "1",
        "HOROVOD_WITH_GLOO": "1",
        "HOROVOD_CPU_OPERATIONS": "GLOO",
        "HOROVOD_CMAKE": str(cmake),
        "CXX": compiler,
        "MAKEFLAGS": f"-j{jobs}",
        "CMAKE_BUILD_PARALLEL_LEVEL": str(jobs),
        # Debug information is four fifths of the libraries and helps nobody here.
        "LDFLAGS": f"{os.environ.get('LDFLAGS', '')} -Wl,--strip-debug".strip(),
    }
    if plan.gpu:
        library = nccl_folder or plan.gpu.nccl_library.parent
        env |= {
            "HOROVOD_GPU_OPERATIONS": "NCCL",
            "HOROVOD_GPU": "CUDA",
            "HOROVOD_CUDA_HOME": str(plan.gpu.cuda_home),
            "CUDA_HOME": str(plan.gpu.cuda_home),
            "HOROVOD_NCCL_INCLUDE": str(plan.gpu.nccl_include),
            "HOROVOD_NCCL_LIB": str(library),
            "HOROVOD_NCCL_LINK": "SHARED",
            "LDFLAGS": f"{env['LDFLAGS']} -Wl,-rpath,{plan.gpu.nccl_library.parent}",
        }
    return env


def clean_environment(base: Mapping[str, str]) -> dict[str, str]:
    """`base` without what would change the build behind the cache key's back."""
    return {
        name: value
        for name, value in base.items()
        if name in TUNING or not name.startswith(("HOROVOD_", "MAKEFLAGS"))
    }


CPU_FRAMEWORK = (
    "--gpu: {framework.name} {framework.version} is built without CUDA, and Horovod must match: "
    "install a CUDA build of it, or leave --gpu out"
)
NO_GPU = "--gpu: {reason}; or build without GPUs (`--no-gpu`)"
