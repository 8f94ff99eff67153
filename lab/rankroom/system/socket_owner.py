"""Whose process is at the other end of a connection on this machine, as Linux tells it.

What listens on loopback, or on this machine's own address, is reached by all its users; a
protocol without authentication can still be kept to one of them. Linux is asked (inet_diag), or its
tables in /proc are read where it has none, as in some containers. rank/native/tcp_sockets.h does
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

from rankroom.system.network import LOOPBACK, LOOPBACK_S, all_addresses

NETLINK_SOCK_DIAG, SOCK_DIAG_BY_FAMILY, NLM_F_REQUEST = 4, 20, 1
ANY_STATE, NO_COOKIE = 0xFFFFFFFF, b"\xff" * 8
PATIENCE_S = 1.0
GONE = -1  # the owner of an end that is closed, or that cannot be checked now
LISTENS = 10  # TCP_LISTEN in the kernel's own list of states
TABLES = (Path("/proc/net/tcp"), Path("/proc/net/tcp6"))
# How an IPv4 address begins in the table of IPv6, which has words as they are in memory.
MAPPED = f"{0:016X}{int.from_bytes(bytes((0, 0, 255, 255)), sys.byteorder):08X}"

HEAD = struct.Struct("=IHHII")  # length, type, flags, number, port of a message
WHAT = struct.Struct("=BBBxI")  # family, protocol, extensions, states
# Ports and addresses in the network's order, interface, cookie.
CONNECTION = struct.Struct("=2s2s16s16sI8s")
FOUND = struct.Struct("=xB2x48x12xII")  # of an answer: state, user and inode

Place = tuple[str, int]


def owner(peer: Place, here: Place) -> int | None:
    """The user at the end `peer` of an IPv4 connection to `here`; None if Linux does not say."""
    found = _ask(peer, here)
    # A kernel that knows nothing of our own end does not answer at all.
    if found is not None or _ask(here, peer) is not None:
        return GONE if found is None else found
    return _look_up(peer, here)


def tells_owners() -> bool:
    """Whether Linux says here whose the ends of connections are, as far as that can be tried."""
    try:
        with (
            socket.create_server((LOOPBACK, 0)) as door,
            socket.create_connection(door.getsockname(), LOOPBACK_S) as caller,
        ):
            return owner(caller.getsockname(), door.getsockname()) is not None
    except OSError:  # all descriptors are in use, or there is no loopback
        return True


def _ask(end: Place, other: Place) -> int | None:
    """The user at this end of the connection, GONE if it is closed; None if there is no such."""
    ends = [port.to_bytes(2, "big") for _, port in (end, other)]
    addresses = [socket.inet_aton(address).ljust(16, b"\0") for address, _ in (end, other)]
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
        return None
    state, user, inode = FOUND.unpack_from(answer, HEAD.size)
    if state == LISTENS:  # at the same port: the kernel tells of it where there is no connection
        return None
    return user if inode else GONE


def _look_up(peer: Place, here: Place) -> int | None:
    """The same as `owner`, from the tables; None where none of them can be read."""
    wanted = [{_listed(place), MAPPED + _listed(place)} for place in (peer, here)]
    answer = None
    for table in TABLES:
        try:
            lines = table.read_text().splitlines()[1:]
        except OSError as error:
            if error.errno in (errno.EMFILE, errno.ENFILE, errno.ENOMEM):
                return GONE  # not None: strangers could see to that, and would be let in
            continue
        answer = GONE
        for line in lines:
            _, end, other, *_, user, _, inode = line.split()[:10]
            if end in wanted[0] and other in wanted[1]:
                return int(user) if inode != "0" else GONE
    return answer


def _listed(place: Place) -> str:
    """An address and a port as the tables have them."""
    number = int.from_bytes(socket.inet_aton(place[0]), sys.byteorder)
    return f"{number:08X}:{place[1]:04X}"


def is_ours(peer: Place, here: Place, nodes: Collection[str]) -> bool:
    """Whether the end `peer` of a connection to `here` is this user's, as far as Linux can tell, or
    one of these other machines."""
    user = owner(peer, here)
    if user in (None, GONE) and peer[0] not in {here[0], *all_addresses()}:
        return peer[0] in nodes  # this machine's kernel knows nothing of the ends of others
    return user in (None, os.geteuid(), 0)
