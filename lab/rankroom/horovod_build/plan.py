"""What to build here, the key it is cached under, and the environment variables for the build."""

from __future__ import annotations

import hashlib
import os
import platform
import sys
import sysconfig
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from rankroom.errors import HorovodBuildError
from rankroom.horovod_build.cuda import Gpu, find_gpu
from rankroom.horovod_build.edits.edit import VERSION, Change, digest
from rankroom.horovod_build.edits.native_edits import NATIVE_EDITS
from rankroom.horovod_build.edits.python_edits import PYTHON_EDITS
from rankroom.horovod_build.toolchain import Framework, find_frameworks
from rankroom.system.gpus import gpus_of_driver

SWITCH_BY_FRAMEWORK = {"torch": "PYTORCH", "tensorflow": "TENSORFLOW", "mxnet": "MXNET"}
ALL_EDITS = NATIVE_EDITS + PYTHON_EDITS
# The variables by which users choose the processors to build for; part of the key.
TUNING_VARIABLES = ("HOROVOD_BUILD_ARCH_FLAGS", "HOROVOD_BUILD_CUDA_CC_LIST")
# Other variables that CMake, make and Horovod's CMake files (for oneCCL) read.
STRIPPED_VARIABLES = (
    "CCL_ROOT",
    "CCL_CONFIGURATION",
    "CMAKE_GENERATOR",
    "CMAKE_BUILD_TYPE",
    "GNUMAKEFLAGS",
    "MFLAGS",
)


@dataclass(frozen=True)
class Part:
    """The libraries that are compiled and cached together: what they share is compiled once."""

    frameworks: tuple[Framework, ...]
    gpu: Gpu | None
    edits: tuple[Change, ...] = NATIVE_EDITS

    @property
    def name(self) -> str:
        return " and ".join(framework.name for framework in self.frameworks)

    @property
    def key(self) -> str:
        """The key in the cache: readable at first, exact by its last part."""
        exact = [
            VERSION,
            str(sysconfig.get_config_var("EXT_SUFFIX")),
            platform.machine(),
            "-".join(platform.libc_ver()),
            repr(self.frameworks),
            _gpu_key(self.gpu) if self.gpu else "",
            *(os.environ.get(name, "") for name in TUNING_VARIABLES),
            digest(self.edits),
        ]
        names = [_tag(), *_versions(self.frameworks)]
        names += [f"cuda{self.gpu.cuda_version}"] if self.gpu else []
        return "-".join([VERSION, *names, _short(exact)])


@dataclass(frozen=True)
class Plan:
    """Everything that a wheel depends on; `why` says why it is for GPUs, or not."""

    parts: Sequence[Part]
    why: str = ""

    @property
    def native_key(self) -> str:
        """The key of what is compiled."""
        names = [name for part in self.parts for name in _versions(part.frameworks)]
        names += [f"cuda{part.gpu.cuda_version}" for part in self.parts if part.gpu][:1]
        return "-".join([VERSION, _tag(), *names, _short([part.key for part in self.parts])])

    @property
    def key(self) -> str:
        return f"{self.native_key}.{digest(PYTHON_EDITS)}"

    @property
    def gpu(self) -> bool:
        """Whether any part is built for GPUs."""
        return any(part.gpu for part in self.parts)

    @property
    def names(self) -> str:
        """The frameworks that Horovod is built for, in users' words."""
        named = [_name(each, part.gpu) for part in self.parts for each in part.frameworks]
        return ", ".join(named)


def make_plan(gpu: bool | None = None) -> Plan:
    """Return what to build here; `gpu` None means: for a GPU if this machine has one.

    Raises HorovodBuildError without a framework, if `gpu` is set but no framework can use GPUs, for
    a PyTorch for AMD's GPUs, and if Horovod cannot be built for a GPU that PyTorch, or the only
    framework, can use: a Horovod for the CPU would refuse PyTorch's tensors there. TensorFlow's are
    copied to the CPU, which is only slower.
    """
    frameworks = find_frameworks()
    cpu_only = [Part(tuple(frameworks), None)]
    if gpu is False:
        return Plan(cpu_only, "as --no-gpu asks")
    for framework in frameworks:
        if framework.rocm:
            name = f"{framework.name} {framework.version}"
            raise HorovodBuildError(AMD.format(name=name))
    if not any(framework.cuda for framework in frameworks):
        names = " and ".join(f"{each.name} {each.version}" for each in frameworks)
        if gpu:
            raise HorovodBuildError(CPU_FRAMEWORKS.format(names=names))
        return Plan(cpu_only, f"{names} cannot use GPUs")
    if not gpu and not gpus_of_driver():
        return Plan(cpu_only, "this machine has no GPU; --gpu builds for one anyway")
    gpus: dict[Gpu | None, list[Framework]] = {}
    lacks = []
    for framework in frameworks:
        found = find_gpu(framework.cuda) if framework.cuda else None
        if isinstance(found, str):
            if framework.name == "torch" or len(frameworks) == 1:
                raise HorovodBuildError(NO_GPU.format(reason=found))
            lacks.append(f"; {framework.name} for the CPU: {found}")
        gpus.setdefault(found if isinstance(found, Gpu) else None, []).append(framework)
    parts = [Part(tuple(each), gpu_of) for gpu_of, each in gpus.items()]
    why = "as --gpu asks" if gpu else "this machine has one"
    return Plan(parts, why + "".join(lacks))


def build_environment(
    part: Part, *, cmake: Path, compiler: str, jobs: int, nccl_folder: Path | None = None
) -> dict[str, str]:
    """Return the variables that Horovod's own build reads, and no others.

    `nccl_folder` holds the library under the name that the linker looks for.
    """
    wanted = {framework.name for framework in part.frameworks}
    env = {
        "HOROVOD_LOCAL_VERSION": "rankroom",
        **{
            f"HOROVOD_{'WITH' if name in wanted else 'WITHOUT'}_{switch}": "1"
            for name, switch in SWITCH_BY_FRAMEWORK.items()
        },
        "HOROVOD_WITHOUT_MPI": "1",
        "HOROVOD_WITH_GLOO": "1",
        "HOROVOD_CPU_OPERATIONS": "GLOO",
        "HOROVOD_CMAKE": str(cmake),
        "CXX": compiler,
        "MAKEFLAGS": f"-j{jobs}",
        "CMAKE_BUILD_PARALLEL_LEVEL": str(jobs),
    }
    if part.gpu:
        library = nccl_folder or part.gpu.nccl_library.parent
        home = str(part.gpu.cuda_home)
        env |= {
            "HOROVOD_GPU_OPERATIONS": "NCCL",
            "HOROVOD_GPU": "CUDA",
            "HOROVOD_CUDA_HOME": home,
            "CUDA_HOME": home,
            "HOROVOD_NCCL_INCLUDE": str(part.gpu.nccl_include),
            "HOROVOD_NCCL_LIB": str(library),
            "HOROVOD_NCCL_LINK": "SHARED",
            "LDFLAGS": f"{os.environ.get('LDFLAGS', '')} -Wl,-rpath,{part.gpu.nccl_library.parent}",
        }
    else:
        # NVTX is for CUDA's own profilers, and would be looked for in CUDA's toolkit.
        env["HOROVOD_WITHOUT_NVTX"] = "1"
    return env


def clean_environment(base: Mapping[str, str]) -> dict[str, str]:
    """Return `base` without variables that would change the build but are not in the cache key."""
    return {
        name: value
        for name, value in base.items()
        if name in TUNING_VARIABLES
        or not (name in STRIPPED_VARIABLES or name.startswith(("HOROVOD_", "MAKEFLAGS")))
    }


def _tag() -> str:
    return f"cp{sys.version_info[0]}{sys.version_info[1]}"


def _gpu_key(gpu: Gpu) -> str:
    # Horovod looks for NCCL where it was at build time.
    return f"{gpu.cuda_version} {gpu.nccl_version} {gpu.nccl_library.parent}"


def _short(texts: Iterable[str]) -> str:
    return hashlib.sha256("\0".join(texts).encode()).hexdigest()[:10]


def _versions(frameworks: Iterable[Framework]) -> list[str]:
    return [f"{framework.name}{framework.version}" for framework in frameworks]


def _name(framework: Framework, gpu: Gpu | None) -> str:
    name = f"{framework.name} {framework.version}"
    if gpu:
        return f"{name} (CUDA {gpu.cuda_version}, NCCL {gpu.nccl_version})"
    return f"{name} (CPU only)" if framework.cuda else name


CPU_FRAMEWORKS = (
    "--gpu: {names} is built without CUDA, and Horovod must match: install a CUDA build of it, or "
    "leave --gpu out"
)
AMD = (
    "{name} is built for AMD's GPUs (ROCm), and Rankroom builds Horovod for NVIDIA's only: install "
    "a build of it for CUDA or for the CPU, or build for the CPU (`--no-gpu`) on a machine without "
    "ROCm's compiler"
)
NO_GPU = "Horovod cannot be built for GPUs here: {reason}; or build for the CPU (`--no-gpu`)"
