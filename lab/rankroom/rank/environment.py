"""The environment of a rank: all frameworks' at once, so that none needs a launcher."""

from __future__ import annotations

import itertools
import random
import socket
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from rankroom.rank.frameworks.horovod import horovod_adapter
from rankroom.rank.frameworks.tensorflow import tensorflow_adapter
from rankroom.rank.frameworks.torch import torch_adapter
from rankroom.system import gpus

_THREAD_VARIABLES = (
    "OMP_NUM_THREADS",
    "MKL_NUM_THREADS",
    "OPENBLAS_NUM_THREADS",
    "NUMEXPR_NUM_THREADS",
)

# Modules that are as good in a forked process as where they were imported: no threads, no devices.
PRELOADABLE = ("numpy", "torch", "horovod.torch")
NODE_RANKS = "RANKROOM_NODE_RANKS"  # how many ranks each node has, where there are several
FIRST_PORT = 10240
GIVEN_PORTS = Path("/proc/sys/net/ipv4/ip_local_port_range")


@dataclass(frozen=True)
class Wiring:
    """How ranks reach each other: addresses chosen once, when a cluster starts.

    `address`, `interface` and `host` are a rank's own; `addresses` are those of all ranks, where
    they are not all the same.
    """

    address: str
    interface: str
    host: str
    master_port: int
    worker_ports: tuple[int, ...]
    addresses: tuple[str, ...] = ()


@dataclass(frozen=True)
class Position:
    """A rank's place among all: on its node (local), and among those of its place (cross)."""

    local_rank: int
    local_size: int
    cross_rank: int = 0
    cross_size: int = 1
    node: int = 0
    nodes: int = 1


def positions(counts: Sequence[int]) -> list[Position]:
    """The positions of all ranks, node by node, on nodes with so many ranks each."""
    found = []
    counts = [each for each in counts if each]
    for node, count in enumerate(counts):
        for local in range(count):
            others = [each > local for each in counts]
            cross = sum(others[:node]), sum(others)
            found.append(Position(local, count, *cross, node, len(counts)))
    return found


def of_the_first(size: int, counts: Sequence[int]) -> list[int]:
    """How many ranks each node has of the first `size`, where they have so many in all."""
    before = [sum(counts[:node]) for node in range(len(counts))]
    return [max(0, min(count, size - first)) for count, first in zip(counts, before, strict=True)]


def rank_environment(
    rank: int,
    size: int,
    wiring: Wiring,
    devices: int,
    cores: int,
    own: Mapping[str, str],
    position: Position | None = None,
) -> dict[str, str]:
    """What `rank` of `size` finds set; all are on one host without a `position`.

    `devices` GPUs are visible to every rank and its own is its local_rank, as tutorials expect;
    of instances of MIG each sees its own only. `cores` are shared out unless the user's own
    environment `own` already limits threads.
    """
    position = position or Position(rank, size)
    share = max(1, cores // position.local_size)
    addresses = wiring.addresses or (wiring.address,) * len(wiring.worker_ports)
    env = {
        "RANKROOM_RANK": str(rank),
        "RANKROOM_SIZE": str(size),
        "RANKROOM_DEVICE": device(position.local_rank, devices),
        "PYTHONUNBUFFERED": "1",
        # A crash in C says where: the stack goes to the rank's log.
        "PYTHONFAULTHANDLER": "1",
    }
    if devices and (mine := gpus.own_instance(own.get(gpus.VISIBLE, ""), position.local_rank)):
        env |= {gpus.VISIBLE: mine, "RANKROOM_DEVICE": "cuda:0"}
    env |= horovod_adapter.environment(
        rank, size, position.local_rank, position.local_size, position.cross_rank,
        position.cross_size, wiring.host, wiring.interface,
    )  # fmt: skip
    if not any(name.startswith("HOROVOD_STALL_") for name in own):
        env["HOROVOD_STALL_CHECK_DISABLE"] = "1"  # who waits for whom is said under the cell
    if timeline := own.get("HOROVOD_TIMELINE"):
        env["HOROVOD_TIMELINE"] = timeline  # a file that the user wants
    env |= torch_adapter.environment(
        rank, size, position.local_rank, position.local_size, position.node, position.nodes,
        addresses[0], wiring.master_port, wiring.interface,
    )  # fmt: skip
    if wiring.interface != "lo" and (chosen := own.get("TP_SOCKET_IFNAME")):
        env["TP_SOCKET_IFNAME"] = chosen  # between nodes, as the user or the site wants it
    env |= {
        name: value
        for name, value in _nccl(rank, size, wiring, devices, position, own).items()
        if name not in own
    }
    if not devices and "ACCELERATE_USE_CPU" not in own:
        # Without a GPU, Accelerate and transformers would have each rank train for itself.
        env["ACCELERATE_USE_CPU"] = "true"
    pairs = zip(addresses, wiring.worker_ports, strict=True)
    workers = [f"{address}:{port}" for address, port in pairs]
    env |= tensorflow_adapter.environment(rank, workers)
    if not any(variable in own for variable in _THREAD_VARIABLES):
        shares = dict.fromkeys(_THREAD_VARIABLES, str(share)) | tensorflow_adapter.threads(share)
        env |= {name: value for name, value in shares.items() if name not in own}
    return env


def _nccl(
    rank: int, size: int, wiring: Wiring, devices: int, position: Position, own: Mapping[str, str]
) -> dict[str, str]:
    """What NCCL reads: which interface ranks of one machine meet on, and how they share a GPU."""
    env = {}
    if devices and position.local_size == size:
        # Its own choice is one that other machines reach, loopback being its last.
        env["NCCL_SOCKET_IFNAME"] = f"={wiring.interface}"
    is_split = bool(gpus.own_instance(own.get(gpus.VISIBLE, ""), position.local_rank))
    if 0 < devices < position.local_size or (devices and is_split):
        # It refuses two ranks on one GPU of a host, also on two instances of MIG of one, and has no
        # objection to hosts of one rank each.
        env["NCCL_HOSTID"] = f"{wiring.host}-{rank}"
    return env


def device(local_rank: int, devices: int) -> str:
    """The device of a rank on a node with so many GPUs."""
    return f"cuda:{local_rank % devices}" if devices else "cpu"


def free_ports(count: int, address: str = "127.0.0.1") -> list[int]:
    """Ports on which nothing listens now. All are open together, so that no two are the same.

    They may be used minutes later. Where possible they are none that the system gives meanwhile to
    others that ask it for any port.
    """
    own = range(FIRST_PORT, max(FIRST_PORT, _first_given()))
    ports = itertools.chain(random.sample(own, min(len(own), 100 * count)), itertools.repeat(0))
    sockets: list[socket.socket] = []
    try:
        while len(sockets) < count:
            each = socket.socket()
            sockets.append(each)
            port = next(ports)
            try:
                each.bind((address, port))
            except OSError:
                if port == 0:
                    raise
                sockets.remove(each)
                each.close()
        return [int(each.getsockname()[1]) for each in sockets]
    finally:
        for each in sockets:
            each.close()


def _first_given() -> int:
    """The first of the ports that the system gives to programs that ask for any."""
    try:
        return int(GIVEN_PORTS.read_text().split()[0])
    except (OSError, ValueError, IndexError):
        return 32768
