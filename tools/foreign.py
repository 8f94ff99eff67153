"""Other projects' files: tests and examples in their repositories, and packages that these import.

They are fetched into the cache, at the versions named here, and are not part of this project. On a
machine that cannot reach a repository, `--source NAME=DIR` uses a clone of it.
"""

from __future__ import annotations

import hashlib
import json
import shutil
import subprocess
import sys
import tempfile
import urllib.request
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from importlib import metadata
from pathlib import Path

from rankroom.horovod_build.cache import cache_folder, keep_folder
from rankroom.horovod_build.edits.edit import VERSION

URL = "https://codeload.github.com/{name}/tar.gz/{ref}"
# Packages that must neither be replaced by other versions nor installed a second time.
HELD = ("torch", "tensorflow", "tensorflow-cpu", "keras", "numpy", "ipyparallel")


@dataclass(frozen=True)
class Repository:
    """A repository on GitHub at a tag or commit, and its folders that are used."""

    name: str
    ref: str
    folders: tuple[str, ...]


REPOSITORIES: Mapping[str, Repository] = {
    "horovod": Repository("horovod/horovod", f"v{VERSION}", ("test", "examples")),
    "torch": Repository(
        "pytorch/examples", "77f55b912142e11fcfdf5b530231fb9c52f181e8", ("distributed",)
    ),
    "deepspeed": Repository(
        "deepspeedai/DeepSpeedExamples",
        "45b4b7156c8794a3452a5a7d03dbd8d797068569",
        ("training/cifar", "training/data_efficiency/variable_batch_size_and_lr"),
    ),
    "keras": Repository(
        "keras-team/keras", "3422977a5e38fb2f7709aaa9a08e47f0c43d0f60", ("guides", "examples")
    ),
    "tensorflow": Repository(
        "tensorflow/docs",
        "7c3650212740204359d4ceae481abc79345541be",
        ("site/en/tutorials/distribute",),
    ),
    "lightning": Repository(
        "Lightning-AI/pytorch-lightning",
        "7f0c3436cd3f6ad3753125672024fc415cbcb414",
        ("examples/pytorch/bug_report", "examples/fabric"),
    ),
}


def fetched(key: str, source: Path | None = None) -> Path:
    """Return the root of a repository's folders, which come from the clone `source` if given."""
    repository = REPOSITORIES[key]
    place = _folder() / f"{key}-{repository.ref[:12]}"
    if source is not None or not place.is_dir():
        place.parent.mkdir(parents=True, exist_ok=True)
        with tempfile.TemporaryDirectory(dir=place.parent) as scratch:
            archive, root = Path(scratch, "source.tar.gz"), Path(scratch, "source")
            if source is None:
                _download(repository, key, archive)
            else:
                _archive(repository, source, archive)
            shutil.unpack_archive(archive, root)
            [top] = root.iterdir()
            keep_folder(top, place)
    return place


def _download(repository: Repository, key: str, archive: Path) -> None:
    url = URL.format(name=repository.name, ref=repository.ref)
    try:
        urllib.request.urlretrieve(url, archive)
    except OSError as error:
        sys.exit(
            f"{repository.name} could not be fetched from {url}: {error}; "
            f"--source {key}=DIR takes a clone of it"
        )


def _archive(repository: Repository, source: Path, archive: Path) -> None:
    command: list[str | Path] = [
        "git", "-C", source, "archive", f"--output={archive}", "--prefix=source/", repository.ref,
        *repository.folders,
    ]  # fmt: skip
    if subprocess.run(command).returncode:
        sys.exit(f"{source} is no clone of {repository.name} that has {repository.ref}")


def packages(names: Sequence[str]) -> Path:
    """Return a folder for PYTHONPATH with these packages and their dependencies, except those that
    are installed already: pip chooses versions that are compatible with them."""
    have = {name: _version(name) for name in HELD}
    held = "".join(f"{name}=={version}\n" for name, version in have.items() if version)
    digest = hashlib.sha256(f"{sys.version}\n{held}{names}".encode()).hexdigest()[:12]
    place = _folder() / f"packages-{digest}"
    if not place.is_dir():
        place.parent.mkdir(parents=True, exist_ok=True)
        with tempfile.TemporaryDirectory(dir=place.parent) as scratch:
            constraints, made = Path(scratch, "held.txt"), Path(scratch, "made")
            constraints.write_text(held)
            said = _pip("--dry-run", "--report=-", f"--constraint={constraints}", *names)
            chosen = [each["metadata"] for each in json.loads(said)["install"]]
            made.mkdir()
            if chosen:
                pins = [f"{each['name']}=={each['version']}" for each in chosen]
                _pip("--no-deps", f"--target={made}", *pins)
            made.rename(place)
    return place


def _pip(*words: str) -> str:
    command = [sys.executable, "-m", "pip", "install", "--quiet", *words]
    done = subprocess.run(command, stdout=subprocess.PIPE, text=True)
    if done.returncode:
        sys.exit(f"pip could not install {' '.join(words)}")
    return done.stdout


def _version(name: str) -> str:
    """Return an installed package's version without a local part; empty if not installed."""
    try:
        return metadata.version(name).partition("+")[0]
    except metadata.PackageNotFoundError:
        return ""


def _folder() -> Path:
    return cache_folder().parent / "foreign"
