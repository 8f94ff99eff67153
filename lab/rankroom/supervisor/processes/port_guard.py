"""The library that closes ports that frameworks open in ranks to other users, built on first use.

A rank loads it before all others (LD_PRELOAD). It is compiled once for a home, a type of machine
and a C library, by whatever C compiler there is, and tested once on each machine after each boot.
Where that fails, ranks run without it, and know why.
"""

from __future__ import annotations

import contextlib
import hashlib
import os
import platform
import shlex
import shutil
import socket
import subprocess
import sys
import tempfile
from collections.abc import Iterator, Mapping
from pathlib import Path

from rankroom import config
from rankroom.errors import RankroomError
from rankroom.system.preloaded import PRELOAD, UNGUARDED

SOURCES = Path(__file__).parents[2] / "rank" / "native"
BIND, PEERS = "RANKROOM_BIND", "RANKROOM_PEERS"  # what the library reads
TMP = Path("/tmp")
BOOT = Path("/proc/sys/kernel/random/boot_id")
COMPILERS = ("cc", "gcc", "clang")
COMPILE_S = 30.0
TRY_S = 10.0
# Listens on all addresses and connects to itself; fails unless it listens on loopback only.
TRY = """
import socket
with socket.socket() as door:
    door.bind(("", 0))
    door.listen()
    door.settimeout(5)
    with socket.create_connection(("127.0.0.1", door.getsockname()[1]), 5):
        door.accept()
    assert door.getsockname()[0] == "127.0.0.1"
"""


class NotBuiltError(RankroomError):
    """The library cannot be built, in whichever folder."""


def environment(own: Mapping[str, str]) -> dict[str, str]:
    """Return the variables with which a process loads the library, or knows why there is none."""
    made, why = _found()
    if made is None:
        return {UNGUARDED: why}
    env = {UNGUARDED: ""} if own.get(UNGUARDED) else {}
    others = own.get(PRELOAD, "")
    if str(made) not in others:
        env[PRELOAD] = f"{made}:{others}" if others else str(made)
    return env


def library() -> Path | None:
    """Return the library for this machine, compiled if necessary; None if that fails."""
    return _found()[0]


def _found() -> tuple[Path | None, str]:
    """Return the library, in the first folder that can hold it, or why there is none."""
    why = ""
    try:
        for folder in _folders():
            try:
                return _made(folder), ""
            except NotBuiltError as error:
                return None, str(error)
            except (OSError, RankroomError) as error:
                why = why or str(error)  # report the first folder, which is the intended one
    except (OSError, RankroomError) as error:
        why = why or str(error)
    return None, why


def _folders() -> Iterator[Path]:
    """Yield the folders where it may be, one after another: other users may have created the one in
    /tmp first, and on some file systems nothing may be executed."""
    wanted = config.home() / "native"
    own = config.without_spaces(wanted)  # to the loader, a space or a colon ends a name
    yield own
    if (runtime := os.environ.get("XDG_RUNTIME_DIR", "")) and Path(runtime).is_absolute():
        folder = Path(runtime) / "rankroom-native"
        if config.without_spaces(folder) == folder:
            yield folder
    # A folder that was created like this before is reused, so that starts do not leave one each.
    begins = f"rankroom-{os.getuid()}-"
    before = sorted(TMP.glob(f"{begins}*"))
    mine = [each for each in before if each.lstat().st_uid == os.getuid()]
    yield mine[0] if mine else Path(tempfile.mkdtemp(prefix=begins, dir=TMP))


def _made(folder: Path) -> Path:
    """Return the library in this folder, compiled if necessary and tested on this machine.

    Raises NotPrivateError where others may write to the folder, OSError where it cannot be used,
    NotBuiltError where the library cannot be compiled.
    """
    sources = b"".join(each.read_bytes() for each in sorted(SOURCES.iterdir()) if each.is_file())
    version = hashlib.sha256(sources).hexdigest()[:12]
    c_library = "-".join(platform.libc_ver()) or "libc"
    target = folder / f"port_guard-{platform.machine()}-{c_library}-{version}.so"
    tried = folder / f"tried-{socket.gethostname()}"
    boot = _boot()
    here = f"{boot} {target.name}\n"
    if target.exists():
        config.make_own(folder)  # whatever is in the library runs in every rank
        if not (boot and tried.exists() and tried.read_text() == here):
            _try(target)
            _note_tried(tried, here)
        return target
    compiler = _compiler()
    if folder.parent == config.home():
        config.make_private(folder)
    else:
        config.make_own(folder)
    with tempfile.TemporaryDirectory(dir=folder) as made:
        new = Path(made) / target.name
        source = str(SOURCES / "port_guard.c")
        words = ["-std=gnu99", "-O2", "-fPIC", "-shared", "-o", str(new), source, "-ldl"]
        try:
            subprocess.run(
                [*compiler, *words], check=True, capture_output=True, timeout=COMPILE_S,
                env={**os.environ, "TMPDIR": made},  # /tmp may be full
            )  # fmt: skip
        except (OSError, subprocess.SubprocessError) as error:
            raise NotBuiltError(_not_compiled(compiler[0], error)) from None
        if not new.exists():
            why = "it wrote no output file"
            raise NotBuiltError(NOT_COMPILED.format(compiler=compiler[0], error=why))
        _try(new)
        new.replace(target)
    _note_tried(tried, here)
    return target


def _try(library: Path) -> None:
    """Test the library. Raises OSError if it cannot be loaded or does not work."""
    env = {**os.environ, PRELOAD: str(library), BIND: "127.0.0.1", PEERS: ""}
    try:
        tried = subprocess.run(
            # Without `site`: what a .pth file prints says nothing about the library.
            [sys.executable, "-I", "-S", "-c", TRY],
            env=env,
            capture_output=True,
            timeout=TRY_S,
            text=True,
        )
    except subprocess.TimeoutExpired:
        raise OSError(FAILED_TRY.format(folder=library.parent, error=f"{TRY_S:g} s")) from None
    # If the loader cannot load it, it only says so on stderr and goes on.
    if tried.returncode or tried.stderr:
        last = (tried.stderr.strip() or f"exit status {tried.returncode}").splitlines()[-1]
        raise OSError(FAILED_TRY.format(folder=library.parent, error=last))


def _note_tried(file: Path, here: str) -> None:
    """Write the file atomically: nodes that share a home do this at the same time."""
    with contextlib.suppress(OSError):  # then the library is tested again next time
        with tempfile.NamedTemporaryFile("w", dir=file.parent, delete=False) as new:
            new.write(here)
        Path(new.name).replace(file)


def _boot() -> str:
    """Return the id of this boot; empty if the system does not tell."""
    try:
        return BOOT.read_text().strip()
    except OSError:
        return ""


def _compiler() -> list[str]:
    """Return the command of a C compiler. Raises NotBuiltError if there is none."""
    try:
        if chosen := shlex.split(os.environ.get("CC", "")):
            return chosen
    except ValueError as error:  # an unclosed quote
        raise NotBuiltError(NO_COMMAND.format(command=os.environ["CC"], error=error)) from None
    for name in COMPILERS:
        if found := shutil.which(name):
            return [found]
    raise NotBuiltError(NO_COMPILER)


def _not_compiled(compiler: str, error: OSError | subprocess.SubprocessError) -> str:
    said = getattr(error, "stderr", None) or b""
    lines = said.decode(errors="replace").strip().splitlines()
    return NOT_COMPILED.format(compiler=compiler, error=lines[-1] if lines else error)


NO_COMPILER = "no C compiler was found to build it (cc, gcc, clang, or the command in CC)"
NO_COMMAND = (
    "it could not be compiled: the value of CC, {command!r}, is not a valid command ({error})"
)
NOT_COMPILED = "it could not be compiled with {compiler}: {error}"
FAILED_TRY = "it does not work on this machine, from {folder}: {error}"
