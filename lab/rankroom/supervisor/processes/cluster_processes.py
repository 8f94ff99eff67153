"""The processes of a cluster: its controller, and on each node an agent with the node's ranks.

Each process on this machine is in a session of its own, and is ended with all it has started.
"""

from __future__ import annotations

import os
import subprocess
import time
from collections import defaultdict
from collections.abc import Callable, Collection, Iterable, Sequence
from concurrent.futures import Future

import psutil

from rankroom.agent.forking import NO_PRELOAD
from rankroom.agent.node_ranks import BIND
from rankroom.rank.environment import device, positions
from rankroom.record.cluster_file import ClusterInfo, ClusterPaths, Node
from rankroom.record.model import RankInfo
from rankroom.scheduler import step_launcher
from rankroom.supervisor.processes import port_guard
from rankroom.supervisor.processes.agent_process import (
    GIVEN_UP,
    NOT_STARTED,
    AgentProcess,
    RankProcess,
)
from rankroom.supervisor.processes.load import Load
from rankroom.system import control_groups, network, process_tree, python_command
from rankroom.system.exits import describe_crash, describe_exit

STOP_TIMEOUT_S = 5.0  # timeout for agents to end their ranks and themselves, before they are killed
# Timeout for an agent to end ranks that are restarted, before it is given up.
RESTART_TIMEOUT_S = 6.0
SILENCE_TIMEOUT_S = 20.0  # a node that reports nothing for so long may be cut off
# The same until its ranks are ready: while they start, it may be too busy.
STARTING_SILENCE_TIMEOUT_S = 60.0
# Without a check, though many are due each second: this process was suspended.
SUSPENDED_AFTER_S = 2.0


class Processes:
    """Controller, agents and ranks; `info` says where ranks reach their supervisor.

    `hear()` is called, from any thread, when one of them has ended or reported something.
    """

    controller: subprocess.Popen[bytes]

    def __init__(
        self, paths: ClusterPaths, info: ClusterInfo, devices: int, hear: Callable[[], None]
    ) -> None:
        self.paths = paths
        self.info = info
        self._devices = devices
        self._hear = hear
        here = Node(info.host, info.size, devices, control_groups.cores())
        self.nodes = info.allocation.nodes if info.allocation else (here,)
        self._node_of = [i for i, node in enumerate(self.nodes) for _ in range(node.ranks)]
        self._positions = positions([node.ranks for node in self.nodes])
        others = [node.name for node in self.nodes] if info.allocation else []
        self.address = network.towards([*others, *filter(None, [info.reached_from])])
        self.agents: list[AgentProcess] = []
        self.starts: dict[int, int] = {}  # how often each rank was started
        self.born: dict[int, float] = {}
        self.ranks: dict[int, RankProcess] = {}
        self._modules: Sequence[str] = ()
        self._begun = 0  # how many agents were started in all
        self._wiring: dict[str, object] = {}
        self._looked = time.monotonic()

    # -- where ranks run, and their state

    def places(self) -> list[RankInfo]:
        """Return where each rank runs."""
        return [self._place(rank) for rank in sorted(self.ranks)]

    def addresses(self) -> set[str]:
        """Return the addresses from which ranks connect: their nodes', towards us and for data."""
        places = [agent.place for agent in self.agents]
        return {place[what] for place in places for what in ("at", "own") if what in place}

    def _place(self, rank: int) -> RankInfo:
        node, local = self.nodes[self._node_of[rank]], self._positions[rank].local_rank
        host = self.agents[self._node_of[rank]].place.get("host", node.name)
        return RankInfo(
            rank, host, self.ranks[rank].pid, device(local, node.devices), local_rank=local
        )

    def how_ended(self, rank: int) -> str:
        """Return how the process of a rank ended, in words."""
        process, agent = self.ranks[rank], self.agents[self._node_of[rank]]
        code = process.returncode or 0
        if process.failed:
            return NOT_STARTED.format(error=process.failed)
        if process.ended_with_agent:
            if self.info.allocation and step_launcher.failed_node(agent.log) == agent.node:
                # Slurm gave up the node before we did: its ranks may stay alive for a while.
                return f"{GIVEN_UP}: its node {agent.node} has failed"
            if agent.refused:  # an agent that was started again for this rank
                return f"was not started: {agent.refused}"
            return f"ended with its node's agent, which {self.how_agent_ended(agent)}"
        how = describe_exit(code)
        if crash := describe_crash(code, self.paths.spool(rank) / "stderr"):
            how = f"{how}: {crash}"
        if process.words:
            return f"{how}; {process.words}"
        return self._as_scheduler_says(how, agent) if code < 0 else how

    def how_agent_ended(self, agent: AgentProcess) -> str:
        """Return how an agent ended, in words; "does not answer" if its process has not."""
        code = agent.process.poll()
        if code is None:
            return "does not answer"
        if self.info.allocation is not None:
            code = step_launcher.returncode(code)
        return self._as_scheduler_says(describe_exit(code), agent)

    def _as_scheduler_says(self, how: str, agent: AgentProcess) -> str:
        if self.info.allocation is None:
            return how
        return step_launcher.how_ended(how, agent.log, agent.node, self.info.allocation.job)

    def look(self) -> list[Future[dict[int, Load]]]:
        """Ask for the load of ranks, node by node."""
        return [agent.look() for agent in self.agents]

    def signal(self, ranks: Collection[int], name: str) -> list[Future[None]]:
        """Send a signal to the processes of ranks; all futures are done once it was sent.

        Ranks of silent nodes are skipped: a signal would arrive late, and hit the wrong cell.
        """
        by_agent = self._by_agent(ranks)
        return [agent.signal(its, name) for agent, its in by_agent if not agent.is_silent]

    # -- starting

    def start_controller(self) -> None:
        argv = [
            *python_command.command("rankroom.supervisor.processes.controller"),
            f"--profile-dir={self.paths.profile}",
            f"--ip={self.address}", f"--location={self.address}",
            # Encrypted, and closed to users who cannot read our files: on a shared machine, others
            # can reach loopback ports as well, and could read all that ranks print.
            "--IPController.enable_curve=True",
            # The hub's history of all requests is never read: records hold everything.
            "--IPController.db_class=NoDB",
            # Ranks are addressed one by one; no task queue, and no tree for broadcasts.
            "--TaskScheduler.scheme_name=none",
            "--IPController.broadcast_scheduler_depth=0",
            # A rank is registered after its first heartbeat; a period of 3 s would delay the start.
            "--HeartMonitor.period=250", "--HeartMonitor.max_heartmonitor_misses=240",
            "--log-level=WARN",
        ]  # fmt: skip
        env = python_command.environment(os.environ) | {
            "RANKROOM_SIZE": str(self.info.size), "RANKROOM_SUPERVISOR": str(os.getpid()),
            process_tree.CLUSTER_MARK: str(self.paths.folder),
        }  # fmt: skip
        with self.paths.controller_log.open("ab") as file:
            self.controller = subprocess.Popen(
                argv, env=env, cwd=self.info.cwd, stdin=subprocess.DEVNULL, stdout=file,
                stderr=subprocess.STDOUT, start_new_session=True,
            )  # fmt: skip

    def start_agents(self, modules: Sequence[str] | None) -> None:
        """Start an agent on each node, which preloads `modules`; with None it forks no ranks, but
        starts each as a program of its own."""
        self._modules = [NO_PRELOAD] if modules is None else modules
        self.agents = [self._start_agent(node) for node in range(len(self.nodes))]

    def _start_agent(self, node: int) -> AgentProcess:
        self._begun += 1
        mark = f"{self.paths.folder}/{node}/{self._begun}"
        name, granted = self.nodes[node].name, self.info.allocation
        about = [str(self.paths.folder), mark, str(node), str(self._devices), *self._modules]
        env = dict(os.environ) if granted is None else step_launcher.environment(os.environ)
        env |= {process_tree.CLUSTER_MARK: str(self.paths.folder), process_tree.AGENT_MARK: mark}
        # Set here, as Python reads them before a rank that is a program of its own can set them.
        env |= {"PYTHONUNBUFFERED": "1", "PYTHONFAULTHANDLER": "1"}
        env = python_command.environment(env)
        if granted is None:
            env[BIND] = network.LOOPBACK
        if granted is None or step_launcher.PYTHON_VARIABLE not in os.environ:
            env |= port_guard.environment(env)  # a container may not have the file
        command = python_command.command(step_launcher.AGENT_MODULE, *about)
        if granted is not None:
            command = step_launcher.command(granted, name, self.info.cwd, about)
        log = self.paths.agent_log(name)
        return AgentProcess(name, command, env, self.info.cwd, log, self._hear)

    def start_ranks(self) -> bool:
        """Start all ranks, after telling each agent where all ranks are; False unless all agents
        are ready."""
        if not all(agent.place for agent in self.agents):
            return False
        places = [agent.place for agent in self.agents]
        ports = [port for place in places for port in place["ports"][1:]]
        self._wiring = {
            "addresses": [places[node]["at"] for node in self._node_of],
            "ports": ports,
            "master_port": places[0]["ports"][0],
            "of_nodes": [place["all"] for place in places],
        }
        for agent in self.agents:
            agent.tell(do="wire", **self._wiring)
        for rank in range(self.info.size):
            self.start_rank(rank)
        return True

    def start_rank(self, rank: int) -> None:
        """Start a rank, with a new agent if its node's has ended. Raises OSError, also if the
        rank's last process has not ended."""
        node = self._node_of[rank]
        if rank in self.ranks and not self.ranks[rank].ended:
            raise OSError(PROCESS_DOES_NOT_END.format(pid=self.ranks[rank].pid))
        if self.agents[node].is_over:
            self.agents[node] = self._start_agent(node)
            # The agent reads this once it is ready; its ranks keep the addresses that others know.
            self.agents[node].tell(do="wire", **self._wiring)
        self.starts[rank] = self.starts.get(rank, 0) + 1
        self.ranks[rank] = self.agents[node].start_rank(rank, self.starts[rank])
        self.born[rank] = time.monotonic()

    # -- watching

    def beat(self) -> None:
        """Send a heartbeat to agents on other machines; to be called every few seconds."""
        for agent in self.agents:
            # Writing to an agent that reads nothing would fill its pipe, and then block.
            if not agent.is_silent:
                agent.tell(do="beat")

    def silent(self, ready: Collection[int]) -> list[AgentProcess]:
        """Return the agents that were ready once, and have not been heard from for a while, which
        is shorter if their ranks are all `ready`. To be called every second at least.

        Their nodes may be cut off, or have failed: which of the two cannot be told from here.
        """
        now = time.monotonic()
        missed, self._looked = now - self._looked, now
        for agent in self.agents:
            if missed > SUSPENDED_AFTER_S:  # this process itself was suspended, and heard nothing
                agent.heard = min(now, agent.heard + missed)
            patience = (
                SILENCE_TIMEOUT_S
                if all(r in ready for r in self.ranks_of(agent))
                else STARTING_SILENCE_TIMEOUT_S
            )
            is_late = now - agent.heard > patience
            agent.is_silent = bool(agent.place) and not agent.is_over and is_late
        return [agent for agent in self.agents if agent.is_silent]

    def ranks_of(self, agent: AgentProcess) -> list[int]:
        return [rank for rank, node in enumerate(self._node_of) if self.agents[node] is agent]

    # -- ending

    def end(self, ranks: Collection[int]) -> dict[int, str]:
        """End these ranks with all they started, in whatever session that is.

        Returns the ranks, with their node, whose agent had to be given up.
        """
        given_up: dict[int, str] = {}
        for agent, its in self._by_agent(ranks):
            # What a killed agent left is ended by the next one.
            if not agent.is_over and not agent.end_ranks(its, RESTART_TIMEOUT_S):
                given_up |= dict.fromkeys(self.ranks_of(agent), agent.node)
        return given_up

    def end_all(self) -> None:
        """End every process: ask first, kill after a while, and wait for all of them."""
        children = process_tree.descendants([os.getpid()])
        for agent in self.agents:
            agent.hang_up()
        if self.controller.poll() is None:
            self.controller.terminate()
        deadline = time.monotonic() + STOP_TIMEOUT_S
        for agent in self.agents:
            agent.wait(deadline - time.monotonic())
        try:
            self.controller.wait(max(0.0, deadline - time.monotonic()))
        except subprocess.TimeoutExpired:
            self.controller.kill()
            self.controller.wait()
        process_tree.end(
            children
            | process_tree.marked(process_tree.CLUSTER_MARK, self.paths.folder) - {psutil.Process()}
        )

    def _by_agent(self, ranks: Iterable[int]) -> list[tuple[AgentProcess, list[int]]]:
        found: dict[int, list[int]] = defaultdict(list)
        for rank in ranks:
            found[self._node_of[rank]].append(rank)
        return [(self.agents[node], its) for node, its in found.items()]


PROCESS_DOES_NOT_END = (
    "its previous process ({pid}) has not ended: it may be blocked waiting for a disk or a device"
)
