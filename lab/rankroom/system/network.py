"""The address at which other nodes reach this machine, and the interface that has it."""

from __future__ import annotations

import contextlib
import errno
import ipaddress
import os
import socket
from collections.abc import Iterable, Mapping

import psutil

from rankroom.errors import StartError

LOOPBACK = "127.0.0.1"
LOOPBACK_TIMEOUT_S = 5.0
INTERFACE_VARIABLES = (
    "GLOO_SOCKET_IFNAME",
    "HOROVOD_GLOO_IFACE",
)  # where a user or a site names the interface


def here() -> str:
    """Return the name of this node: Slurm's or, outside a job, the machine's own."""
    return os.environ.get("SLURMD_NODENAME") or socket.gethostname().partition(".")[0]


def towards(nodes: Iterable[str]) -> str:
    """Return the address at which `nodes` reach this machine; loopback if it is the only one.

    Never a wildcard, on which a socket is open to everything that reaches this machine. Where they
    cannot be reached by their names from here, it is the address of this machine's own name. Raises
    OSError if none is found.
    """
    others = [node for node in nodes if node != here()]
    failed: OSError | None = None
    for node in others:
        try:
            return own_address(node)
        except OSError as error:
            failed = failed or error
    if failed is None:
        return LOOPBACK
    with contextlib.suppress(OSError):
        own = own_address(socket.gethostname())
        if not ipaddress.ip_address(own).is_loopback:
            return own
    raise OSError(failed.errno, NO_WAY.format(host=others[0], error=failed.strerror))


def demand_loopback() -> None:
    """Raise StartError if this machine does not reach itself, as its processes must. Raises OSError
    if that cannot be tested."""
    try:
        with socket.create_server((LOOPBACK, 0)) as door:
            socket.create_connection(door.getsockname(), LOOPBACK_TIMEOUT_S).close()
    except OSError as error:
        if error.errno in (errno.EMFILE, errno.ENFILE):
            raise  # that says nothing about loopback
        raise StartError(NO_LOOPBACK.format(address=LOOPBACK, error=error)) from None


def own_address(host: str) -> str:
    """Return the source address of packets to `host`. Nothing is sent."""
    family, kind, _, _, address = socket.getaddrinfo(
        host, 9, family=socket.AF_INET, type=socket.SOCK_DGRAM
    )[0]
    with socket.socket(family, kind) as probe:
        probe.connect(address)
        return str(probe.getsockname()[0])


def bound_address(host: str, bound: str) -> str:
    """Return `bound` if `host` names this machine: a socket for all its addresses is bound to that
    one instead. Return `host` if it names another machine, or none."""
    return bound if is_this_machine(host) else host


def is_this_machine(host: str) -> bool:
    """Return whether `host`, a name or an address, has an address of this machine; False for a name
    that cannot be resolved."""
    try:
        found = {each[4][0] for each in socket.getaddrinfo(host, None, type=socket.SOCK_STREAM)}
    except (OSError, UnicodeError):
        return False
    own = all_addresses()
    return any(each in own or ipaddress.ip_address(each).is_loopback for each in map(_plain, found))


def all_addresses() -> set[str]:
    """Return this machine's IPv4 and IPv6 addresses; all of 127.0.0.0/8 is its own as well."""
    return {_plain(each.address) for all_ in psutil.net_if_addrs().values() for each in all_}


def _plain(address: object) -> str:
    return str(address).partition("%")[0]


def interfaces() -> dict[str, str]:
    """Return the IPv4 address of each interface; the first if it has several."""
    return dict(reversed(_ipv4()))


def outer_addresses() -> list[str]:
    """Return the IPv4 addresses by which other machines may know this one."""
    return [each for _, each in _ipv4() if not ipaddress.ip_address(each).is_loopback]


def _ipv4() -> list[tuple[str, str]]:
    """Return all IPv4 addresses, each as a pair with its interface."""
    return [
        (name, str(each.address))
        for name, all_ in psutil.net_if_addrs().items()
        for each in all_
        if each.family == socket.AF_INET
    ]


def choose(own: str, found: Mapping[str, str], env: Mapping[str, str]) -> tuple[str, str]:
    """Return the interface and address for a rank's data: the user's choice, or those of `own`.

    `own` is the address from which this node reaches the supervisor.
    """
    for variable in INTERFACE_VARIABLES:
        if (name := env.get(variable, "")) in found:
            return name, found[name]
    # An interface may have more addresses than the one in `found`.
    names = (name for name, address in (*found.items(), *_ipv4()) if address == own)
    return next(names, "lo"), own


NO_LOOPBACK = (
    "this machine cannot connect to itself at {address} ({error}), which ranks require even on an "
    "IPv6 network: as root, run `ip link set lo up` in its container or network namespace"
)
NO_WAY = (
    "no address of this node is found by which {host} could reach it ({error}): this node has to "
    "resolve that name, or its own to an address that is not loopback"
)
