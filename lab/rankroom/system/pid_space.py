"""Where a pid means something: on one machine since its last boot, in one PID namespace.

Login nodes and containers may share a home. What one of them reads there of another's processes
cannot be looked up by number, and that such a process is not found here says nothing.
"""

from __future__ import annotations

import contextlib
import functools
import os
import socket
from pathlib import Path
from typing import NamedTuple

MACHINE, BOOT = Path("/etc/machine-id"), Path("/proc/sys/kernel/random/boot_id")
NAMESPACE = Path("/proc/self/ns/pid")


class PidSpace(NamedTuple):
    """Host, machine, boot and PID namespace; what this system does not tell is empty."""

    host: str
    machine: str
    boot: str
    namespace: str

    def __str__(self) -> str:
        return "/".join(self)

    @classmethod
    def read(cls, text: str) -> PidSpace:
        """The inverse of `str`; of other text, a space of which nothing is known."""
        parts = text.split("/")
        return cls(*parts) if len(parts) == len(cls._fields) else cls("", "", "", "")


@functools.cache
def here() -> PidSpace:
    """That of this process. Raises OSError where it cannot be read now: half of it would be that of
    another machine, for good."""
    try:
        namespace = os.readlink(NAMESPACE)  # noqa: PTH115 - it leads to no file
    except OSError:
        namespace = ""
    host = socket.gethostname().replace("/", "_")
    return PidSpace(host, _text(MACHINE), _text(BOOT), namespace)


def _here_if_known() -> PidSpace | None:
    """None while it cannot be read: then nothing is known to be here, or gone."""
    with contextlib.suppress(OSError):
        return here()
    return None


def is_here(space: PidSpace) -> bool:
    """Whether numbers of processes of `space` mean the same here. A host may be renamed."""
    now = _here_if_known()
    return now is not None and space[1:] == now[1:]


def is_same_boot(space: PidSpace) -> bool:
    """Whether the same kernel runs here: its locks are known here, in whatever namespace."""
    now = _here_if_known()
    return now is not None and bool(space.boot) and space.boot == now.boot


def was_rebooted(space: PidSpace, is_renamed: bool = False) -> bool:
    """Whether `space` is this machine's before it was last booted: nothing runs there.

    With `is_renamed` it may have had another name. Machines that were set up from one image may be
    told apart by nothing else.
    """
    now = _here_if_known()
    if now is None:
        return False
    is_same = space.machine == now.machine and (is_renamed or space.host == now.host)
    known = all((space.host, space.machine, space.boot, now.boot))
    return known and is_same and space.boot != now.boot


def _text(path: Path) -> str:
    try:
        return path.read_text().strip()
    except (FileNotFoundError, NotADirectoryError, IsADirectoryError, PermissionError, ValueError):
        return ""  # this system does not tell, now or later
