"""The environment of a rank: all frameworks' at once, so that none needs a launcher."""

from __future__ import annotations

import socket
from collections.abc import Mapping
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
    """How the ranks of one host reach each other: addresses chosen once, when a cluster starts."""

    address: str
    interface: str
    host: str
    master_port: int
    worker_ports: tuple[int, ...]


def wire_locally(size: int) -> Wiring:
    """Loopback addresses for `size` ranks on this machine."""
    ports = free_ports(size + 1)
    return Wiring("127.0.0.1", "lo", "localhost", ports[0], tuple(ports[1:]))


def rank_environment(
    rank: int, size: int, wiring: Wiring, devices: int, cores: int, own: Mapping[str, str]
) -> dict[str, str]:
    """What `rank` of `size` on one host finds set.

    `devices` GPUs are visible to every rank and its own is its local_rank, as tutorials expect;
    `cores` are shared out unless the user's own environment `own` already limits threads.
    """
    share = max(1, cores // size)
    env = {
        "RANKROOM_RANK": str(rank),
        "RANKROOM_SIZE": str(size),
        "RANKROOM_DEVICE": f"cuda:{rank % devices}" if devices else "cpu",
        "PYTHONUNBUFFERED": "1",
        # A crash in C says where: the stack goes to the rank's log.
        "PYTHONFAULTHANDLER": "1",
    }
    env |= horovod.environment(rank, size, rank, size, 0, 1, wiring.host, wiring.interface)
    env |= torch.environment(
        rank, size, rank, size, wiring.address, wiring.master_port, wiring.interface
    )
    workers = [f"{wiring.address}:{port}" for port in wiring.worker_ports]
    env |= tensorflow.environment(rank, workers)
    if not any(variable in own for variable in _THREAD_VARIABLES):
        env |= dict.fromkeys(_THREAD_VARIABLES, str(share)) | tensorflow.threads(share)
    return env


def free_ports(count: int) -> list[int]:
    """Ports nobody listens on now. All are held open together, so that no two are the same."""
    sockets = [socket.socket() for _ in range(count)]
    try:
        for each in sockets:
            each.bind(("127.0.0.1", 0))
        return [int(each.getsockname()[1]) for each in sockets]
    finally:
        for each in sockets:
            each.close()
