"""A rank on a node of the allocation, from where it starts to where it ends.

`python -m rankroom.agent.node_start` is one task of a step. It reads the cluster's key from the
cluster's folder, which only the user can read; says where it is; hears where the others are; and
becomes a rank like any other.
"""

from __future__ import annotations

import contextlib
import os
import socket
import time
from pathlib import Path
from typing import Any

from rankroom.agent.orphan_check import ask_supervisor
from rankroom.rank.environment import Position, Wiring, free_ports, positions, rank_environment
from rankroom.record.cluster_file import ClusterInfo, ClusterPaths
from rankroom.system import network, process_tree

PLACED_S = 60.0  # for all the ranks to start


def main() -> None:
    """Start this process as the rank that its environment names."""
    folder = Path(os.environ[process_tree.CLUSTER])
    info = ClusterPaths(folder.name, folder.parent).read()
    if info is None:
        raise SystemExit(f"no cluster.json in {folder}: is the folder on a shared file system?")
    # mpiexec and containers have a working directory of their own, and ipyparallel keeps the one
    # that it was imported in.
    with contextlib.suppress(OSError):
        os.chdir(info.cwd)
    # Before the ranks meet, as it takes longest, and all ranks do it at the same time.
    from rankroom.rank import engine

    os.environ.update(RANKROOM_RPC=info.rpc, RANKROOM_RPC_KEY=info.rpc_key)
    os.environ.update(placed(info, int(os.environ["RANKROOM_RANK"])))
    engine.main()


def placed(info: ClusterInfo, rank: int) -> dict[str, str]:
    """Tell where this rank is, wait for the others, and return what it finds set."""
    assert info.allocation is not None
    nodes = info.allocation.nodes
    position = positions([node.ranks for node in nodes])[rank]
    own = network.own_address(info.rpc.removeprefix("tcp://").rpartition(":")[0])
    interface, address = network.choose(own, network.interfaces(), os.environ)
    host = socket.gethostname()
    ports = free_ports(2, address)
    all_ = _place_rank(rank, host=host, pid=os.getpid(), at=address, ports=ports)
    node = [node for node in nodes for _ in range(node.ranks)][rank]
    wiring = Wiring(
        address, interface, host, all_["master_port"], tuple(all_["ports"]),
        tuple(all_["addresses"]),
    )  # fmt: skip
    cores = min(len(os.sched_getaffinity(0)), node.cores)
    # What the library reads that closes ports to strangers (rank/native/port_guard.c).
    guarded = {"RANKROOM_BIND": address, "RANKROOM_PEERS": ",".join(sorted(set(all_["addresses"])))}
    found = guarded | rank_environment(
        rank, info.size, wiring, node.devices, cores, os.environ, position
    )
    if info.allocation.scheduler == "slurm":
        found |= in_slurm(rank, info.size, position)
    return found


def in_slurm(rank: int, size: int, position: Position) -> dict[str, str]:
    """What libraries read that take themselves to be started by one `srun` for all ranks."""
    return {
        "SLURM_PROCID": str(rank),
        "SLURM_LOCALID": str(position.local_rank),
        "SLURM_NTASKS": str(size),
        "SLURM_NPROCS": str(size),
    }


def _place_rank(rank: int, **where: Any) -> dict[str, Any]:
    deadline = time.monotonic() + PLACED_S
    while time.monotonic() < deadline:
        answer = ask_supervisor("place", 30.0, **where)
        if not answer["kept"]:
            raise SystemExit(f"rank {rank} does not belong to the cluster any more")
        if "addresses" in answer:
            return answer
    raise SystemExit(f"rank {rank}: not all other ranks started within {PLACED_S:.0f} s")


if __name__ == "__main__":
    main()
