"""What the set-up downloads: which build of torch, and the announcement of its size."""

from __future__ import annotations

import json
import os
import sys
from pathlib import Path
from types import SimpleNamespace

import pytest

import interpreters
import packages
import versions
from checkout import ROOT

PYTHON = Path(sys.executable)


def machine(monkeypatch: pytest.MonkeyPatch, *, gpu: bool, offered: bool, asked: str = "") -> None:
    monkeypatch.setattr(packages, "has_gpu", lambda: gpu)
    monkeypatch.setattr(packages, "succeeds", lambda *words: offered)
    monkeypatch.setenv(packages.TORCH, asked)


@pytest.mark.parametrize(
    ("gpu", "offered", "asked", "words"),
    [
        (False, True, "", ["torch==2.13.0+cpu"]),
        (False, False, "", []),
        (True, True, "", []),
        (True, True, "cpu", ["torch==2.13.0+cpu"]),
        (False, True, "cuda", ["torch===2.13.0"]),
    ],
)
def test_without_a_gpu_the_cpu_build_of_torch_is_chosen_if_pip_has_it(
    monkeypatch: pytest.MonkeyPatch, gpu: bool, offered: bool, asked: str, words: list[str]
) -> None:
    machine(monkeypatch, gpu=gpu, offered=offered, asked=asked)
    assert packages.torch_build(PYTHON, "2.13.0") == words


def test_an_unavailable_or_unknown_torch_build_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    machine(monkeypatch, gpu=False, offered=False, asked="cpu")
    with pytest.raises(SystemExit, match=r"no torch==2.13.0\+cpu for this Python.*pip config set"):
        packages.torch_build(PYTHON, "2.13.0")
    machine(monkeypatch, gpu=False, offered=False, asked="gpu")
    with pytest.raises(SystemExit, match="TORCH=gpu: choose cpu or cuda"):
        packages.torch_build(PYTHON, "2.13.0")


@pytest.mark.parametrize(
    ("version", "is_offered"),
    [("2.21.0", True), ("2.21.0.post1", True), ("2.22.0rc0", False), ("2.22.0.dev3", False),
     (None, False)],
)  # fmt: skip
def test_a_prerelease_does_not_count_as_offered(
    monkeypatch: pytest.MonkeyPatch, version: str | None, is_offered: bool
) -> None:
    def pip(*words: object) -> bool:
        assert {"--dry-run", "--only-binary", "tensorflow-cpu>=2.16"} <= {*map(str, words)}
        if version is not None:
            chosen = Path(str(words[words.index("--report") + 1]))
            chosen.write_text(json.dumps({"install": [{"metadata": {"version": version}}]}))
        return version is not None

    monkeypatch.setattr(packages, "reports", lambda python: True)
    monkeypatch.setattr(packages, "succeeds", pip)
    assert packages.offers(PYTHON, "tensorflow-cpu>=2.16") == is_offered


def files(folder: Path, **sizes: int) -> list[dict[str, object]]:
    """Return what pip would report for packages of these sizes, in bytes."""
    found = []
    for name, size in sizes.items():
        path = folder / f"{name} 1.whl"  # with a space, which is quoted in a URL
        path.write_bytes(b"")
        with path.open("ab") as file:
            file.truncate(size)
        metadata = {"name": name.replace("_", "-"), "version": "1"}
        found.append({"metadata": metadata, "download_info": {"url": path.as_uri()}})
    return found


def test_the_download_size_is_announced_before_the_download(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    machine(monkeypatch, gpu=False, offered=False)
    monkeypatch.setattr(packages.shutil, "disk_usage", lambda place: SimpleNamespace(free=50e9))
    packages.announce(files(tmp_path, torch=2_000_000_000, click=1000), tmp_path)
    said = capsys.readouterr().out
    assert said == "set-up: 2 packages, 2.0 GB to download; .venv will take 6 GB, 50 GB are free\n"
    packages.announce(files(tmp_path, torch=10, nvidia_cudnn_cu13=2_000_000_000), tmp_path)
    assert "no GPU for, as pip knows no CPU build of PyTorch" in capsys.readouterr().out
    gone = files(tmp_path, torch=10)
    (tmp_path / "torch 1.whl").unlink()
    packages.announce(gone, tmp_path)
    assert "1 package, at least 0.0 GB" in capsys.readouterr().out


def test_too_little_disk_space_is_reported_before_the_download(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    machine(monkeypatch, gpu=False, offered=False)
    monkeypatch.setattr(packages.shutil, "disk_usage", lambda place: SimpleNamespace(free=3e9))
    with pytest.raises(SystemExit, match=r"has 3.0 GB left, and 6.3 GB are needed"):
        packages.announce(files(tmp_path, torch=2_000_000_000), tmp_path)


def test_the_table_replaces_the_one_in_the_document(tmp_path: Path) -> None:
    page = tmp_path / "page.md"
    page.write_text(f"before\n{interpreters.BEGIN}old\n{interpreters.END}after\n")
    trial = interpreters.Trial("3.13.0", "2.13.0+cu130", "trained", 480.0, 8.14)
    interpreters.write(page, interpreters.table([trial]))
    text = page.read_text()
    assert text.startswith("before\n<!--") and text.endswith("<!-- end -->\nafter\n")
    assert "| 3.13.0 | 2.13.0+cu130 | trained | 8.0 min | 8.1 GB |" in text
    assert "old" not in text


def test_the_python_that_runs_is_found() -> None:
    version = f"{sys.version_info[0]}.{sys.version_info[1]}"
    assert interpreters.find(version)
    assert interpreters.find("3.99") is None


def test_trials_with_other_pythons_are_skipped_if_there_are_none(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(interpreters, "find", lambda version: None)
    monkeypatch.setattr(sys, "argv", ["interpreters.py", "--other", "--torch", "cuda"])
    assert interpreters.main() == 0
    said, closing = capsys.readouterr().out.splitlines()
    assert said == interpreters.NO_OTHER
    assert closing.startswith("0 passed, 0 failed, 1 skipped in ")


def test_the_versions_get_a_heading_and_repeated_rows_are_replaced(tmp_path: Path) -> None:
    text = (ROOT / "docs" / "pythons.md").read_text("utf-8")
    before, _, rest = text.partition(versions.BEGIN)
    page = tmp_path / "page.md"
    page.write_text(f"{before}{versions.BEGIN}{versions.END}{rest.partition(versions.END)[2]}")
    row = versions.Environment("3.12.1", "2.7.1", "2.19.1", "3.10.0", "trained", False, 480.0, 8.1)
    versions.write_section(page, [row], ["3.14"])
    assert "## Other versions of the frameworks\n" in page.read_text()
    assert f"{row.row}\n\n3.14\n\n{versions.END}" in page.read_text()
    # An environment that is tried again replaces its row; other rows stay.
    older = versions.Environment("3.9.1", "2.4.1", "2.16.2", "3.12.0", "trained", False, 60.0, 8.0)
    again = versions.Environment("3.12.1", "2.7.1", "2.19.1", "3.15.1", "trained", False, 90.0, 8.2)
    versions.write_section(page, [older, again], ["3.14"])
    assert f"|---|\n{older.row}\n{again.row}\n\n3.14\n\n{versions.END}" in page.read_text()


def test_uv_uses_the_indexes_of_pip(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    for name in [each for each in os.environ if each.startswith("PIP_")]:
        monkeypatch.delenv(name)
    settings = tmp_path / "pip.conf"
    settings.write_text(
        "[global]\nindex_url = file:///mirror\nextra_index_url =\n  file:///one\n  file:///two\n"
        "find_links = /not/these\ncert = /all.pem\ntimeout = 180\n"
    )
    monkeypatch.setenv("PIP_CONFIG_FILE", str(settings))
    monkeypatch.setenv("PIP_FIND_LINKS", "/wheels /more")
    assert packages.indexes(packages.output(PYTHON, "-m", "pip", "config", "list")) == {
        "UV_DEFAULT_INDEX": "file:///mirror",
        "UV_INDEX": "file:///one file:///two",
        "UV_FIND_LINKS": "/wheels,/more",
        "SSL_CERT_FILE": "/all.pem",
    }
    assert packages.indexes("") == {}


@pytest.mark.parametrize("fails", ["nothing", "uv is not there", "uv finds none"])
def test_pip_installs_what_uv_does_not(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, fails: str
) -> None:
    python = tmp_path / "venv" / "bin" / "python"
    python.parent.mkdir(parents=True)
    machine(monkeypatch, gpu=False, offered=False)
    monkeypatch.setattr(packages, "announce", lambda files, place: None)
    monkeypatch.setattr(packages, "output", lambda *words: "--report")
    ran: list[list[str]] = []

    def attempt(command: list[object], **options: object) -> tuple[int, str]:
        words = [str(each) for each in command]
        ran.append(words)
        if "--report" in words:
            chosen = {"install": files(tmp_path, click=10)}
            Path(words[words.index("--report") + 1]).write_text(json.dumps(chosen))
        if words[-1] == "uv":
            return int(fails == "uv is not there"), ""
        return int(fails == "uv finds none" and "--no-config" in words), ""

    monkeypatch.setattr(packages, "attempt", attempt)
    monkeypatch.setattr(packages, "run", attempt)
    packages.install(python, ["click"], "2.13.0")
    by_pip = [words for words in ran if words[3:4] == ["install"] and "--no-deps" in words]
    assert len(by_pip) == (0 if fails == "nothing" else 1)
    assert not list(python.parent.parent.glob("uv-*")), "a cache stays behind"
