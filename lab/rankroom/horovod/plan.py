"""What will be built here, the key it is cached under, and the environment that asks for it."""

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
from rankroom.horovod.edits import VERSION, digest
from rankroom.horovod.native_edits import NATIVE
from rankroom.horovod.python_edits import PYTHON_EDITS
from rankroom.horovod.toolchain import Framework, Gpu, find_frameworks, find_gpu

SWITCHES = {"torch": "PYTORCH", "tensorflow": "TENSORFLOW", "mxnet": "MXNET"}
ALL_EDITS = NATIVE + PYTHON_EDITS
# What a user may say about the processors to build for; part of the key.
TUNING = ("HOROVOD_BUILD_ARCH_FLAGS", "HOROVOD_BUILD_CUDA_CC_LIST")


@dataclass(frozen=True)
class Part:
    """One framework's library: compiled, and cached, by itself."""

    framework: Framework
    gpu: Gpu | None

    @property
    def key(self) -> str:
        """Readable first, exact by its last part."""
        exact = [
            VERSION,
            str(sysconfig.get_config_var("EXT_SUFFIX")),
            platform.machine(),
            "-".join(platform.libc_ver()),
            repr(self.framework),
            f"{self.gpu.cuda_version} {self.gpu.nccl_version}" if self.gpu else "",
            *(os.environ.get(name, "") for name in TUNING),
            digest(NATIVE),
        ]
        names = [_tag(), f"{self.framework.name}{self.framework.version}"]
        names += [f"cuda{self.gpu.cuda_version}"] if self.gpu else []
        return "-".join([VERSION, *names, _short(exact)])


@dataclass(frozen=True)
class Plan:
    """Everything a wheel depends on. The frameworks that have CUDA are built with `gpu`."""

    frameworks: Sequence[Framework]
    gpu: Gpu | None

    @property
    def parts(self) -> list[Part]:
        return [Part(each, self.gpu if each.cuda else None) for each in self.frameworks]

    @property
    def native_key(self) -> str:
        """Names what is compiled."""
        names = [f"{framework.name}{framework.version}" for framework in self.frameworks]
        names += [f"cuda{self.gpu.cuda_version}"] if self.gpu else []
        return "-".join([VERSION, _tag(), *names, _short([part.key for part in self.parts])])

    @property
    def key(self) -> str:
        return f"{self.native_key}.{digest(PYTHON_EDITS)}"

    @property
    def names(self) -> str:
        """What Horovod is built for, for the user."""
        return ", ".join(map(_name, self.parts))


def make_plan(gpu: bool | None = None) -> Plan:
    """What to build here; `gpu` None means: if a framework and the machine have CUDA.

    Raises HorovodBuildError without a framework, or when `gpu` is asked in vain.
    """
    frameworks = find_frameworks()
    if gpu is False:
        return Plan(frameworks, None)
    if not any(framework.cuda for framework in frameworks):
        if gpu:
            names = " and ".join(f"{each.name} {each.version}" for each in frameworks)
            raise HorovodBuildError(CPU_FRAMEWORKS.format(names=names))
        return Plan(frameworks, None)
    found = find_gpu()
    if isinstance(found, Gpu):
        return Plan(frameworks, found)
    if gpu:
        raise HorovodBuildError(NO_GPU.format(reason=found))
    return Plan(frameworks, None)


def build_environment(
    part: Part, *, cmake: Path, compiler: str, jobs: int, nccl_folder: Path | None = None
) -> dict[str, str]:
    """The variables Horovod's own build reads, and nothing else.

    `nccl_folder` holds the library under the name the linker looks for.
    """
    env = {
        "HOROVOD_LOCAL_VERSION": "rankroom",
        **{
            f"HOROVOD_{'WITH' if part.framework.name == name else 'WITHOUT'}_{switch}": "1"
            for name, switch in SWITCHES.items()
        },
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
    if part.gpu:
        library = nccl_folder or part.gpu.nccl_library.parent
        env |= {
            "HOROVOD_GPU_OPERATIONS": "NCCL",
            "HOROVOD_GPU": "CUDA",
            "HOROVOD_CUDA_HOME": str(part.gpu.cuda_home),
            "CUDA_HOME": str(part.gpu.cuda_home),
            "HOROVOD_NCCL_INCLUDE": str(part.gpu.nccl_include),
            "HOROVOD_NCCL_LIB": str(library),
            "HOROVOD_NCCL_LINK": "SHARED",
            "LDFLAGS": f"{env['LDFLAGS']} -Wl,-rpath,{part.gpu.nccl_library.parent}",
        }
    return env


def clean_environment(base: Mapping[str, str]) -> dict[str, str]:
    """`base` without what would change the build behind the cache key's back."""
    return {
        name: value
        for name, value in base.items()
        if name in TUNING or not name.startswith(("HOROVOD_", "MAKEFLAGS"))
    }


def _tag() -> str:
    return f"cp{sys.version_info[0]}{sys.version_info[1]}"


def _short(texts: Iterable[str]) -> str:
    return hashlib.sha256("\0".join(texts).encode()).hexdigest()[:10]


def _name(part: Part) -> str:
    name = f"{part.framework.name} {part.framework.version}"
    if part.gpu:
        return f"{name} (CUDA {part.gpu.cuda_version}, NCCL {part.gpu.nccl_version})"
    return f"{name} (no NCCL)" if part.framework.cuda else name


CPU_FRAMEWORKS = (
    "--gpu: {names} is built without CUDA, and Horovod must match: install a CUDA build of it, or "
    "leave --gpu out"
)
NO_GPU = "--gpu: {reason}; or build without GPUs (`--no-gpu`)"
