"""The Horovod build without compiling: environment, keys, cache, download and commands."""

from __future__ import annotations

import dataclasses
import fcntl
import json
import multiprocessing
import os
import signal
import subprocess
import sys
import time
import zipfile
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace

import pytest
from click.testing import CliRunner

from rankroom.cli.horovod_command import Progress, horovod
from rankroom.errors import HorovodBuildError
from rankroom.horovod_build import build, cache, cuda, plan, source, toolchain
from rankroom.horovod_build.cuda import Gpu
from rankroom.horovod_build.edits.edit import Edit
from rankroom.horovod_build.plan import Part, Plan, build_environment, clean_environment
from rankroom.horovod_build.toolchain import Framework
from rankroom.horovod_build.wheel import MARKER, finish
from rankroom.system import control_groups
from rankroom.system.polling import poll_until

TORCH = Framework("torch", "2.13.0+cpu")
TORCH_CUDA = Framework("torch", "2.12.0+cu130", "13.0")
TENSORFLOW = Framework("tensorflow", "2.21.0")
GPU = Gpu(Path("/cuda"), "13.0", Path("/nccl/include"), Path("/nccl/lib/libnccl.so.2"), "2.29.7")
ONLY_TORCH = Plan([Part((TORCH,), None)])


def rendered(framework: Framework, gpu: Gpu | None = None, **options: Path) -> dict[str, str]:
    return build_environment(
        Part((framework,), gpu), cmake=Path("/bin/cmake"), compiler="g++", jobs=3, **options
    )


# -- the build's environment


@pytest.mark.parametrize(
    ("framework", "name", "others"),
    [(TORCH, "PYTORCH", ["TENSORFLOW", "MXNET"]), (TENSORFLOW, "TENSORFLOW", ["PYTORCH", "MXNET"])],
)
def test_environment_names_one_framework_and_rules_the_others_out(
    framework: Framework, name: str, others: list[str]
) -> None:
    env = rendered(framework)
    assert env[f"HOROVOD_WITH_{name}"] == "1" and f"HOROVOD_WITHOUT_{name}" not in env
    for other in others:
        assert env[f"HOROVOD_WITHOUT_{other}"] == "1" and f"HOROVOD_WITH_{other}" not in env
    assert env["HOROVOD_WITH_GLOO"] == env["HOROVOD_WITHOUT_MPI"] == "1"
    assert env["HOROVOD_CPU_OPERATIONS"] == "GLOO"
    assert env["HOROVOD_CMAKE"] == "/bin/cmake" and env["CXX"] == "g++"
    assert env["MAKEFLAGS"] == "-j3" and env["CMAKE_BUILD_PARALLEL_LEVEL"] == "3"
    assert not any("GPU" in each or "NCCL" in each for each in env)
    assert env["HOROVOD_WITHOUT_NVTX"] == "1"


def test_environment_for_gpus(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("LDFLAGS", "-Lmine")
    env = rendered(TORCH_CUDA, GPU, nccl_folder=Path("/build/nccl"))
    assert env["HOROVOD_GPU_OPERATIONS"] == "NCCL" and env["HOROVOD_CUDA_HOME"] == "/cuda"
    assert env["HOROVOD_NCCL_INCLUDE"] == "/nccl/include"
    assert env["HOROVOD_NCCL_LIB"] == "/build/nccl" and env["HOROVOD_NCCL_LINK"] == "SHARED"
    # The linker finds NCCL through the build's folder, the loader in its own folder.
    assert env["LDFLAGS"].startswith("-Lmine ") and "-Wl,-rpath,/nccl/lib" in env["LDFLAGS"]


def test_environment_omits_variables_that_would_change_the_build() -> None:
    base = {"HOROVOD_WITH_MPI": "1", "MAKEFLAGS": "-n", "PATH": "/bin", "CXXFLAGS": "-g"}
    base["HOROVOD_BUILD_ARCH_FLAGS"] = "-mavx"
    kept = {"PATH": "/bin", "CXXFLAGS": "-g", "HOROVOD_BUILD_ARCH_FLAGS": "-mavx"}
    bending = ("CCL_ROOT", "CCL_CONFIGURATION", "CMAKE_GENERATOR", "CMAKE_BUILD_TYPE")
    base |= dict.fromkeys((*bending, "GNUMAKEFLAGS", "MFLAGS"), "x")
    assert clean_environment(base) == kept


def test_pips_nccl_gets_the_name_the_linker_wants(tmp_path: Path) -> None:
    folder = build._linkable(GPU, tmp_path)
    assert folder and (folder / "libnccl.so").readlink() == GPU.nccl_library
    system = dataclasses.replace(GPU, nccl_library=Path("/usr/lib/libnccl.so"))
    assert build._linkable(system, tmp_path) is None


def test_a_machine_without_a_compiler_for_cuda_gets_it_from_pip_once(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    asked: list[list[str]] = []

    def pip(command: list[str], timeout: float) -> SimpleNamespace:
        asked.append(command)
        place = Path(next(word for word in command if word.startswith("--target="))[9:])
        for file in ("bin/nvcc", "lib/libcudart.so.13"):
            (place / "nvidia/cu13" / file).parent.mkdir(parents=True, exist_ok=True)
            (place / "nvidia/cu13" / file).touch()
        return SimpleNamespace(ok=True, tail=lambda lines: "")

    monkeypatch.setattr(cuda, "run_sync", pip)
    none = dataclasses.replace(GPU, cuda_home=None)
    for _ in range(2):
        home = cuda.with_compiler(none, tmp_path).cuda_home
        assert home == tmp_path / "cuda-13.0"
    assert (home / "lib64/libcudart.so").resolve().name == "libcudart.so.13"
    assert len(asked) == 1 and "nvidia-cuda-nvcc==13.0.*" in asked[0]
    assert [path.name for path in tmp_path.iterdir()] == ["cuda-13.0"], "no scratch is left"
    assert cuda.with_compiler(GPU, tmp_path) == GPU, "the machine's own comes first"


def test_an_unavailable_nvcc_is_reported(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    failed = SimpleNamespace(ok=False, tail=lambda lines: "ERROR: No matching distribution")
    monkeypatch.setattr(cuda, "run_sync", lambda command, timeout: failed)
    with pytest.raises(HorovodBuildError, match=r"(?s)CUDA 13.0: .*CUDA_HOME.*--no-gpu.*No match"):
        cuda.with_compiler(dataclasses.replace(GPU, cuda_home=None), tmp_path)
    assert not list(tmp_path.iterdir())


# -- the cache key


def test_the_key_follows_everything_the_wheel_depends_on(monkeypatch: pytest.MonkeyPatch) -> None:
    base = Plan([Part((TORCH, TENSORFLOW), None)])
    other_nccl = dataclasses.replace(GPU, nccl_version="2.30")
    other_place = dataclasses.replace(GPU, nccl_library=Path("/other/lib/libnccl.so.2"))
    plans = [
        base,
        ONLY_TORCH,
        Plan([Part((dataclasses.replace(TORCH, version="2.14.0"), TENSORFLOW), None)]),
        Plan([Part((TORCH_CUDA,), None)]),
        Plan([Part((TORCH_CUDA,), GPU)]),
        Plan([Part((TORCH_CUDA,), other_nccl)]),
        Plan([Part((TORCH_CUDA,), other_place)]),
    ]
    keys = [each.key for each in plans]
    monkeypatch.setenv("HOROVOD_BUILD_ARCH_FLAGS", "-mavx2")
    keys.append(base.key)
    monkeypatch.delenv("HOROVOD_BUILD_ARCH_FLAGS")
    edits = (Edit("x", "y", "old", "new", "because"),)
    keys.append(Plan([Part((TORCH, TENSORFLOW), None, edits)]).key)
    with monkeypatch.context() as patch:
        patch.setattr(plan, "PYTHON_EDITS", ())
        keys.append(base.key)
        assert base.native_key in keys[0], "a Python edit must not cause a compilation"
    assert len(set(keys)) == len(keys)
    assert base.key == keys[0]
    assert keys[0].startswith("0.28.1-cp3") and "-torch2.13.0+cpu-tensorflow2.21.0-" in keys[0]


# -- the cache and the whole build, with the compilation replaced


def wheel_file(folder: Path, *frameworks: str) -> Path:
    """Write a wheel like the one that Horovod's own build makes for these frameworks."""
    folder.mkdir(parents=True, exist_ok=True)
    path = folder / "horovod-0.28.1+rankroom-py3-none-any.whl"
    info = "horovod-0.28.1+rankroom.dist-info"
    with zipfile.ZipFile(path, "w") as archive:
        archive.writestr("horovod/__init__.py", "x = 1\n")
        for framework in frameworks:
            archive.writestr(f"horovod/{framework}/library.so", framework)
        versions = dict.fromkeys(frameworks, "1.0")
        archive.writestr("horovod/metadata.json", json.dumps({**versions, "dummy": "none"}))
        archive.writestr(
            f"{info}/METADATA", "Metadata-Version: 2.1\nName: horovod\nVersion: 0.28.1+rankroom\n"
        )
        archive.writestr(f"{info}/WHEEL", "Wheel-Version: 1.0\nTag: py3-none-any\n")
        archive.writestr(f"{info}/RECORD", "")
    return path


def test_a_finished_wheel_has_all_parts_the_edits_and_the_marker(tmp_path: Path) -> None:
    names = ("pytorch", "tensorflow")
    compiled = [wheel_file(tmp_path / name, name) for name in names]
    (tmp_path / "done").mkdir()
    edit = Edit("one", "horovod/__init__.py", "x = 1", "x = 2", "a reason")
    wheel = finish(compiled, tmp_path / "done", [edit], {"key": "k", "edits": ["one"]})
    target = tmp_path / "target"
    subprocess.run(
        [sys.executable, "-m", "pip", "install", "-q", "--no-index", "--target", target, wheel],
        check=True,
    )
    assert (target / "horovod/__init__.py").read_text() == "x = 2\n"
    assert json.loads((target / MARKER).read_text()) == {"key": "k", "edits": ["one"]}
    metadata = json.loads((target / "horovod/metadata.json").read_text())
    assert metadata == {"pytorch": "1.0", "tensorflow": "1.0", "dummy": "none"}
    assert all((target / f"horovod/{name}/library.so").read_text() == name for name in names)
    record = (next(target.glob("*.dist-info")) / "RECORD").read_text()
    assert "horovod/rankroom.json,sha256=" in record and "tensorflow/library.so," in record
    assert [path.name for path in (tmp_path / "done").iterdir()] == [wheel.name]


class Stage:
    """build() with fakes that record its compilations and installations."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch, folder: Path) -> None:
        self.compiled = 0
        self.installed: list[Path] = []
        self.key = ""
        self.plan = ONLY_TORCH
        monkeypatch.setenv("RANKROOM_CACHE", str(folder))
        monkeypatch.setattr(build, "make_plan", lambda gpu: self.plan)
        monkeypatch.setattr(build, "preflight", lambda place: None)
        monkeypatch.setattr(build, "PYTHON_EDITS", ())
        monkeypatch.setattr(build, "compile_part", self.compile)
        monkeypatch.setattr(build, "_install", self.install)
        monkeypatch.setattr(
            build, "features", lambda: SimpleNamespace(key=self.key, version="0.28.1+rankroom")
        )

    def compile(self, part: Part, folder: Path, jobs: int, report: Callable[..., None]) -> Path:
        self.compiled += 1
        made = wheel_file(folder / "made", *(each.name for each in part.frameworks)).parent
        return cache.keep(made, folder / "compiled" / part.key)

    def install(self, wheel: Path) -> None:
        assert zipfile.ZipFile(wheel).testzip() is None
        self.installed.append(wheel)


def test_the_second_build_comes_from_the_cache(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    stage = Stage(monkeypatch, tmp_path)
    assert "built in" in build.build()
    assert "from the cache" in build.build()
    assert stage.compiled == 1 and len(stage.installed) == 2
    folder = tmp_path / "horovod"
    assert stage.installed[0].parent == folder / ONLY_TORCH.key
    stage.key = ONLY_TORCH.key
    assert build.build().startswith("already installed: Horovod 0.28.1+rankroom for torch 2.13.0")
    assert stage.compiled == 1 and len(stage.installed) == 2
    build.build(force=True)
    assert stage.compiled == 2 and len(stage.installed) == 3
    assert not list(folder.glob("build-*")), "scratch folders are removed"


def test_other_python_edits_need_no_compilation_and_replace_the_wheel(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    stage = Stage(monkeypatch, tmp_path)
    build.build()
    edit = Edit("new", "horovod/__init__.py", "x = 1", "x = 3", "a reason")
    monkeypatch.setattr(plan, "PYTHON_EDITS", (edit,))
    monkeypatch.setattr(build, "PYTHON_EDITS", (edit,))
    build.build()
    assert stage.compiled == 1 and stage.installed[0] != stage.installed[1]
    assert not stage.installed[0].exists()
    assert zipfile.ZipFile(stage.installed[1]).read("horovod/__init__.py") == b"x = 3\n"


def test_a_framework_that_is_added_is_compiled_with_the_other_one(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    stage = Stage(monkeypatch, tmp_path)
    build.build()
    stage.plan = Plan([Part((TORCH, TENSORFLOW), None)])
    build.build()
    assert stage.compiled == 2
    names = zipfile.ZipFile(stage.installed[1]).namelist()
    assert {"horovod/torch/library.so", "horovod/tensorflow/library.so"} <= set(names)


def test_a_build_that_fails_leaves_nothing_that_looks_built(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    stage = Stage(monkeypatch, tmp_path)
    wrong = Edit("wrong", "horovod/__init__.py", "y = 1", "y = 2", "a reason")
    monkeypatch.setattr(build, "PYTHON_EDITS", (wrong,))
    with pytest.raises(HorovodBuildError, match="wrong"):
        build.build()
    assert not list((tmp_path / "horovod").glob(f"{ONLY_TORCH.key}*"))
    assert not stage.installed and not list((tmp_path / "horovod").glob("build-*"))


def test_what_a_killed_build_has_left_is_removed_by_the_next_one(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    Stage(monkeypatch, tmp_path)
    for left in ("build-1/horovod-0.28.1", "compiled/build-2"):
        (tmp_path / "horovod" / left).mkdir(parents=True)
    (tmp_path / "horovod/build-torch.log").touch()
    build.build()
    left = [path.name for path in (tmp_path / "horovod").rglob("build-*")]
    assert left == ["build-torch.log"]


@pytest.mark.parametrize("name", ["my cache", "c++", "a(1)"])
def test_nothing_is_compiled_in_a_cache_whose_path_cmake_cannot_handle(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, name: str
) -> None:
    plain, folder = tmp_path / "plain", tmp_path / name
    for each in (plain, folder):
        each.mkdir()
    monkeypatch.setattr(cache.tempfile, "tempdir", str(plain))
    assert cache.place_to_compile(plain / "cache") == plain / "cache"
    assert cache.place_to_compile(folder) == plain
    with cache.scratch(plain) as place:
        wheel_file(place / "wheel", "torch")
        kept = cache.keep(place / "wheel", folder / "compiled" / "key")
    assert kept.parent == folder / "compiled" / "key" and zipfile.ZipFile(kept).testzip() is None
    assert [path.name for path in (folder / "compiled").iterdir()] == ["key"]


def test_without_pip_nothing_is_built_or_installed(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    stage = Stage(monkeypatch, tmp_path)
    build.build()
    monkeypatch.setattr(toolchain.importlib.util, "find_spec", lambda name: None)
    with pytest.raises(HorovodBuildError, match=r"no pip .*-m ensurepip.*uv pip install --python"):
        build.build()
    assert len(stage.installed) == 1


BUILD = """
import signal, sys
signal.signal(signal.SIGHUP, signal.SIG_DFL)  # nohup may be above
from pathlib import Path
from rankroom.cli import horovod_command
from rankroom.horovod_build.cache import scratch
from rankroom.system.commands import run_sync

def build(gpu, **how):
    with scratch(Path(sys.argv[1])) as place:
        run_sync(["sh", "-c", "echo $$ > new; mv new ../pid; sleep 600"], cwd=place)

horovod_command.build_wheel = build
horovod_command.build.main([])
"""


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGHUP])
def test_a_terminated_build_ends_its_compilers_and_cleans_up(tmp_path: Path, number: int) -> None:
    started = subprocess.Popen([sys.executable, "-c", BUILD, tmp_path])
    while not (tmp_path / "pid").exists():
        assert started.poll() is None
        time.sleep(0.02)
    started.send_signal(number)
    assert started.wait(60) == 128 + number
    compiler = Path("/proc", (tmp_path / "pid").read_text().strip())
    assert poll_until(lambda: not compiler.exists(), 10)  # it may have to be reaped
    assert [path.name for path in tmp_path.iterdir()] == ["pid"]


def hold(path: Path, held: Path, seen: Path) -> None:
    with path.open("w") as handle:
        fcntl.flock(handle, fcntl.LOCK_EX)
        held.touch()
        while not seen.exists():
            time.sleep(0.01)


def test_a_second_build_waits_for_the_first(tmp_path: Path) -> None:
    held, seen = tmp_path / "held", tmp_path / "seen"
    other = multiprocessing.get_context("spawn").Process(
        target=hold, args=(tmp_path / "lock", held, seen)
    )
    other.start()
    while not held.exists():
        time.sleep(0.01)
    waited: list[bool] = []

    def wait() -> None:
        waited.append(True)
        seen.touch()

    with cache.lock(tmp_path, wait):
        assert waited == [True]
        other.join(60)
        assert other.exitcode == 0
    with cache.lock(tmp_path, lambda: waited.append(False)):
        assert waited == [True]


def test_the_cache_folder_can_be_set(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("RANKROOM_CACHE", str(tmp_path / "mine"))
    assert cache.cache_folder() == tmp_path / "mine" / "horovod"
    monkeypatch.delenv("RANKROOM_CACHE")
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "xdg"))
    assert cache.cache_folder() == tmp_path / "xdg" / "rankroom" / "horovod"
    monkeypatch.delenv("XDG_CACHE_HOME")
    monkeypatch.setenv("HOME", str(tmp_path))
    assert cache.cache_folder() == tmp_path / ".cache" / "rankroom" / "horovod"


# -- downloading the source


def test_a_source_with_another_checksum_is_refused(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    def fake(argv: list[str], **options: object) -> SimpleNamespace:
        scratch = next(word for word in argv if word.startswith("--dest=")).removeprefix("--dest=")
        Path(scratch, source.ARCHIVE).write_bytes(b"something else")
        return SimpleNamespace(ok=True, tail=lambda lines: "")

    monkeypatch.setattr(source, "run_sync", fake)
    with pytest.raises(HorovodBuildError, match=r"another Horovod 0\.28\.1"):
        source.fetch(tmp_path)
    assert not list(tmp_path.iterdir())


def test_a_failed_download_is_reported(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    failed = SimpleNamespace(ok=False, tail=lambda lines: "ERROR: No matching distribution")
    monkeypatch.setattr(source, "run_sync", lambda argv, **options: failed)
    with pytest.raises(HorovodBuildError, match=r"(?s)could not download.*pip config.*No matching"):
        source.fetch(tmp_path)


# -- the command line


def test_without_a_terminal_progress_is_a_line_per_ten_percent(
    capsys: pytest.CaptureFixture[str],
) -> None:
    progress = Progress(terminal=False)
    progress("configure", None)
    for percent in range(101):
        progress("compile", percent)
    progress.end()
    lines = capsys.readouterr().err.splitlines()
    assert lines[0].endswith("configure") and lines[1].endswith("compile 0 %")
    assert len(lines) == 12 and lines[-1].endswith("compile 100 %")


def test_the_edits_are_listed_with_their_reasons() -> None:
    printed = CliRunner().invoke(horovod, ["edits"]).output
    assert "timeline-start" in printed and "did nothing on any rank but 0" in printed


def test_an_unknown_option_is_refused() -> None:
    result = CliRunner().invoke(horovod, ["build", "--gpus"])
    assert result.exit_code == 2 and "--gpus" in result.output


def test_default_jobs_respect_the_memory(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setattr(os, "sched_getaffinity", lambda pid: set(range(16)), raising=False)
    memory = SimpleNamespace(available=7_000_000_000)
    monkeypatch.setattr(control_groups.psutil, "virtual_memory", lambda: memory)
    monkeypatch.setattr(control_groups, "groups", lambda *about: [tmp_path])
    assert build.default_jobs() == 3
    # A job or a container has a control group, which may allow less.
    for name, said in {
        "memory.max": "6000000000\n",
        "memory.current": "3000000000\n",
        "memory.stat": "inactive_file 1000000000\n",
    }.items():
        (tmp_path / name).write_text(said)
    assert build.default_jobs() == 2
    memory.available = 100
    assert build.default_jobs() == 1
