"""Note in a run who else can reach the ports that a framework has opened on this rank."""

from __future__ import annotations

import os

from rankroom.reporting.spans import recorder
from rankroom.system import preloaded, socket_owner

_told: set[str] = set()


def note_open_ports(framework: str) -> None:
    """Note, once per `framework`, who else can reach its ports, which do not check who connects."""
    if framework in _told:
        return
    _told.add(framework)
    if not preloaded.is_guarded():
        why = os.environ.get(preloaded.UNGUARDED) or GUARD_NOT_LOADED
        recorder.note(PORTS_UNGUARDED.format(framework=framework, why=why))
        return
    if not socket_owner.tells_owners():
        recorder.note(PEER_OWNER_UNKNOWN.format(framework=framework))
    if "," in os.environ.get("RANKROOM_PEERS", ""):
        recorder.note(PEERS_ON_OTHER_NODES.format(framework=framework))


PORTS_UNGUARDED = (
    "other users of this machine, and perhaps of its network, can connect to the ports of "
    "{framework}: the library that guards them is not in use, because {why}"
)
GUARD_NOT_LOADED = "it was not loaded into this rank, which may be in a container"
PEER_OWNER_UNKNOWN = (
    "other users of this machine can connect to the ports of {framework}: its kernel does not "
    "reveal who owns a connection, neither through inet_diag nor in /proc/net/tcp"
)
PEERS_ON_OTHER_NODES = (
    "other users with processes on the other nodes of this cluster can connect to the ports of "
    "{framework}: who owns a connection from another node is not checked"
)
