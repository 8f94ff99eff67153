"""How long a start may take, and what it is waiting for."""

from __future__ import annotations

from collections.abc import Sequence

from rankroom import config
from rankroom.record.cluster_file import ClusterInfo
from rankroom.supervisor.processes.agent_process import AgentProcess
from rankroom.system import control_groups

START_TIMEOUT_S = 30.0  # for an agent, including its imports
JOB_START_TIMEOUT_S = 90.0  # the same on the nodes of an allocation, whose file system may be slow
START_TIMEOUT_PER_RANK_S = 2.0  # more for each rank that shares a core


def seconds(info: ClusterInfo) -> float:
    """Return the time limit until all ranks are ready: longer, the more of them share a core."""
    if info.allocation is None:
        most = info.size / control_groups.cores()
        return config.start_seconds(START_TIMEOUT_S + START_TIMEOUT_PER_RANK_S * most)
    most = max(node.ranks / max(1, node.cores) for node in info.allocation.nodes)
    return config.start_seconds(JOB_START_TIMEOUT_S + START_TIMEOUT_PER_RANK_S * most)


def words(agents: Sequence[AgentProcess]) -> str:
    """Return what agents that are not ready yet are doing: `the agent of c2 imports torch`."""
    waiting = [agent for agent in agents if not agent.place]
    if not waiting:
        return ""
    where = f"the agent of {waiting[0].node} {waiting[0].doing}"
    return where if len(waiting) == 1 else f"{where} ({len(waiting)} of {len(agents)} nodes)"
