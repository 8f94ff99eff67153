"""The scope in which a pid is valid: one machine since its last boot, in one PID namespace.

Login nodes and containers may share a home directory. If one of them reads there of a process of
another, that pid cannot be looked up here, and not finding the process proves nothing.
"""

from __future__ import annotations

import contextlib
import functools
import os
import socket
from pathlib import Path
from typing import NamedTuple

MACHINE_ID_FILE, BOOT_ID_FILE = Path("/etc/machine-id"), Path("/proc/sys/kernel/random/boot_id")
NAMESPACE_LINK = Path("/proc/self/ns/pid")


class PidSpace(NamedTuple):
    """Host, machine, boot and PID namespace; empty where this system does not report it."""

    host: str
    machine: str
    boot: str
    namespace: str

    def __str__(self) -> str:
        return "/".join(self)

    @classmethod
    def read(cls, text: str) -> PidSpace:
        """Parse what `str` returns; for any other text, return a space with all fields empty."""
        parts = text.split("/")
        return cls(*parts) if len(parts) == len(cls._fields) else cls("", "", "", "")


@functools.cache
def here() -> PidSpace:
    """Return the PID space of this process. Raises OSError if it cannot be read now: an incomplete
    one would be cached, and taken for another machine's."""
    try:
        namespace = os.readlink(NAMESPACE_LINK)  # noqa: PTH115 - it leads to no file
    except OSError:
        namespace = ""
    host = socket.gethostname().replace("/", "_")
    return PidSpace(host, _text(MACHINE_ID_FILE), _text(BOOT_ID_FILE), namespace)


def _here_if_known() -> PidSpace | None:
    """Return `here()`; None while it cannot be read: then no process is known here, or gone."""
    with contextlib.suppress(OSError):
        return here()
    return None


def is_here(space: PidSpace) -> bool:
    """Return whether pids of `space` are valid here. The host is ignored, as it may be renamed."""
    now = _here_if_known()
    return now is not None and space[1:] == now[1:]


def is_same_boot(space: PidSpace) -> bool:
    """Return whether the kernel of `space` runs here: it knows the locks of all its namespaces."""
    now = _here_if_known()
    return now is not None and bool(space.boot) and space.boot == now.boot


def was_rebooted(space: PidSpace, is_renamed: bool = False) -> bool:
    """Return whether `space` is this machine before its last boot, so that nothing runs there.

    With `is_renamed`, the host may have had another name. Otherwise it must match, as it may be all
    that distinguishes machines installed from one image.
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
        return ""  # this system never reports it
