"""Which of this machine's addresses the other nodes reach, and the interface that has it."""

from __future__ import annotations

import errno
import ipaddress
import os
import socket
from collections.abc import Iterable, Mapping

import psutil

from rankroom.errors import StartError

LOOPBACK = "127.0.0.1"
LOOPBACK_S = 5.0
CHOSEN = ("GLOO_SOCKET_IFNAME", "HOROVOD_GLOO_IFACE")  # where a user or a site names the interface


def here() -> str:
    """The name of this node as Slurm has it; the machine's own outside of a job."""
    return os.environ.get("SLURMD_NODENAME") or socket.gethostname().partition(".")[0]


def towards(nodes: Iterable[str]) -> str:
    """This machine's address as `nodes` reach it; loopback if it is the only one of them.

    Never a wildcard: what listens there is not for all that can reach this machine. Raises
    OSError if the nodes cannot be found.
    """
    others = [node for node in nodes if node != here()]
    return own_address(others[0]) if others else LOOPBACK


def demand_loopback() -> None:
    """Raise StartError where this machine does not reach itself: its processes could not. Raises
    OSError where that cannot be tried."""
    try:
        with socket.create_server((LOOPBACK, 0)) as door:
            socket.create_connection(door.getsockname(), LOOPBACK_S).close()
    except OSError as error:
        if error.errno in (errno.EMFILE, errno.ENFILE):
            raise  # that says nothing of this machine
        raise StartError(NO_LOOPBACK.format(address=LOOPBACK, error=error)) from None


def own_address(host: str) -> str:
    """The address that packets to `host` leave with. Nothing is sent."""
    family, kind, _, _, address = socket.getaddrinfo(
        host, 9, family=socket.AF_INET, type=socket.SOCK_DGRAM
    )[0]
    with socket.socket(family, kind) as probe:
        probe.connect(address)
        return str(probe.getsockname()[0])


def bound_address(host: str, bound: str) -> str:
    """`bound` where `host` names this machine, and what would listen on all its addresses listens
    on that one instead; `host` where it names another one, or nothing."""
    try:
        found = {each[4][0] for each in socket.getaddrinfo(host, None, type=socket.SOCK_STREAM)}
    except (OSError, UnicodeError):
        return host
    own = all_addresses()
    is_own = any(
        each in own or ipaddress.ip_address(each).is_loopback for each in map(_plain, found)
    )
    return bound if is_own else host


def all_addresses() -> set[str]:
    """Those of this machine, of IPv6 as well; beside them, all of 127.0.0.0/8 is its own."""
    return {_plain(each.address) for all_ in psutil.net_if_addrs().values() for each in all_}


def _plain(address: object) -> str:
    return str(address).partition("%")[0]


def interfaces() -> dict[str, str]:
    """The IPv4 address of each interface; of several, the first."""
    return dict(reversed(_ipv4()))


def outer_addresses() -> list[str]:
    """The IPv4 addresses by which others may know this machine."""
    return [each for _, each in _ipv4() if not ipaddress.ip_address(each).is_loopback]


def _ipv4() -> list[tuple[str, str]]:
    """All IPv4 addresses, each with its interface."""
    return [
        (name, str(each.address))
        for name, all_ in psutil.net_if_addrs().items()
        for each in all_
        if each.family == socket.AF_INET
    ]


def choose(own: str, found: Mapping[str, str], env: Mapping[str, str]) -> tuple[str, str]:
    """Interface and address that a rank's data goes through: the user's choice, or that of `own`.

    `own` is the address by which the supervisor is reached.
    """
    for variable in CHOSEN:
        if (name := env.get(variable, "")) in found:
            return name, found[name]
    # An interface may have more addresses than the one that is found.
    names = (name for name, address in (*found.items(), *_ipv4()) if address == own)
    return next(names, "lo"), own


NO_LOOPBACK = (
    "this machine does not reach itself at {address} ({error}), as ranks need it to, also where "
    "all else is IPv6: `ip link set lo up` in its container or network namespace, as root"
)
