"""Which modules are preloaded for ranks: those asked for, or what cells here imported last."""

from __future__ import annotations

import contextlib
import hashlib
import json
import sys
from collections.abc import Collection
from pathlib import Path

from rankroom import config
from rankroom.agent.forking import NO_PRELOAD
from rankroom.errors import RankroomError
from rankroom.system.files import write_atomically


def modules(asked: str) -> list[str] | None:
    """Return the modules that `asked` names, else those that were noted; None to fork no ranks."""
    names = (asked or config.preload()).replace(",", " ").split()
    # On other systems libraries do not survive a fork, and nothing ends ranks with their parent.
    if names == [NO_PRELOAD] or sys.platform != "linux":
        return None
    return names or _noted()


def note(modules: Collection[str]) -> None:
    """Note what cells imported, for the next cluster of this environment to preload."""
    with contextlib.suppress(OSError, RankroomError):  # a folder that others may write to
        config.make_private(_file().parent)
        write_atomically(_file(), json.dumps(sorted(modules)))


def _noted() -> list[str]:
    with contextlib.suppress(OSError, ValueError):
        return [str(each) for each in json.loads(_file().read_text())]
    return []


def _file() -> Path:
    environment = hashlib.sha256(f"{sys.prefix} {sys.version}".encode()).hexdigest()[:16]
    return config.home() / "preload" / f"{environment}.json"
