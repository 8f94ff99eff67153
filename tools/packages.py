"""The packages of .venv: which build of torch, the size of the download, and the installation."""

from __future__ import annotations

import json
import os
import re
import shutil
import tempfile
import urllib.request
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

from machine import attempt, has_gpu, output, run, succeeds

TORCH = "RANKROOM_TORCH"  # the build to take, cpu or cuda: `make demo TORCH=cpu` sets it
ANSWER_S = 10.0  # timeout for a package index to report a file's size
UNPACKED = 2.4  # size in .venv, relative to the download
BUILD_BYTES = 1_500_000_000  # for Horovod's build afterwards
GB = 1e9


def install(python: Path, wanted: Sequence[str | Path], torch: str) -> None:
    """Install `wanted` (words for pip) and this version of torch, and first print the size.

    Raises SystemExit if pip fails, or if the disk is too small.
    """
    pip: list[str | Path] = [python, "-m", "pip", "install"]
    words = [*wanted, *torch_build(python, torch)]
    if not reports(python):
        print("set-up: up to 4 GB are downloaded now", flush=True)
        run([*pip, *words], DS_BUILD_OPS="0")
        return
    with tempfile.TemporaryDirectory() as scratch:
        chosen = Path(scratch, "chosen.json")
        # DeepSpeed is tested without its own operators, which would take minutes to compile.
        run([*pip, "--dry-run", "--quiet", "--report", chosen, *words], DS_BUILD_OPS="0")
        files = json.loads(chosen.read_text())["install"]
        if not files:
            return
        announce(files, python.parent)
        # Pinned, so that versions are not chosen a second time.
        pins = Path(scratch, "pins.txt")
        metadata = [file["metadata"] for file in files]
        pins.write_text("".join(f"{each['name']}==={each['version']}\n" for each in metadata))
        if not by_uv(python, pins, Path(scratch)):
            run([*pip, "--no-deps", "--requirement", pins], DS_BUILD_OPS="0")


def by_uv(python: Path, pins: Path, scratch: Path) -> bool:
    """Install `pins` with uv, which downloads and unpacks in parallel; return whether it succeeded.

    pip has chosen the versions, and uv fetches them from the places where pip looks. Neither uv nor
    its cache is kept. If uv does not run, or does not find the same as pip, pip installs them.
    """
    pip: list[str | Path] = [python, "-m", "pip"]
    taken, _ = attempt([*pip, "install", "--target", scratch / "uv", "uv"])
    if taken != 0:
        return False
    uv: list[str | Path] = [scratch / "uv" / "bin" / "uv", "pip", "install", "--no-config"]
    # Beside the environment, so that its files can be links to those in the cache.
    with tempfile.TemporaryDirectory(prefix="uv-", dir=python.parent.parent) as cache:
        environment = {
            **indexes(output(*pip, "config", "list")),
            "DS_BUILD_OPS": "0",
            "UV_CACHE_DIR": cache,
            # Versions are exact, whichever index has them.
            "UV_INDEX_STRATEGY": "unsafe-best-match",
        }
        words: list[str | Path] = ["--no-deps", "--python", python, "--requirement", pins]
        status, _ = attempt([*uv, *words], environment=environment)
    return status == 0


def indexes(config: str) -> dict[str, str]:
    """Return where pip looks, from the output of `pip config list`, as uv's variables.

    They are passed in the environment, as an address may contain a password.
    """
    names = {
        "index_url": ("UV_DEFAULT_INDEX", " "),
        "extra_index_url": ("UV_INDEX", " "),
        "find_links": ("UV_FIND_LINKS", ","),
        "cert": ("SSL_CERT_FILE", " "),
    }
    settings = re.findall(r"^([\w:]+)\.([\w-]+)='(.*)'$", config, re.MULTILINE)
    found = {}
    # pip's variables, in the section :env:, take precedence over its files.
    for _, name, value in sorted(settings, key=lambda each: each[0] == ":env:"):
        if way := names.get(name.replace("-", "_")):
            variable, between = way
            found[variable] = between.join(value.replace("\\n", " ").split())
    return found


def torch_build(python: Path, version: str) -> list[str]:
    """Return what else to request from pip, so that it takes the right build of torch.

    For a machine without a GPU, that is a CPU build, a tenth of the size, if pip is configured to
    look in a place that has it.
    """
    asked = os.environ.get(TORCH, "")
    if asked not in ("", "cpu", "cuda"):
        raise SystemExit(f"TORCH={asked}: choose cpu or cuda")
    if asked == "cuda":
        return [f"torch==={version}"]  # exactly this version, without +cpu
    if not asked and has_gpu():
        return []
    cpu = f"torch=={version}+cpu"
    options: list[str | Path] = ["--dry-run", "--no-deps", "--ignore-installed", "--quiet"]
    if succeeds(python, "-m", "pip", "install", *options, cpu):
        return [cpu]
    if asked:
        raise SystemExit(NO_CPU_TORCH.format(cpu=cpu))
    return []


def reports(python: Path) -> bool:
    """Return whether pip reports what it would install, as it does since 22.2."""
    return "--report" in output(python, "-m", "pip", "install", "--help")


def offers(python: Path, wanted: str) -> bool:
    """Return whether pip finds a binary release for this Python and machine, not a candidate."""
    if not reports(python):
        return True
    options: list[str | Path] = ["--dry-run", "--no-deps", "--ignore-installed", "--quiet"]
    with tempfile.TemporaryDirectory() as scratch:
        chosen = Path(scratch, "chosen.json")
        options += ["--only-binary", ":all:", "--report", chosen]
        if not succeeds(python, "-m", "pip", "install", *options, wanted):
            return False
        version = json.loads(chosen.read_text())["install"][0]["metadata"]["version"]
    return re.search(r"\d(a|b|rc|\.dev)\d", version) is None


def announce(files: list[dict[str, Any]], place: Path) -> None:
    """Print how much will be downloaded. Raises SystemExit if `place` has no room for it."""
    with ThreadPoolExecutor(16) as pool:
        sizes = list(pool.map(size_of, [file["download_info"]["url"] for file in files]))
    total = sum(size or 0 for size in sizes)
    needed = total * UNPACKED + BUILD_BYTES
    free = shutil.disk_usage(place).free
    versions = {file["metadata"]["name"]: file["metadata"]["version"] for file in files}
    cuda = any(name.startswith("nvidia-c") for name in versions)
    least = "at least " if None in sizes else ""
    print(
        f"set-up: {counted(files)}, {least}{total / GB:.1f} GB to download; .venv will take "
        f"{needed / GB:.0f} GB, {free / GB:.0f} GB are free",
        flush=True,
    )
    if cuda and not has_gpu():
        print(CUDA_TORCH, flush=True)
    if free < needed:
        raise SystemExit(
            NO_ROOM.format(place=place, free=free / GB, needed=needed / GB)
            + (f"\n{CUDA_TORCH}" if cuda else "")
        )


def counted(files: list[dict[str, Any]]) -> str:
    return "1 package" if len(files) == 1 else f"{len(files)} packages"


def size_of(url: str) -> int | None:
    """Return the bytes of a file that pip would fetch; None if the server does not report them."""
    try:
        if url.startswith("file:"):
            return Path(urllib.request.url2pathname(urlsplit(url).path)).stat().st_size
        request = urllib.request.Request(url, method="HEAD")
        with urllib.request.urlopen(request, timeout=ANSWER_S) as answer:
            return int(answer.headers["Content-Length"])
    except (OSError, ValueError, TypeError):
        return None


NO_CPU_TORCH = (
    "TORCH=cpu: pip finds no {cpu} for this Python. PyTorch's installation page names the index of "
    "its CPU builds: have pip look there as well (`pip config set --help` says how)"
)
CUDA_TORCH = (
    "set-up: most of that is CUDA, which this machine has no GPU for, as pip knows no CPU build of "
    "PyTorch.\n"
    "set-up: PyTorch's installation page names the index of its CPU builds: they are taken "
    "once pip looks there as well (`pip config set --help` says how)"
)
NO_ROOM = (
    "set-up: {place} has {free:.1f} GB left, and {needed:.1f} GB are needed: free some, or make "
    "the clone on a larger disk"
)
