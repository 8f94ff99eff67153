"""The ranks of one node: where they are, and the environment of each of them."""

from __future__ import annotations

import itertools
import os
import socket
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from rankroom.errors import UnreadableError
from rankroom.rank.environment import (
    NODE_RANKS_VARIABLE,
    Wiring,
    device,
    free_ports,
    positions,
    rank_environment,
)
from rankroom.record.cluster_file import ClusterInfo, ClusterPaths, Node
from rankroom.system import control_groups, network, preloaded, process_tree

BIND, PEERS = "RANKROOM_BIND", "RANKROOM_PEERS"  # as rank/native/port_guard.c reads them


class NodeRanks:
    """The ranks of the node at index `node` of an allocation; without one, all ranks are here, and
    have `devices` GPUs.

    The addresses and ports on other nodes are unknown until `wire` is called.
    """

    def __init__(self, info: ClusterInfo, paths: ClusterPaths, node: int, devices: int) -> None:
        self._info = info
        self._paths = paths
        self._number = node
        self._own = dict(os.environ)  # before it is the first rank's, for the import of modules
        allocation = info.allocation
        self.is_remote = allocation is not None
        in_slurm = allocation is not None and allocation.scheduler == "slurm"
        cores = control_groups.cores()
        nodes = allocation.nodes if allocation else (Node("", info.size, devices, cores),)
        self._node = nodes[node]
        self._slurm_step = slurm_step(nodes) if in_slurm else {}
        self._cores = min(cores, self._node.cores)
        self._counts = [each.ranks for each in nodes]
        self._positions = positions(self._counts)
        first = sum(each.ranks for each in nodes[:node])
        self.ranks = range(first, first + self._node.ranks)
        interface, address, host = "lo", network.LOOPBACK, "localhost"
        own = address  # as the supervisor sees it
        if self.is_remote:
            own = network.own_address(info.rpc.removeprefix("tcp://").rpartition(":")[0])
            interface, address = network.choose(own, network.interfaces(), os.environ)
            host = socket.gethostname()
        self._peers = [address]
        unknown = (0,) * info.size
        self._wiring = Wiring(address, interface, host, 0, unknown, (address,) * info.size)
        # For torch's store, if the first rank is here, and for each rank's TensorFlow.
        ports = free_ports(1 + len(self.ranks), address)
        self.place: dict[str, Any] = {
            "host": socket.gethostname(), "at": address, "own": own, "ports": ports,
            # NCCL chooses among a node's interfaces itself, and may use several.
            "all": network.outer_addresses(),
        }  # fmt: skip

    @property
    def lease_s(self) -> float:
        """How long the cluster may stay unused."""
        return self._info.lease * 3600

    def are_over(self) -> bool:
        """Return whether the supervisor has recorded that the cluster is over, or another cluster
        has its name; False if that cannot be read."""
        try:
            info = self._paths.read()
        except UnreadableError:
            return False
        if info is None or info.state in ("failed", "stopped"):
            return True
        return info.rpc_key != self._info.rpc_key

    def wire(
        self, addresses: list[str], ports: list[int], master_port: int, of_nodes: list[list[str]]
    ) -> None:
        """Set where all ranks are, and which addresses each node has."""
        own = self._wiring
        others = (each for node, each in enumerate(of_nodes) if node != self._number)
        self._peers = sorted({*addresses, *itertools.chain(*others)})
        self._wiring = Wiring(
            own.address, own.interface, own.host, master_port, tuple(ports), tuple(addresses)
        )

    def environment(self, rank: int, start: int) -> dict[str, str]:
        """Return the variables of a rank that its agent does not have, or has otherwise."""
        position = self._positions[rank]
        env = rank_environment(
            rank, self._info.size, self._wiring, self._node.devices, self._cores, self._own,
            position,
        )  # fmt: skip
        env |= {
            process_tree.SPOOL_MARK: self.spool(rank),
            process_tree.START_MARK: str(start),
            process_tree.JOB_MARK: process_tree.job(os.environ),
            "RANKROOM_RPC": self._info.rpc,
            "RANKROOM_RPC_KEY": self._info.rpc_key,
            BIND: self._wiring.address,
            # On one machine, no connections come from elsewhere.
            PEERS: ",".join(self._peers) if self.is_remote else "",
        } | preloaded.without_missing(self._own)
        if len(self._counts) > 1:
            env[NODE_RANKS_VARIABLE] = ",".join(map(str, self._counts))
        if self._slurm_step:
            env |= self._slurm_step | {
                "SLURM_PROCID": str(rank),
                "SLURM_LOCALID": str(position.local_rank),
                "SLURM_NODEID": str(position.node),
            }
        return env

    def options(self, rank: int) -> list[str]:
        """Return the options of a rank's command."""
        return [
            f"--profile-dir={self._paths.profile}", f"--file={self._paths.engine_file}",
            f"--IPEngine.id={rank}", "--IPEngine.wait_for_url_file=30",
            "--IPEngine.timeout=20", "--IPEngine.enable_nanny=False", "--log-level=WARN",
            # A silent controller is no reason to end: a rank ends with its agent.
            "--IPEngine.max_heartbeat_misses=0",
        ]  # fmt: skip

    def log(self, rank: int) -> Path:
        return self._paths.rank_log(rank)

    def spool(self, rank: int) -> str:
        return str(self._paths.spool(rank))

    def device(self, rank: int) -> str:
        return device(self._positions[rank].local_rank, self._node.devices)


def slurm_step(nodes: Sequence[Node]) -> dict[str, str]:
    """Return the variables for libraries that expect one `srun` for all ranks, such as TensorFlow's
    SlurmClusterResolver and JAX: here, each node's agent has a step of its own."""
    used = [node for node in nodes if node.ranks]
    size = str(sum(node.ranks for node in used))
    return {
        "SLURM_NTASKS": size,
        "SLURM_NPROCS": size,
        "SLURM_STEP_NUM_TASKS": size,
        "SLURM_STEP_NUM_NODES": str(len(used)),
        "SLURM_STEP_NODELIST": ",".join(node.name for node in used),
        "SLURM_STEP_TASKS_PER_NODE": ",".join(str(node.ranks) for node in used),
    }
