"""Detection of frameworks, CUDA and build tools, and the messages when something is missing."""

from __future__ import annotations

import sys
import sysconfig
from pathlib import Path
from types import SimpleNamespace

import pytest

from rankroom.errors import HorovodBuildError
from rankroom.horovod_build import cuda, plan, toolchain
from rankroom.horovod_build.build_remedies import cause, explain
from rankroom.horovod_build.cuda import Gpu
from rankroom.horovod_build.toolchain import Framework

TORCH = Framework("torch", "2.13.0+cpu")
TORCH_CUDA = Framework("torch", "2.12.0+cu130", "13.0")
TENSORFLOW = Framework("tensorflow", "2.21.0")
TENSORFLOW_CUDA = Framework("tensorflow", "2.21.0", "12.5.1")
GPU = Gpu(Path("/cuda"), "13.0", Path("/nccl/include"), Path("/nccl/lib/libnccl.so.2"), "2.29.7")


def found(
    monkeypatch: pytest.MonkeyPatch, *frameworks: Framework, gpu: Gpu | str = GPU, here: bool = True
) -> None:
    """Fake a machine with these frameworks and, if `here`, a GPU; find_gpu returns `gpu`."""
    monkeypatch.setattr(plan, "find_frameworks", lambda: list(frameworks))
    monkeypatch.setattr(plan, "find_gpu", lambda version: gpu)
    monkeypatch.setattr(plan, "gpus_of_driver", lambda: int(here))


def test_gpus_are_used_when_framework_and_machine_have_them(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    found(monkeypatch, TORCH_CUDA)
    assert [part.gpu for part in plan.make_plan().parts] == [GPU]
    assert plan.make_plan().why == "this machine has one"
    assert not plan.make_plan(gpu=False).gpu
    assert plan.make_plan(gpu=False).names == "torch 2.12.0+cu130 (CPU only)"
    # With a CPU-only framework, a Horovod with GPU operations does not load.
    found(monkeypatch, TORCH_CUDA, TENSORFLOW)
    both = plan.make_plan()
    assert [part.gpu for part in both.parts] == [GPU, None]
    assert both.names == "torch 2.12.0+cu130 (CUDA 13.0, NCCL 2.29.7), tensorflow 2.21.0"
    found(monkeypatch, TORCH)
    assert not plan.make_plan().gpu
    assert plan.make_plan().why == "torch 2.13.0+cpu cannot use GPUs"


def test_without_a_gpu_nothing_is_built_for_one_unless_asked(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    found(monkeypatch, TORCH_CUDA, here=False)
    assert not plan.make_plan().gpu
    assert plan.make_plan().why == "this machine has no GPU; --gpu builds for one anyway"
    assert plan.make_plan(gpu=True).gpu
    assert plan.make_plan(gpu=True).why == "as --gpu asks"


def test_requested_gpus_that_cannot_be_used_are_an_error(monkeypatch: pytest.MonkeyPatch) -> None:
    found(monkeypatch, TORCH)
    with pytest.raises(HorovodBuildError, match=r"torch 2.13.0\+cpu is built without CUDA"):
        plan.make_plan(gpu=True)
    found(monkeypatch, TORCH_CUDA, gpu=cuda.NO_NCCL)
    for asked in (True, None):
        with pytest.raises(HorovodBuildError, match=r"no NCCL.*NCCL_HOME.*--no-gpu"):
            plan.make_plan(gpu=asked)


def test_a_pytorch_for_amd_gpus_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    rocm = Framework("torch", "2.12.0+rocm6.4", rocm=True)
    assert repr(rocm) == repr(Framework("torch", "2.12.0+rocm6.4")), "a part of keys"
    found(monkeypatch, rocm, here=False)
    for asked in (True, None):
        with pytest.raises(HorovodBuildError, match=r"torch 2.12.0\+rocm6.4 .*AMD.*NVIDIA's only"):
            plan.make_plan(gpu=asked)
    assert plan.make_plan(gpu=False).why == "as --no-gpu asks"


def test_torch_is_built_for_gpus_even_if_tensorflow_cannot_be(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    found(monkeypatch, TORCH_CUDA, TENSORFLOW_CUDA)
    monkeypatch.setattr(
        plan, "find_gpu", lambda version: GPU if version == "13.0" else "no compiler"
    )
    both = plan.make_plan()
    assert [part.gpu for part in both.parts] == [GPU, None]
    assert both.why == "this machine has one; tensorflow for the CPU: no compiler"


def package(monkeypatch: pytest.MonkeyPatch, folder: Path, name: str, file: str, text: str) -> None:
    (folder / name / file).parent.mkdir(parents=True, exist_ok=True)
    (folder / name / "__init__.py").write_text("raise RuntimeError('imported')")
    (folder / name / file).write_text(text)
    monkeypatch.syspath_prepend(str(folder))
    # An earlier test may have imported the real package.
    monkeypatch.delitem(sys.modules, name, raising=False)


def test_frameworks_are_found_without_importing_them(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    text = "__version__ = '2.12.0+cu130'\ndebug = False\ncuda: Optional[str] = '13.0'\n"
    package(monkeypatch, tmp_path, "torch", "version.py", text)
    text = "build_info = OrderedDict([('is_cuda_build', True), ('cuda_version', '12.5.1')])"
    package(monkeypatch, tmp_path, "tensorflow", "python/platform/build_info.py", text)
    versions = {"torch": "2.12.0", "tensorflow-cpu": "2.21.0"}
    monkeypatch.setattr(toolchain, "_version", versions.get)
    assert toolchain.find_frameworks() == [
        Framework("torch", "2.12.0+cu130", "13.0"),
        Framework("tensorflow", "2.21.0", "12.5.1"),
    ]
    text = "cuda: Optional[str] = None\nhip: Optional[str] = None\n"
    package(monkeypatch, tmp_path, "torch", "version.py", text)
    assert toolchain.find_frameworks()[0] == Framework("torch", "2.12.0")
    text = text.replace("hip: Optional[str] = None", "hip: Optional[str] = '6.4.43484'")
    package(monkeypatch, tmp_path, "torch", "version.py", text)
    assert toolchain.find_frameworks()[0] == Framework("torch", "2.12.0", rocm=True)


def test_a_missing_framework_is_reported(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(toolchain, "_package", lambda name: None)
    with pytest.raises(
        HorovodBuildError, match=r"neither PyTorch nor TensorFlow.*pip install torch"
    ):
        toolchain.find_frameworks()


def test_cuda_and_nccl_are_found(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    for name in ("HOROVOD_CUDA_HOME", "CUDA_PATH", "HOROVOD_NCCL_HOME", "NCCL_HOME", "NCCL_ROOT"):
        monkeypatch.delenv(name, raising=False)
    nvcc = executable(tmp_path / "cuda/bin/nvcc", "echo 'Cuda tools, release 12.8, V12.8.93'")
    monkeypatch.setenv("CUDA_HOME", str(nvcc.parents[1]))
    nccl = tmp_path / "site/nvidia/nccl"
    (nccl / "include").mkdir(parents=True)
    header = "#define NCCL_MAJOR 2\n#define NCCL_MINOR 29\n#define NCCL_PATCH 7\n"
    (nccl / "include/nccl.h").write_text(header)
    sysconfig.get_config_vars()  # cached by Python, which needs the real sys.path for it
    monkeypatch.setattr(sys, "path", [str(tmp_path / "site")])
    if not Path("/usr/include/nccl.h").exists():
        assert cuda.find_gpu("12.9") == cuda.NO_NCCL
    (nccl / "lib").mkdir()
    (nccl / "lib/libnccl.so.2").touch()
    gpu = cuda.find_gpu("12.9")
    assert gpu == Gpu(
        tmp_path / "cuda", "12.8", nccl / "include", nccl / "lib/libnccl.so.2", "2.29.7"
    )


def test_a_toolkit_of_another_major_version_is_passed_over(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    for name in ("HOROVOD_CUDA_HOME", "CUDA_PATH"):
        monkeypatch.delenv(name, raising=False)
    nvcc = executable(tmp_path / "cuda/bin/nvcc", "echo 'Cuda tools, release 11.8, V11.8.89'")
    nccl = tmp_path / "nccl"
    for file in ("include/nccl.h", "lib/libnccl.so.2"):
        (nccl / file).parent.mkdir(parents=True)
        (nccl / file).touch()
    monkeypatch.setenv("NCCL_HOME", str(nccl))
    monkeypatch.setenv("CUDA_HOME", str(nvcc.parents[1]))
    monkeypatch.setenv("PATH", str(tmp_path))
    found = cuda.find_gpu("9.2")
    assert isinstance(found, str) and "install CUDA toolkit 9 and set CUDA_HOME" in found
    newer = cuda.find_gpu("99.1")
    assert isinstance(newer, Gpu) and newer.cuda_home is None and newer.cuda_version == "99.1"
    # HOROVOD_CUDA_HOME is used whatever its version.
    monkeypatch.setenv("HOROVOD_CUDA_HOME", str(nvcc.parents[1]))
    chosen = cuda.find_gpu("9.2")
    assert isinstance(chosen, Gpu) and chosen.cuda_version == "11.8"


# -- preflight


def executable(path: Path, script: str) -> Path:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(f"#!/bin/sh\n{script}\n")
    path.chmod(0o755)
    return path


@pytest.fixture
def tools(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Path:
    """A PATH with exactly the tools that the build needs."""
    folder = tmp_path / "bin"
    executable(folder / "cmake", "echo 'cmake version 3.25.1'")
    for name in ("g++", "make"):
        executable(folder / name, "true")
    monkeypatch.setenv("PATH", str(folder))
    for name in ("CXX", "HOROVOD_CMAKE"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setattr(sys, "executable", str(tmp_path / "python" / "python"))
    return folder


def test_preflight_passes(tools: Path, tmp_path: Path) -> None:
    toolchain.preflight(tmp_path)


@pytest.mark.parametrize(
    ("missing", "message"),
    [
        ("g++", r"no C\+\+ compiler: install g\+\+ \(Debian: `apt install g\+\+`\)"),
        ("make", "no make: install it"),
        ("cmake", "no CMake 3.13 or newer: `pip install 'cmake<4'`"),
    ],
)
def test_preflight_names_the_missing_tool(
    tools: Path, tmp_path: Path, missing: str, message: str
) -> None:
    (tools / missing).unlink()
    with pytest.raises(HorovodBuildError, match=message):
        toolchain.preflight(tmp_path)


def test_a_compiler_may_be_several_words(tools: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("CXX", "ccache g++")
    assert toolchain.find_compiler() == "g++", "there is no ccache"
    executable(tools / "ccache", "true")
    assert toolchain.find_compiler() == "ccache g++"


def test_preflight_refuses_paths_that_cmake_cannot_handle(
    tools: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with pytest.raises(HorovodBuildError, match=r"cannot be compiled in .*a b.*TMPDIR"):
        toolchain.preflight(tmp_path / "a b")
    monkeypatch.setattr(sys, "prefix", "/home/me/my env")
    with pytest.raises(HorovodBuildError, match=r"path contains a space \(/home/me/my env\)"):
        toolchain.preflight(tmp_path)


def test_an_old_cmake_is_passed_over_for_the_environments_own(tools: Path, tmp_path: Path) -> None:
    executable(tools / "cmake", "echo 'cmake version 3.10.2'")
    with pytest.raises(HorovodBuildError, match="no CMake"):
        toolchain.find_cmake()
    own = executable(tmp_path / "python" / "cmake", "echo 'cmake version 4.1.0'")
    assert toolchain.find_cmake() == own


def test_preflight_names_missing_packages_headers_and_disk_space(
    tools: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with monkeypatch.context() as patch:
        real = toolchain.importlib.util.find_spec
        fake = lambda name: None if name in ("yaml", "cffi") else real(name)  # noqa: E731
        patch.setattr(toolchain.importlib.util, "find_spec", fake)
        with pytest.raises(HorovodBuildError, match="pip install pyyaml cffi`"):
            toolchain.preflight(tmp_path)
        patch.setenv("PATH", "/nowhere")
        with pytest.raises(HorovodBuildError, match="pip install pyyaml cffi 'cmake<4'`"):
            toolchain.preflight(tmp_path)
    with monkeypatch.context() as patch:
        patch.setattr(toolchain.sysconfig, "get_path", lambda name: str(tmp_path))
        with pytest.raises(HorovodBuildError, match=r"no Python.h in .*apt install python3.*-dev"):
            toolchain.preflight(tmp_path)
    usage = SimpleNamespace(free=200_000_000)
    monkeypatch.setattr(toolchain.shutil, "disk_usage", lambda place: usage)
    with pytest.raises(HorovodBuildError, match=r"has 0.2 GB left.*RANKROOM_CACHE"):
        toolchain.preflight(tmp_path)


@pytest.mark.parametrize(
    ("printed", "remedy"),
    [
        (
            "ATen.h:5:2: error: #error C++20 or later compatible compiler is required to use ATen.",
            "upgrade Rankroom",
        ),
        ("g++: error: unrecognized command-line option '-std=gnu++20'", "g++ 10 or newer"),
        ("fatal error: Python.h: No such file or directory", "python3-dev"),
        ("c++: fatal error: Killed signal terminated program cc1plus", "--jobs 1"),
        ("write failed: No space left on device", "RANKROOM_CACHE"),
        ("No CMAKE_CXX_COMPILER could be found.", "install g++"),
        ("Compatibility with CMake < 3.5 has been removed", "cmake<4"),
        ("Could NOT find NCCL (missing: NCCL_LIBRARY)", "--no-gpu"),
        ("Could NOT find CUDAToolkit (missing: CUDA_CUDART)", "CUDA_HOME"),
        ("error: something else", "report it"),
    ],
)
def test_failures_are_explained(printed: str, remedy: str) -> None:
    assert remedy in explain(f"[ 3%] Building\n{printed}\nmake: *** [all] Error 2\n")


CMAKE = """\
-- Looking
CMake Error at /usr/share/cmake/Modules/FindPackageHandleStandardArgs.cmake:230 (message):
  Could NOT find CUDAToolkit (missing: CUDAToolkit_INCLUDE_DIR CUDA_CUDART)
  (found version "13.0.88")
Call Stack (most recent call first):
  CMakeLists.txt:171 (find_package)

subprocess.CalledProcessError: Command '['cmake']' returned non-zero exit status 1.
"""
GCC = """\
[  5%] Building CXX object common.cc.o
In file included from /src/a.h:1:
/src/b.h:7:10: fatal error: Python.h: No such file or directory
compilation terminated.
make[2]: *** [common.cc.o] Error 1
error: subprocess-exited-with-error
"""


@pytest.mark.parametrize(
    ("printed", "why"),
    [
        (
            CMAKE,
            "Could NOT find CUDAToolkit (missing: CUDAToolkit_INCLUDE_DIR CUDA_CUDART) "
            '(found version "13.0.88")',
        ),
        (GCC, "/src/b.h:7:10: fatal error: Python.h: No such file or directory"),
        ("Traceback:\n  x\nOSError: [Errno 28] No space\n", "OSError: [Errno 28] No space"),
        ("nothing of the kind\n", ""),
    ],
)
def test_the_cause_is_the_first_error_that_was_printed(printed: str, why: str) -> None:
    assert cause(printed) == why
