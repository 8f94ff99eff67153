"""Builds for GPUs on a machine without one: what is reported if the compiler is missing."""

from __future__ import annotations

import zipfile
from pathlib import Path

import pytest

import gpu_build


def pip_has(monkeypatch: pytest.MonkeyPatch, *files: str) -> None:
    """Pretend that pip fetches a compiler's wheel with these files."""

    def fetch(words: list[str]) -> None:
        folder = next(word.partition("=")[2] for word in words if word.startswith("--dest="))
        with zipfile.ZipFile(Path(folder, "nvidia_cuda_nvcc_cu12-12.9.86-any.whl"), "w") as wheel:
            for file in files:
                wheel.writestr(f"nvidia/cuda_nvcc/{file}", "")

    monkeypatch.setattr(gpu_build, "run", fetch)


def test_missing_parts_of_pips_compiler_are_named(monkeypatch: pytest.MonkeyPatch) -> None:
    pip_has(monkeypatch, "bin/ptxas", "bin/nvcc.profile", "include/nvcc", "nvvm/bin/cicc")
    said = gpu_build.without_toolkit("12")
    assert "cu12 12.9.86 has cicc, ptxas and lacks nvcc, cudafe++, fatbinary, nvlink." in said
    assert "install CUDA toolkit 12 and set CUDA_HOME to it" in said


def test_the_gpu_build_fails_if_pip_has_nvcc_after_all(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    pip_has(monkeypatch, "bin/ptxas", "bin/nvcc")
    monkeypatch.setattr(gpu_build, "is_missing", lambda cuda: True)
    monkeypatch.setattr("sys.argv", ["gpu_build.py", "--cuda", "12"])
    assert gpu_build.main() == 1
    assert "CUDA 12: FAILED: nvidia-cuda-nvcc-cu12 12.9.86 has nvcc" in capsys.readouterr().out


def test_only_a_cuda_before_13_needs_a_toolkit(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    for name in ("HOROVOD_CUDA_HOME", "CUDA_HOME", "CUDA_PATH"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("PATH", str(tmp_path))
    monkeypatch.setattr("rankroom.horovod_build.cuda.DEFAULT_CUDA_HOME", str(tmp_path))
    assert gpu_build.is_missing("12") and not gpu_build.is_missing("13")
    nvcc = tmp_path / "bin" / "nvcc"
    nvcc.parent.mkdir()
    nvcc.write_text("#!/bin/sh\necho 'Cuda compilation tools, release 12.8, V12.8.93'\n")
    nvcc.chmod(0o755)
    assert not gpu_build.is_missing("12")
