"""Note in a run who else can reach the ports that a framework has opened on this rank."""

from __future__ import annotations

import os

from rankroom.reporting.spans import recorder
from rankroom.system import preloaded, socket_owner

_told: set[str] = set()


def tell(framework: str) -> None:
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
    "the ports of {framework} are open to other users of this machine, and perhaps of its network: "
    "the library that closes them is not in use, as {why}"
)
GUARD_NOT_LOADED = "nothing has loaded it into this rank, which may be in a container"
PEER_OWNER_UNKNOWN = (
    "the ports of {framework} are open to other users of this machine: its kernel does not tell "
    "whose process connects, neither by inet_diag nor in /proc/net/tcp"
)
PEERS_ON_OTHER_NODES = (
    "the ports of {framework} are open to others who have processes on the other nodes of this "
    "cluster, which is not checked there"
)
