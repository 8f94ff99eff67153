"""Whether the library that closes the ports of ranks has been loaded into this process.

That it is named in LD_PRELOAD does not say so: the loader leaves out what it cannot load, as one
that was built with a newer C library, and goes on.
"""

from __future__ import annotations

import os
from collections.abc import Mapping
from pathlib import Path

PRELOAD = "LD_PRELOAD"
UNGUARDED = "RANKROOM_UNGUARDED"  # why it is not there, where that is known
NAME = "port_guard"  # with which the library's file begins
MAPS = Path("/proc/self/maps")


def is_guarded() -> bool:
    """Whether it is in this process."""
    try:
        return f"/{NAME}-" in MAPS.read_text(errors="replace")
    except OSError:
        return NAME in os.environ.get(PRELOAD, "")


def without_missing(own: Mapping[str, str]) -> dict[str, str]:
    """What is to be set otherwise than in `own` where this process could not load it: each program
    would say so on its stderr."""
    named = own.get(PRELOAD, "").replace(":", " ").split()
    missing = [each for each in named if Path(each).name.startswith(f"{NAME}-")]
    if not missing or is_guarded():
        return {}
    others = ":".join(each for each in named if each not in missing)
    why = NOT_LOADED if Path(missing[0]).exists() else NOT_THERE
    return {PRELOAD: others, UNGUARDED: why.format(library=missing[0])}


NOT_THERE = (
    "{library} is not on this node: another one has built it there, as the home directory had no "
    "place for it"
)
NOT_LOADED = "{library} cannot be loaded on this node, whose C library may be older"
