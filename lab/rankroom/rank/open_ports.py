"""Says in a run, once, who else reaches the ports that a framework has opened in this rank."""

from __future__ import annotations

import os

from rankroom.reporting.spans import recorder

_told: set[str] = set()


def tell(framework: str) -> None:
    """`framework` has opened ports, which do not check who connects."""
    if framework in _told:
        return
    _told.add(framework)
    if "port_guard" not in os.environ.get("LD_PRELOAD", ""):
        recorder.note(UNGUARDED.format(framework=framework))
    elif "," in os.environ.get("RANKROOM_PEERS", ""):
        recorder.note(SHARED.format(framework=framework))


UNGUARDED = (
    "the ports of {framework} are open to other users of this machine, and perhaps of its network: "
    "what closes them could not be built, which takes a C compiler"
)
SHARED = (
    "the ports of {framework} are open to others who have processes on the other nodes of this "
    "cluster, which is not checked there"
)
