"""The environment variables of a rank, those of all frameworks, so that none needs a launcher."""

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

# Modules that are safe to import before a fork: they start no threads and open no devices.
FORK_SAFE_MODULES = ("numpy", "torch", "horovod.torch")
# Number of ranks on each node, set if there are several nodes.
NODE_RANKS_VARIABLE = "RANKROOM_NODE_RANKS"
FIRST_PREFERRED_PORT = 10240
EPHEMERAL_PORT_RANGE_FILE = Path("/proc/sys/net/ipv4/ip_local_port_range")


@dataclass(frozen=True)
class Wiring:
    """How ranks reach each other: addresses chosen once, when a cluster starts.

    `address`, `interface` and `host` are a rank's own; `addresses` are those of all ranks, if they
    differ.
    """

    address: str
    interface: str
    host: str
    master_port: int
    worker_ports: tuple[int, ...]
    addresses: tuple[str, ...] = ()


@dataclass(frozen=True)
class Position:
    """A rank's position on its node (local), and among the ranks with its local rank (cross)."""

    local_rank: int
    local_size: int
    cross_rank: int = 0
    cross_size: int = 1
    node: int = 0
    nodes: int = 1


def positions(counts: Sequence[int]) -> list[Position]:
    """Return the positions of all ranks, node by node; `counts` has the ranks of each node."""
    found = []
    counts = [each for each in counts if each]
    for node, count in enumerate(counts):
        for local in range(count):
            others = [each > local for each in counts]
            cross = sum(others[:node]), sum(others)
            found.append(Position(local, count, *cross, node, len(counts)))
    return found


def count_ranks_by_node(size: int, counts: Sequence[int]) -> list[int]:
    """Return how many of the first `size` ranks each node has; `counts` has the ranks in all."""
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
    """Return the variables of `rank` of `size`; without a `position`, all ranks are on one host.

    Every rank sees all `devices` GPUs and uses the one of its local_rank, as tutorials expect; of
    MIG instances, each rank sees its own only. `cores` are divided among the ranks of the node,
    unless the user's own environment `own` already limits threads.
    """
    position = position or Position(rank, size)
    share = max(1, cores // position.local_size)
    addresses = wiring.addresses or (wiring.address,) * len(wiring.worker_ports)
    env = {
        "RANKROOM_RANK": str(rank),
        "RANKROOM_SIZE": str(size),
        "RANKROOM_DEVICE": device(position.local_rank, devices),
        "PYTHONUNBUFFERED": "1",
        # A crash in C code writes its stack to the rank's log.
        "PYTHONFAULTHANDLER": "1",
    }
    if devices and (mine := gpus.own_instance(own.get(gpus.VISIBLE, ""), position.local_rank)):
        env |= {gpus.VISIBLE: mine, "RANKROOM_DEVICE": "cuda:0"}
    env |= horovod_adapter.environment(
        rank, size, position.local_rank, position.local_size, position.cross_rank,
        position.cross_size, wiring.host, wiring.interface,
    )  # fmt: skip
    if not any(name.startswith("HOROVOD_STALL_") for name in own):
        env["HOROVOD_STALL_CHECK_DISABLE"] = "1"  # the view under the cell reports stalls
    if timeline := own.get("HOROVOD_TIMELINE"):
        env["HOROVOD_TIMELINE"] = timeline  # a file that the user asked for
    env |= torch_adapter.environment(
        rank, size, position.local_rank, position.local_size, position.node, position.nodes,
        addresses[0], wiring.master_port, wiring.interface,
    )  # fmt: skip
    if wiring.interface != "lo" and (chosen := own.get("TP_SOCKET_IFNAME")):
        env["TP_SOCKET_IFNAME"] = chosen  # between nodes, the user's or the site's choice
    env |= {
        name: value
        for name, value in _nccl(rank, size, wiring, devices, position, own).items()
        if name not in own
    }
    if not devices and "ACCELERATE_USE_CPU" not in own:
        # Without a GPU, each rank would train on its own under Accelerate and transformers.
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
    """Return NCCL's variables: the interface for ranks of one machine, and what lets them share
    a GPU."""
    env = {}
    if devices and position.local_size == size:
        # By itself, NCCL prefers interfaces that other machines can reach, and loopback is last.
        env["NCCL_SOCKET_IFNAME"] = f"={wiring.interface}"
    is_split = bool(gpus.own_instance(own.get(gpus.VISIBLE, ""), position.local_rank))
    if 0 < devices < position.local_size or (devices and is_split):
        # NCCL refuses two ranks on one GPU of a host, even on two MIG instances of it. With these
        # ids, each rank appears to be on a host of its own.
        env["NCCL_HOSTID"] = f"{wiring.host}-{rank}"
    return env


def device(local_rank: int, devices: int) -> str:
    """Return the device of a rank on a node with `devices` GPUs."""
    return f"cuda:{local_rank % devices}" if devices else "cpu"


def free_ports(count: int, address: str = "127.0.0.1") -> list[int]:
    """Return `count` free ports. All are open at the same time here, so no two are the same.

    As they may be used minutes later, ports outside the system's ephemeral range are preferred:
    the system does not give these to other programs meanwhile.
    """
    own = range(FIRST_PREFERRED_PORT, max(FIRST_PREFERRED_PORT, _first_given()))
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
    """Return the first port of the range that the system gives to programs that ask for any."""
    try:
        return int(EPHEMERAL_PORT_RANGE_FILE.read_text().split()[0])
    except (OSError, ValueError, IndexError):
        return 32768
