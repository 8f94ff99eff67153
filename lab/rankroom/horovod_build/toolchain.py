"""What this environment has for building Horovod, found without importing any framework."""

from __future__ import annotations

import importlib.util
import os
import re
import shlex
import shutil
import sys
import sysconfig
from dataclasses import dataclass, field
from importlib import metadata
from pathlib import Path

from rankroom.errors import HorovodBuildError
from rankroom.horovod_build.cache import can_compile_in
from rankroom.system.commands import run_sync

OLDEST_CMAKE = (3, 13)
RUNTIME = ("cloudpickle", "psutil", "yaml", "packaging", "cffi")
BUILDING = ("setuptools", "wheel")
DISTRIBUTIONS = {"yaml": "pyyaml"}
NEEDED_BYTES = 1_500_000_000
TENSORFLOWS = ("tensorflow", "tensorflow-cpu", "tensorflow-gpu", "tensorflow-rocm", "tf-nightly")


@dataclass(frozen=True)
class Framework:
    """PyTorch or TensorFlow as installed; `cuda` is the CUDA version it was built for, or None."""

    name: str
    version: str
    cuda: str | None = None
    rocm: bool = field(default=False, repr=False)  # nothing is built for it: not part of a key


def find_frameworks() -> list[Framework]:
    """Return the frameworks to build Horovod for. Raises HorovodBuildError if there are none."""
    found = []
    if torch := _package("torch"):
        version = _version("torch") or "unknown"
        text = _read(torch / "version.py")
        cuda = re.search(r"^cuda\b[^=]*= *'([\d.]+)'", text, re.M)
        # The file says 2.13.0+cpu where the distribution's metadata may say only 2.13.0.
        exact = re.search(r"^__version__ *= *'([^']+)'", text, re.M)
        rocm = re.search(r"^hip\b[^=]*= *'", text, re.M) is not None
        version = exact[1] if exact else version
        found.append(Framework("torch", version, cuda[1] if cuda else None, rocm))
    if tensorflow := _package("tensorflow"):
        version = next(filter(None, map(_version, TENSORFLOWS)), "unknown")
        text = _read(tensorflow / "python/platform/build_info.py")
        cuda = re.search(r"'cuda_version', *'([\d.]+)'", text)
        found.append(Framework("tensorflow", version, cuda[1] if cuda else None))
    if not found:
        raise HorovodBuildError(NO_FRAMEWORK.format(prefix=sys.prefix))
    return found


def find_cmake() -> Path:
    """Return the first cmake that can build Horovod: HOROVOD_CMAKE, PATH's, this environment's."""
    candidates = [
        os.environ.get("HOROVOD_CMAKE"),
        shutil.which("cmake"),
        shutil.which("cmake", path=str(Path(sys.executable).parent)),
    ]
    for candidate in filter(None, candidates):
        try:
            text = run_sync([candidate, "--version"], timeout=30).output
        except OSError:
            continue
        version = re.search(r"version (\d+)\.(\d+)", text)
        if version and (int(version[1]), int(version[2])) >= OLDEST_CMAKE:
            return Path(candidate)
    raise HorovodBuildError(NO_CMAKE)


def find_compiler() -> str:
    """Return the C++ compiler's command: CXX as it is, like `ccache g++`, or a usual one."""
    for candidate in (os.environ.get("CXX", ""), "g++", "c++", "clang++"):
        words = shlex.split(candidate)
        if words and shutil.which(words[0]):
            return candidate
    raise HorovodBuildError(NO_COMPILER)


def demand_pip() -> None:
    """Raise HorovodBuildError without pip, which builds and installs: uv does not bring it."""
    if not importlib.util.find_spec("pip"):
        raise HorovodBuildError(NO_PIP.format(prefix=sys.prefix, python=sys.executable))


def preflight(place: Path) -> None:
    """Raise at once, with the remedy, what would fail after minutes. `place` is for the build."""
    if re.search(r"\s", sys.prefix):
        raise HorovodBuildError(BLANK_IN_PREFIX.format(prefix=sys.prefix))
    if not can_compile_in(place):
        raise HorovodBuildError(BAD_PATH.format(place=place))
    missing = [name for name in (*BUILDING, *RUNTIME) if not importlib.util.find_spec(name)]
    if missing:
        names = [DISTRIBUTIONS.get(name, name) for name in missing]
        try:
            find_cmake()
        except HorovodBuildError:  # one command for all that pip can install
            names.append("'cmake<4'")
        raise HorovodBuildError(NO_PACKAGES.format(names=" ".join(names), python=sys.executable))
    find_compiler()
    find_cmake()
    if not shutil.which("make"):
        raise HorovodBuildError(NO_MAKE)
    include = sysconfig.get_path("include")
    if not Path(include, "Python.h").is_file():
        version = f"{sys.version_info[0]}.{sys.version_info[1]}"
        raise HorovodBuildError(NO_HEADERS.format(include=include, version=version))
    free = shutil.disk_usage(place).free
    if free < NEEDED_BYTES:
        raise HorovodBuildError(NO_SPACE.format(place=place, free=free / 1e9))


def _package(name: str) -> Path | None:
    spec = importlib.util.find_spec(name)
    return Path(spec.origin).parent if spec and spec.origin else None


def _version(distribution: str) -> str | None:
    try:
        return metadata.version(distribution)
    except metadata.PackageNotFoundError:
        return None


def _read(path: Path) -> str:
    return path.read_text("utf-8", "replace") if path.is_file() else ""


NO_FRAMEWORK = (
    "neither PyTorch nor TensorFlow is installed in {prefix}: install the one you use "
    "(`pip install torch` or `pip install tensorflow`), then build Horovod for it"
)
NO_COMPILER = "no C++ compiler: install g++ (Debian: `apt install g++`), or set CXX to yours"
NO_MAKE = "no make: install it (Debian: `apt install make`)"
NO_CMAKE = "no CMake 3.13 or newer: `pip install 'cmake<4'`, or set HOROVOD_CMAKE to yours"
NO_HEADERS = (
    "no Python.h in {include}: install Python's headers (Debian: `apt install python{version}-dev`)"
)
NO_PIP = (
    "no pip in {prefix}, which Horovod is built and installed with: `{python} -m ensurepip`, or "
    "`uv pip install --python {python} pip`"
)
BLANK_IN_PREFIX = (
    "Horovod cannot be built for an environment whose path contains a space ({prefix}): create one "
    "elsewhere"
)
BAD_PATH = (
    "Horovod cannot be compiled in {place}, as its path may contain only letters, digits, `/`, "
    "`.`, `_` and `-`: set RANKROOM_CACHE, or TMPDIR, to such a path"
)
NO_PACKAGES = "Horovod needs packages that are missing: `{python} -m pip install {names}`"
NO_SPACE = (
    "{place} has {free:.1f} GB left and the build needs 1.5: free some, or set RANKROOM_CACHE to "
    "another place"
)
