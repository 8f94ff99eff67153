"""The wheels that were built, each under its key: written whole or not at all, one at a time."""

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

SCRATCH = "build-"  # begins the names of folders that a build works in


def cache_folder() -> Path:
    """Where wheels are kept: RANKROOM_CACHE/horovod, or in the user's cache directory."""
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
    """Move a finished folder to its place, whole or not at all."""
    folder.parent.mkdir(parents=True, exist_ok=True)
    with scratch(folder.parent) as beside:
        # `made` may be on another disk, from which it is copied.
        whole = Path(shutil.move(made, beside / folder.name))
        if folder.exists():
            shutil.rmtree(folder)
        whole.rename(folder)


def keep(made: Path, folder: Path) -> Path:
    """Move a folder with a finished wheel to its place; the wheel there."""
    keep_folder(made, folder)
    wheel = wheel_in(folder)
    assert wheel is not None
    return wheel


def can_compile_in(folder: Path) -> bool:
    """Whether the build works in this folder: CMake files of Horovod and Gloo quote no paths."""
    return re.fullmatch(r"[\w./-]+", str(folder)) is not None


def place_to_compile(folder: Path) -> Path:
    """Where to compile for the cache `folder`: in it, unless its path is one that fails."""
    return folder if can_compile_in(folder) else Path(tempfile.gettempdir())


def clear_scratch(folder: Path) -> None:
    """Remove what a build that was killed has left; for who has the lock."""
    for place in (folder, folder / "compiled"):
        for left in place.glob(f"{SCRATCH}*"):
            if left.is_dir():  # a build's log is a file
                shutil.rmtree(left, ignore_errors=True)


@contextlib.contextmanager
def scratch(folder: Path) -> Iterator[Path]:
    path = Path(tempfile.mkdtemp(prefix=SCRATCH, dir=folder))
    try:
        yield path
    finally:
        shutil.rmtree(path, ignore_errors=True)


@contextlib.contextmanager
def lock(folder: Path, waiting: Callable[[], None]) -> Iterator[bool]:
    """One build at a time in one cache; the kernel lets go of the lock when a build dies.

    Whether it is the only one: on some file systems there are no locks.
    """
    with (folder / "lock").open("w") as handle:
        taken = file_lock.take(handle.fileno(), file_lock.EXCLUSIVE)
        if taken == "busy":
            waiting()
            taken = file_lock.take(handle.fileno(), file_lock.EXCLUSIVE, wait=True)
        yield taken == "taken"
