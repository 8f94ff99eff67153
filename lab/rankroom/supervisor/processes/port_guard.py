"""The library that closes what frameworks open in ranks to other users, built where it is used.

A rank loads it before all others (LD_PRELOAD). It is compiled once for a home and a kind of
machine, by whatever C compiler there is, and tried; ranks go without it where that fails.
"""

from __future__ import annotations

import contextlib
import hashlib
import os
import platform
import shlex
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Mapping
from pathlib import Path

from rankroom import config
from rankroom.errors import RankroomError

SOURCE = Path(__file__).parents[2] / "rank" / "native" / "port_guard.c"
BIND, PEERS = "RANKROOM_BIND", "RANKROOM_PEERS"  # what the library reads
PRELOAD = "LD_PRELOAD"
COMPILERS = ("cc", "gcc", "clang")
COMPILE_S = 30.0
TRY_S = 10.0
# Listens on all addresses and connects to itself: closed, or to be refused, if it does not work.
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


def environment(own: Mapping[str, str]) -> dict[str, str]:
    """What a process is started with so that the library is in it; empty without one."""
    made = library()
    if made is None:
        return {}
    others = own.get(PRELOAD, "")
    if str(made) in others:
        return {}
    return {PRELOAD: f"{made}:{others}" if others else str(made)}


def library() -> Path | None:
    """The library for this machine, compiled if it is not there yet; None where that cannot be."""
    # ValueError: of a quote in CC that is not closed.
    with contextlib.suppress(OSError, RankroomError, subprocess.SubprocessError, ValueError):
        return _library()
    return None


def _library() -> Path | None:
    """Raises NotPrivateError where others may write to its folder, which in /tmp is anybody."""
    source = SOURCE.read_bytes()
    version = hashlib.sha256(source).hexdigest()[:12]
    # The loader takes a space or a colon for the end of a name.
    folder = config.without_spaces(config.home() / "native")
    target = folder / f"port_guard-{platform.machine()}-{version}.so"
    if target.exists():
        config.make_own(folder)  # whatever is in the library runs in every rank
        return target
    config.private(folder)
    with tempfile.TemporaryDirectory(dir=folder) as made:
        new = Path(made) / target.name
        compiled = ["-O2", "-fPIC", "-shared", "-o", str(new), str(SOURCE), "-ldl"]
        subprocess.run(
            [*_compiler(), *compiled], check=True, capture_output=True, timeout=COMPILE_S,
            env={**os.environ, "TMPDIR": made},  # /tmp may be full
        )  # fmt: skip
        env = {**os.environ, PRELOAD: str(new), BIND: "127.0.0.1", PEERS: ""}
        tried = subprocess.run(
            [sys.executable, "-I", "-c", TRY], env=env, capture_output=True, timeout=TRY_S
        )
        # The loader only says on stderr that it cannot have it, and goes on.
        if tried.returncode == 0 and not tried.stderr:
            new.replace(target)
            return target
    return None


def _compiler() -> list[str]:
    """Raises FileNotFoundError where there is none."""
    if chosen := shlex.split(os.environ.get("CC", "")):
        return chosen
    for name in COMPILERS:
        if found := shutil.which(name):
            return [found]
    raise FileNotFoundError("no C compiler")
