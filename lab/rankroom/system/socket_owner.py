"""The user at the other end of a connection on this machine, as Linux reports it.

All users of this machine reach what listens on loopback, or on its own address; checking the owner
restricts a protocol without authentication to one of them. Linux is queried by inet_diag or, where
that is missing, as in some containers, through its tables in /proc. rank/native/tcp_sockets.h does
the same in C.
"""

from __future__ import annotations

import errno
import os
import socket
import struct
import sys
from collections.abc import Collection
from pathlib import Path

from rankroom.system.network import LOOPBACK, LOOPBACK_TIMEOUT_S, all_addresses

NETLINK_SOCK_DIAG, SOCK_DIAG_BY_FAMILY, NLM_F_REQUEST = 4, 20, 1
ANY_STATE, NO_COOKIE = 0xFFFFFFFF, b"\xff" * 8
REPLY_TIMEOUT_S = 1.0
NO_OWNER = -1  # for an end that is closed, or that cannot be checked now
LISTENS = 10  # TCP_LISTEN in the kernel's own list of states
TABLES = (Path("/proc/net/tcp"), Path("/proc/net/tcp6"))
# How an IPv4 address begins in the IPv6 table, which prints words in the host's byte order.
MAPPED_PREFIX = f"{0:016X}{int.from_bytes(bytes((0, 0, 255, 255)), sys.byteorder):08X}"

MESSAGE_HEADER = struct.Struct("=IHHII")  # length, type, flags, number, port of a message
QUERY = struct.Struct("=BBBxI")  # family, protocol, extensions, states
# Ports and addresses in network byte order, interface, cookie.
CONNECTION_ID = struct.Struct("=2s2s16s16sI8s")
REPLY = struct.Struct("=xB2x48x12xII")  # in a reply: state, user and inode

Place = tuple[str, int]


def owner(peer: Place, here: Place) -> int | None:
    """Return the user at the end `peer` of an IPv4 connection to `here`, or NO_OWNER; None if Linux
    does not report it."""
    found = _ask(peer, here)
    # A kernel that does not know our own end either does not answer such queries at all.
    if found is not None or _ask(here, peer) is not None:
        return NO_OWNER if found is None else found
    return _look_up(peer, here)


def tells_owners() -> bool:
    """Return whether Linux reports here who owns connections; True if that cannot be tested."""
    try:
        with (
            socket.create_server((LOOPBACK, 0)) as door,
            socket.create_connection(door.getsockname(), LOOPBACK_TIMEOUT_S) as caller,
        ):
            return owner(caller.getsockname(), door.getsockname()) is not None
    except OSError:  # all descriptors are in use, or there is no loopback
        return True


def _ask(end: Place, other: Place) -> int | None:
    """Query inet_diag for the user at this end of a connection; NO_OWNER if closed, None if
    unknown."""
    ends = [port.to_bytes(2, "big") for _, port in (end, other)]
    addresses = [socket.inet_aton(address).ljust(16, b"\0") for address, _ in (end, other)]
    asked = QUERY.pack(socket.AF_INET, socket.IPPROTO_TCP, 0, ANY_STATE)
    asked += CONNECTION_ID.pack(*ends, *addresses, 0, NO_COOKIE)
    head = MESSAGE_HEADER.pack(
        MESSAGE_HEADER.size + len(asked), SOCK_DIAG_BY_FAMILY, NLM_F_REQUEST, 0, 0
    )
    try:
        with socket.socket(socket.AF_NETLINK, socket.SOCK_DGRAM, NETLINK_SOCK_DIAG) as kernel:
            kernel.settimeout(REPLY_TIMEOUT_S)
            kernel.send(head + asked)
            answer = kernel.recv(1 << 12)
    except OSError:
        return None
    if (
        len(answer) < MESSAGE_HEADER.size + REPLY.size
        or MESSAGE_HEADER.unpack_from(answer)[1] != SOCK_DIAG_BY_FAMILY
    ):
        return None
    state, user, inode = REPLY.unpack_from(answer, MESSAGE_HEADER.size)
    if state == LISTENS:  # the kernel returns the port's listener if there is no connection
        return None
    return user if inode else NO_OWNER


def _look_up(peer: Place, here: Place) -> int | None:
    """Find the user as `owner` does, but in the tables; None if none of them can be read."""
    wanted = [{_listed(place), MAPPED_PREFIX + _listed(place)} for place in (peer, here)]
    answer = None
    for table in TABLES:
        try:
            lines = table.read_text().splitlines()[1:]
        except OSError as error:
            if error.errno in (errno.EMFILE, errno.ENFILE, errno.ENOMEM):
                return NO_OWNER  # not None: other users could cause it, and would be let in
            continue
        answer = NO_OWNER
        for line in lines:
            _, end, other, *_, user, _, inode = line.split()[:10]
            if end in wanted[0] and other in wanted[1]:
                return int(user) if inode != "0" else NO_OWNER
    return answer


def _listed(place: Place) -> str:
    """Format an address and a port as the tables do."""
    number = int.from_bytes(socket.inet_aton(place[0]), sys.byteorder)
    return f"{number:08X}:{place[1]:04X}"


def is_ours(peer: Place, here: Place, nodes: Collection[str]) -> bool:
    """Return whether the end `peer` of a connection to `here` is this user's or root's, as far as
    Linux can tell, or on one of the other machines `nodes`."""
    user = owner(peer, here)
    if user in (None, NO_OWNER):
        try:
            own = {here[0], *all_addresses()}
        except OSError:  # no descriptor is left, which other users could cause
            return False
        if peer[0] not in own:
            return peer[0] in nodes  # this kernel does not know the ends on other machines
    return user in (None, os.geteuid(), 0)
