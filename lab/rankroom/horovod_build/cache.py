"""The cache of built wheels, each under its key: written atomically, by one build at a time."""

from __future__ import annotations

import contextlib
import os
import re
import shutil
import tempfile
from collections.abc import Callable, Iterator
from pathlib import Path

from rankroom import config
from rankroom.system import file_lock

SCRATCH_PREFIX = "build-"  # prefix of the working folders of a build


def cache_folder() -> Path:
    """Return where wheels are kept: RANKROOM_CACHE/horovod, or in the user's cache directory."""
    chosen = os.environ.get("RANKROOM_CACHE")
    if chosen:
        chosen = os.path.expanduser(chosen)  # noqa: PTH111 - raises nothing
        return Path(chosen).absolute() / "horovod"
    cache = os.environ.get("XDG_CACHE_HOME")
    base = Path(cache) if cache and Path(cache).is_absolute() else config.user_home() / ".cache"
    return base / "rankroom" / "horovod"


def wheel_in(folder: Path) -> Path | None:
    return next(folder.glob("*.whl"), None)


def keep_folder(made: Path, folder: Path) -> None:
    """Move a finished folder to its place atomically, replacing what is there."""
    folder.parent.mkdir(parents=True, exist_ok=True)
    with scratch(folder.parent) as beside:
        # `made` may be on another disk, from which it is copied.
        whole = Path(shutil.move(made, beside / folder.name))
        if folder.exists():
            shutil.rmtree(folder)
        whole.rename(folder)


def keep(made: Path, folder: Path) -> Path:
    """Move a folder with a finished wheel to its place; return the wheel there."""
    keep_folder(made, folder)
    wheel = wheel_in(folder)
    assert wheel is not None
    return wheel


def can_compile_in(folder: Path) -> bool:
    """Return whether the build works in this folder: Horovod's and Gloo's CMake quotes no paths."""
    return re.fullmatch(r"[\w./-]+", str(folder)) is not None


def place_to_compile(folder: Path) -> Path:
    """Return where to compile for the cache `folder`: in it, unless the build fails at its path."""
    return folder if can_compile_in(folder) else Path(tempfile.gettempdir())


def clear_scratch(folder: Path) -> None:
    """Remove what a killed build has left. The caller holds the lock."""
    for place in (folder, folder / "compiled"):
        for left in place.glob(f"{SCRATCH_PREFIX}*"):
            if left.is_dir():  # a build's log is a file
                shutil.rmtree(left, ignore_errors=True)


@contextlib.contextmanager
def scratch(folder: Path) -> Iterator[Path]:
    path = Path(tempfile.mkdtemp(prefix=SCRATCH_PREFIX, dir=folder))
    try:
        yield path
    finally:
        shutil.rmtree(path, ignore_errors=True)


@contextlib.contextmanager
def lock(folder: Path, waiting: Callable[[], None]) -> Iterator[bool]:
    """Allow one build at a time in a cache; the kernel releases the lock when a build dies.

    Yields whether the lock is held: some file systems have no locks. Calls `waiting` if another
    build holds it.
    """
    with (folder / "lock").open("w") as handle:
        taken = file_lock.take(handle.fileno(), file_lock.EXCLUSIVE)
        if taken == "busy":
            waiting()
            taken = file_lock.take(handle.fileno(), file_lock.EXCLUSIVE, wait=True)
        yield taken == "taken"
