"""The user's settings: from environment variables, else from config.toml, else the defaults.

The file is `$XDG_CONFIG_HOME/rankroom/config.toml` (or ~/.config/rankroom/config.toml); it holds
the same names in lower case and without the prefix, for example `keep_days = 30`.
"""

from __future__ import annotations

import contextlib
import errno
import functools
import os
import re
import stat
import sys
from importlib import import_module
from pathlib import Path
from typing import Any

from rankroom.errors import NotPrivateError, UsageError, with_remedy

# Names of the previous version, and what they are now. The next version drops the old names.
NEW_NAMES = {
    # variables of the environment
    "RANKROOM_GUARD": "RANKROOM_WATCHDOG",
    # fields of cluster.json, and a cluster's log
    "keeper": "supervisor",
    "far": "remote",
    "keeper.log": "supervisor.log",
    # programs that clusters run
    "rankroom.rank.keeper": "rankroom.supervisor.supervisor",
    "rankroom.far.keeper": "rankroom.remote.agent",
}

SETTINGS = (  # names in config.toml
    "keep_days", "keep_gb", "hang_seconds", "elastic_seconds", "lease_hours", "preload",
    "start_seconds", "ask_seconds",
)  # fmt: skip
_PLAIN_PATH = re.compile(r"[\w./@%+,=~-]+")
_own: set[Path] = set()  # homes that were found to be the user's own


def home() -> Path:
    """Return the folder of records and clusters: RANKROOM_HOME, or the user's data directory.

    At its first use, a relative RANKROOM_HOME is made absolute for this process and those that it
    starts, so that it stays one folder, whatever the current directory is later. Raises
    NotPrivateError if the folder is another user's, or others may write to it.
    """
    folder = _home()
    if folder not in _own:
        with contextlib.suppress(OSError):  # it may not exist yet
            _demand_own(folder)
            _own.add(folder)
    return folder


def _home() -> Path:
    chosen = os.environ.get("RANKROOM_HOME")
    if chosen:
        folder = Path(os.path.expanduser(chosen))  # noqa: PTH111 - raises nothing
        if not folder.is_absolute():
            folder = current_folder() / folder
            os.environ["RANKROOM_HOME"] = str(folder)
        return folder
    data = os.environ.get("XDG_DATA_HOME")
    # The XDG specification says that relative paths are ignored.
    base = Path(data) if data and Path(data).is_absolute() else user_home() / ".local" / "share"
    return base / "rankroom"


def user_home() -> Path:
    """Return the user's home directory. Raises UsageError if neither HOME nor the system has it."""
    try:
        return Path.home()
    except RuntimeError:
        raise UsageError(NO_HOME_DIRECTORY.format(uid=os.getuid())) from None


def current_folder() -> Path:
    """Return the current directory. Raises UsageError if it has been deleted."""
    try:
        return Path.cwd()
    except FileNotFoundError:
        raise UsageError(NO_FOLDER) from None


def without_spaces(folder: Path) -> Path:
    """Return `folder`, or one in /tmp if its path has a space or another character that system
    programs take for the end of a path."""
    return folder if _PLAIN_PATH.fullmatch(str(folder)) else Path("/tmp", f"rankroom-{os.getuid()}")


def make_private(folder: Path) -> None:
    """Create the home, and a folder of it, closed to other users. Raises as `make_own`."""
    make_parents(home())
    for each in (home(), folder):
        make_own(each)


def make_parents(folder: Path) -> None:
    """Create the folders above this one that are missing, closed to other users whatever the umask
    is. Raises OSError."""
    for each in reversed(folder.parents):
        if not each.is_dir():
            each.mkdir(mode=0o700, exist_ok=True)


def make_own(folder: Path) -> None:
    """Create a folder that is closed to other users, or use the existing one. Raises OSError.

    Raises NotPrivateError if another user owns the existing one, or others may write to it: what
    they put there would be executed or trusted.
    """
    with contextlib.suppress(FileExistsError):
        folder.mkdir(mode=0o700)
    _demand_own(folder)


def _demand_own(folder: Path) -> None:
    about = folder.lstat()
    if stat.S_ISLNK(about.st_mode) and about.st_uid == os.getuid():
        about = folder.stat()
    if about.st_uid != os.getuid():
        raise NotPrivateError(NOT_YOURS.format(folder=folder))
    if not stat.S_ISDIR(about.st_mode):
        raise NotADirectoryError(errno.ENOTDIR, os.strerror(errno.ENOTDIR), str(folder))
    if about.st_mode & (stat.S_IWGRP | stat.S_IWOTH):
        raise NotPrivateError(OTHERS_MAY_WRITE.format(folder=folder))


def keep_days() -> float:
    """Records older than this many days are pruned (RANKROOM_KEEP_DAYS)."""
    return _number("keep_days", 30.0)


def keep_bytes() -> int:
    """The oldest records are pruned beyond this many bytes in all (RANKROOM_KEEP_GB)."""
    return int(_number("keep_gb", 5.0) * 1e9)


def hang_seconds() -> float:
    """Ranks that wait this long for one another are reported as stuck (RANKROOM_HANG_SECONDS)."""
    return _number("hang_seconds", 4.0)


def elastic_seconds() -> float:
    """In `hvd.elastic.run`, ranks wait this long for a rank that died to be restarted
    (RANKROOM_ELASTIC_SECONDS)."""
    return _number("elastic_seconds", 60.0)


def preload() -> str:
    """Modules that are imported before ranks are forked, or `none` (RANKROOM_PRELOAD)."""
    return _text("preload")


def start_seconds(default: float) -> float:
    """A start fails if ranks are not ready after this long (RANKROOM_START_SECONDS)."""
    return _number("start_seconds", default)


def lease_hours() -> float:
    """A cluster that no client holds ends after this many hours (RANKROOM_LEASE_HOURS)."""
    return _number("lease_hours", 12.0)


def ask_seconds() -> float:
    """A question of ssh waits this long for its answer (RANKROOM_ASK_SECONDS).

    SSH servers hang up after 120 s, unless a site configures it otherwise.
    """
    return _number("ask_seconds", 110.0)


def names(new: str) -> list[str]:
    """Return a name, and those that the previous version had for it."""
    return [new, *(old for old, name in NEW_NAMES.items() if name == new)]


def environment() -> dict[str, str]:
    """Return this process's environment with renamed variables under their new names; print a line
    about each."""
    env = dict(os.environ)
    for old, new in NEW_NAMES.items():
        if old in env and old.isupper():
            print(OLD_VARIABLE.format(old=old, new=new), file=sys.stderr)
            env.setdefault(new, env.pop(old))
    return env


def config_file() -> Path:
    """Return the path of config.toml, which need not exist."""
    return _config_file(os.environ.get("XDG_CONFIG_HOME"), os.environ.get("HOME"))


@functools.lru_cache  # called for every cell, and depends on the environment only
def _config_file(chosen: str | None, _home: str | None) -> Path:
    # For a user without a home directory, a path where there is no file.
    base = Path(chosen) if chosen and Path(chosen).is_absolute() else _dot_config()
    return base / "rankroom" / "config.toml"


def _dot_config() -> Path:
    try:
        return user_home() / ".config"
    except UsageError:
        return Path("/nonexistent/.config")


def _number(name: str, default: float) -> float:
    variable = f"RANKROOM_{name.upper()}"
    is_set = variable in os.environ
    text: Any = os.environ[variable] if is_set else _from_file().get(name, default)
    try:
        value = float(text)
    except (TypeError, ValueError):
        value = -1.0
    if not 0 <= value < float("inf"):
        where = variable if is_set else f"{name} in {config_file()}"
        raise UsageError(NOT_A_NUMBER.format(where=where, text=text, default=default))
    return value


def _text(name: str) -> str:
    """Return a setting of several words. Raises UsageError if it is something else in the file."""
    chosen = os.environ.get(f"RANKROOM_{name.upper()}")
    if chosen is not None:
        return chosen
    found = _from_file().get(name, "")
    words = [found] if isinstance(found, str) else found
    if not isinstance(words, list) or not all(isinstance(each, str) for each in words):
        raise UsageError(NOT_WORDS.format(name=name, file=config_file(), found=found))
    return " ".join(words)


def _from_file() -> dict[str, Any]:
    path = config_file()
    try:
        found = parsed(path.read_text("utf-8"))
    except FileNotFoundError:
        return {}
    except OSError as error:
        raise UsageError(f"cannot read {path}: {with_remedy(error)}") from None
    except ValueError as error:
        raise UsageError(UNREADABLE.format(path=path, error=error)) from None
    for name in found.keys() - SETTINGS:
        raise UsageError(UNKNOWN_SETTING.format(path=path, name=name, known=", ".join(SETTINGS)))
    return found


def parsed(text: str) -> dict[str, Any]:
    """Parse TOML. Raises ValueError."""
    # tomllib is new in Python 3.11.
    toml = import_module("tomllib" if sys.version_info >= (3, 11) else "tomli")
    return dict(toml.loads(text))


NO_HOME_DIRECTORY = (
    "HOME is not set, and the system knows no home directory of user {uid}: set HOME, or set "
    "RANKROOM_HOME to a folder of your own"
)
NO_FOLDER = "the current directory has been deleted: `cd` to one that is there"
NOT_A_NUMBER = "{where} is {text!r}: set it to a number from 0 up, for example {default:g}"
NOT_YOURS = (
    "{folder} belongs to another user, and Rankroom uses only folders of your own: have it "
    "removed, or set RANKROOM_HOME to another place"
)
OLD_VARIABLE = "{old} is now called {new}: set {new}; the next version will ignore {old}"
OTHERS_MAY_WRITE = (
    "other users may write to {folder}, so its files may not be yours: check them, then run "
    "`chmod go-w {folder}`"
)
NOT_WORDS = "{name} in {file} is {found!r}: set it to text, or to a list of texts"
UNKNOWN_SETTING = "{path} has a setting {name!r} that does not exist; there are {known}"
UNREADABLE = "cannot read {path}: {error}; correct the file or remove it"
