"""The environment of a rank: all frameworks' at once, so that none needs a launcher."""

from __future__ import annotations

import socket
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from rankroom.rank import horovod, tensorflow, torch

_THREAD_VARIABLES = (
    "OMP_NUM_THREADS",
    "MKL_NUM_THREADS",
    "OPENBLAS_NUM_THREADS",
    "NUMEXPR_NUM_THREADS",
)


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
class Seat:
    """A rank's place among all: on its node (local), and among those of its place (cross)."""

    local_rank: int
    local_size: int
    cross_rank: int = 0
    cross_size: int = 1


def seats(counts: Sequence[int]) -> list[Seat]:
    """The seats of all ranks, node by node, on nodes with so many ranks each."""
    found = []
    for node, count in enumerate(counts):
        for local in range(count):
            others = [each > local for each in counts]
            found.append(Seat(local, count, sum(others[:node]), sum(others)))
    return found


def wire_locally(size: int) -> Wiring:
    """Loopback addresses for `size` ranks on this machine."""
    ports = free_ports(size + 1)
    return Wiring("127.0.0.1", "lo", "localhost", ports[0], tuple(ports[1:]))


def rank_environment(
    rank: int,
    size: int,
    wiring: Wiring,
    devices: int,
    cores: int,
    own: Mapping[str, str],
    seat: Seat | None = None,
) -> dict[str, str]:
    """What `rank` of `size` finds set; all are on one host without a `seat`.

    `devices` GPUs are visible to every rank and its own is its local_rank, as tutorials expect;
    `cores` are shared out unless the user's own environment `own` already limits threads.
    """
    seat = seat or Seat(rank, size)
    share = max(1, cores // seat.local_size)
    addresses = wiring.addresses or (wiring.address,) * len(wiring.worker_ports)
    env = {
        "RANKROOM_RANK": str(rank),
        "RANKROOM_SIZE": str(size),
        "RANKROOM_DEVICE": device(seat.local_rank, devices),
        "PYTHONUNBUFFERED": "1",
        # A crash in C says where: the stack goes to the rank's log.
        "PYTHONFAULTHANDLER": "1",
    }
    env |= horovod.environment(
        rank, size, seat.local_rank, seat.local_size, seat.cross_rank, seat.cross_size,
        wiring.host, wiring.interface,
    )  # fmt: skip
    env |= torch.environment(
        rank, size, seat.local_rank, seat.local_size, addresses[0], wiring.master_port,
        wiring.interface,
    )  # fmt: skip
    pairs = zip(addresses, wiring.worker_ports, strict=True)
    workers = [f"{address}:{port}" for address, port in pairs]
    env |= tensorflow.environment(rank, workers)
    if not any(variable in own for variable in _THREAD_VARIABLES):
        env |= dict.fromkeys(_THREAD_VARIABLES, str(share)) | tensorflow.threads(share)
    return env


def device(local_rank: int, devices: int) -> str:
    """The device of a rank on a node with so many GPUs."""
    return f"cuda:{local_rank % devices}" if devices else "cpu"


def free_ports(count: int, address: str = "127.0.0.1") -> list[int]:
    """Ports nobody listens on now. All are held open together, so that no two are the same."""
    sockets = [socket.socket() for _ in range(count)]
    try:
        for each in sockets:
            each.bind((address, 0))
        return [int(each.getsockname()[1]) for each in sockets]
    finally:
        for each in sockets:
            each.close()
