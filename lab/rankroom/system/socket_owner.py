"""Whose process is at the other end of a connection on this machine, as Linux tells it.

What listens on loopback, or on this machine's own address, is reached by all its users; a protocol
without authentication can still be kept to one of them.
"""

from __future__ import annotations

import socket
import struct

NETLINK_SOCK_DIAG, SOCK_DIAG_BY_FAMILY, NLM_F_REQUEST = 4, 20, 1
ANY_STATE, NO_COOKIE = 0xFFFFFFFF, b"\xff" * 8
PATIENCE_S = 1.0
NOBODY = -1  # a process that is gone already

HEAD = struct.Struct("=IHHII")  # length, type, flags, number, port of a message
WHAT = struct.Struct("=BBBxI")  # family, protocol, extensions, states
# Ports and addresses in the network's order, interface, cookie.
CONNECTION = struct.Struct("=2s2s16s16sI8s")
FOUND = struct.Struct("=4x48x12xII")  # of an answer: user and inode

Place = tuple[str, int]


def owner(peer: Place, here: Place) -> int | None:
    """The user at the end `peer` of an IPv4 connection to `here`; None if Linux does not say."""
    ends = [port.to_bytes(2, "big") for _, port in (peer, here)]
    addresses = [socket.inet_aton(address).ljust(16, b"\0") for address, _ in (peer, here)]
    asked = WHAT.pack(socket.AF_INET, socket.IPPROTO_TCP, 0, ANY_STATE)
    asked += CONNECTION.pack(*ends, *addresses, 0, NO_COOKIE)
    head = HEAD.pack(HEAD.size + len(asked), SOCK_DIAG_BY_FAMILY, NLM_F_REQUEST, 0, 0)
    try:
        with socket.socket(socket.AF_NETLINK, socket.SOCK_DGRAM, NETLINK_SOCK_DIAG) as kernel:
            kernel.settimeout(PATIENCE_S)
            kernel.send(head + asked)
            answer = kernel.recv(1 << 12)
    except OSError:
        return None
    if len(answer) < HEAD.size + FOUND.size or HEAD.unpack_from(answer)[1] != SOCK_DIAG_BY_FAMILY:
        return NOBODY
    user, inode = FOUND.unpack_from(answer, HEAD.size)
    return user if inode else NOBODY
