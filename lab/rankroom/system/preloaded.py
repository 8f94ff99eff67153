"""Whether the library that closes the ports of ranks is loaded into this process.

Its name in LD_PRELOAD is no proof: the loader skips a library that it cannot load, such as one
built with a newer C library, and continues.
"""

from __future__ import annotations

import os
from collections.abc import Mapping
from pathlib import Path

PRELOAD = "LD_PRELOAD"
UNGUARDED = "RANKROOM_UNGUARDED"  # why it is not loaded, if that is known
NAME = "port_guard"  # prefix of the library's file name
MAPS = Path("/proc/self/maps")


def is_guarded() -> bool:
    """Return whether the library is loaded into this process."""
    try:
        return f"/{NAME}-" in MAPS.read_text(errors="replace")
    except OSError:
        return NAME in os.environ.get(PRELOAD, "")


def without_missing(own: Mapping[str, str]) -> dict[str, str]:
    """Return the variables to change in `own` if this process could not load the library:
    unchanged, each program would report the failure on its stderr."""
    named = own.get(PRELOAD, "").replace(":", " ").split()
    missing = [each for each in named if Path(each).name.startswith(f"{NAME}-")]
    if not missing or is_guarded():
        return {}
    others = ":".join(each for each in named if each not in missing)
    why = NOT_LOADED if Path(missing[0]).exists() else NOT_THERE
    return {PRELOAD: others, UNGUARDED: why.format(library=missing[0])}


NOT_THERE = (
    "{library} is not on this node: another node built it in a local folder, as it could not use "
    "the home directory"
)
NOT_LOADED = "{library} cannot be loaded on this node, whose C library may be older"
