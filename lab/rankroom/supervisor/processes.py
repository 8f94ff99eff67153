"""The processes of a cluster on this machine: controller and ranks, started, ended, and told apart.

Each is a child of the supervisor and in a session of its own; it ends with all it has started.
"""

from __future__ import annotations

import os
import subprocess
import time
from collections.abc import Callable, Sequence
from pathlib import Path

import psutil

from rankroom.rank.environment import device, positions, rank_environment, wire_locally
from rankroom.record.cluster_file import ClusterInfo, ClusterPaths
from rankroom.record.model import RankInfo
from rankroom.scheduler import step_launcher
from rankroom.supervisor import port_guard
from rankroom.supervisor.forked import ForkedProcess, ForkServer
from rankroom.supervisor.placement import Placement
from rankroom.system import network, process_tree, python_command
from rankroom.system.exits import describe_crash, describe_exit

Process = subprocess.Popen[bytes] | ForkedProcess
STOP_S = 3.0  # a process that has not ended this long after SIGTERM is killed
RESTART_S = 1.0  # the same for a rank whose successor somebody waits for


class Processes:
    """Controller and ranks; `info` says where ranks ask their supervisor."""

    controller: subprocess.Popen[bytes]

    def __init__(self, paths: ClusterPaths, info: ClusterInfo, devices: int) -> None:
        self.paths = paths
        self.info = info
        self.devices = devices
        self.cores = len(os.sched_getaffinity(0))
        self.wiring = wire_locally(info.size)
        nodes = info.allocation.nodes if info.allocation else ()
        # Of each rank, where the ranks are on nodes of an allocation.
        self.nodes = [node for node in nodes for _ in range(node.ranks)]
        self.positions = positions([node.ranks for node in nodes])
        others = [*(node.name for node in nodes), *filter(None, [info.reached_from])]
        self.address = network.towards(others)
        self.placement = Placement(info.size)
        self.ranks: dict[int, subprocess.Popen[bytes] | ForkedProcess] = {}
        self.forks: ForkServer | None = None
        self.born: dict[int, float] = {}

    def places(self) -> list[RankInfo]:
        """Where each rank lives."""
        if self.nodes:
            return [self._place(rank) for rank in sorted(self.ranks)]
        return [
            RankInfo(rank, self.info.host, process.pid, device(rank, self.devices), local_rank=rank)
            for rank, process in sorted(self.ranks.items())
        ]

    def _place(self, rank: int) -> RankInfo:
        """Where a rank of the allocation is; its process is known by 0 until it says more."""
        node, local = self.nodes[rank], self.positions[rank].local_rank
        host, pid = node.name, 0
        if self.placement.is_placed(rank):
            host, pid = self.placement.places[rank].host, self.placement.places[rank].pid
        return RankInfo(rank, host, pid, device(local, node.devices), local_rank=local)

    def pids(self, ranks: list[int]) -> dict[int, int]:
        """The processes of those ranks that are on this machine."""
        return {} if self.nodes else {rank: self.ranks[rank].pid for rank in ranks}

    def here(self, ranks: list[int]) -> dict[int, tuple[int, str]]:
        """Process and device of those ranks that are on this machine."""
        return {rank: (pid, device(rank, self.devices)) for rank, pid in self.pids(ranks).items()}

    def returncode(self, rank: int) -> int | None:
        """How a rank has ended, as of a child; None if it has not."""
        code = self.ranks[rank].poll()
        return step_launcher.returncode(code) if self.nodes and code is not None else code

    def how_ended(self, rank: int, code: int) -> str:
        """The same in words."""
        how = describe_exit(code)
        if crash := describe_crash(code, self.paths.spool(rank) / "stderr"):
            how = f"{how}: {crash}"
        if self.info.allocation is None:
            return how
        log, node = self.paths.rank_log(rank), self.nodes[rank].name
        return step_launcher.how_ended(how, log, node, self.info.allocation.job)

    def start_controller(self) -> None:
        argv = [
            *python_command.command("rankroom.supervisor.controller"),
            f"--profile-dir={self.paths.profile}",
            f"--ip={self.address}", f"--location={self.address}",
            # Encrypted, and closed to who cannot read our files: on a machine that is shared,
            # others reach loopback's ports as well, and could hear all that ranks print.
            "--IPController.enable_curve=True",
            # The hub's history of all requests is never read: records hold everything.
            "--IPController.db_class=NoDB",
            # Ranks are addressed one by one; no task queue, and no tree for broadcasts.
            "--TaskScheduler.scheme_name=none",
            "--IPController.broadcast_scheduler_depth=0",
            # A rank is registered after its first heartbeat; 3 s apart makes a long start.
            "--HeartMonitor.period=250", "--HeartMonitor.max_heartmonitor_misses=240",
            "--log-level=WARN",
        ]  # fmt: skip
        env = dict(os.environ) | {"RANKROOM_SIZE": str(self.info.size)}
        self.controller = self.spawn(argv, env, self.paths.controller_log)

    def preload(self, modules: Sequence[str], wake: Callable[[], None]) -> ForkServer:
        """Have ranks forked by a process that has imported `modules`."""
        env = self.environment_of(0)
        # Whatever carries the first rank's marks is ended with it.
        for name in (process_tree.SPOOL, process_tree.START):
            env.pop(name)
        env[process_tree.CLUSTER] = str(self.paths.folder)
        log = self.paths.logs / "fork-server.log"
        self.forks = ForkServer(modules, env, self.info.cwd, log, wake)
        return self.forks

    def environment_of(self, rank: int) -> dict[str, str]:
        """What a rank on this machine finds set."""
        env = dict(os.environ) | rank_environment(
            rank, self.info.size, self.wiring, self.devices, self.cores, os.environ
        )
        env |= {
            process_tree.SPOOL: str(self.paths.spool(rank)),
            process_tree.SUPERVISOR: str(os.getpid()),
            process_tree.START: str(self.placement.starts.get(rank, 0)),
            "RANKROOM_RPC": self.info.rpc,
            "RANKROOM_RPC_KEY": self.info.rpc_key,
            port_guard.BIND: self.wiring.address,
        }
        return env | port_guard.environment(env)

    def start_rank(self, rank: int) -> None:
        start = self.placement.start(rank)
        log = self.paths.rank_log(rank)
        if self.nodes:
            self.start_step(rank, start)
            return
        env = self.environment_of(rank)
        if self.forks is not None and not self.forks.is_over and not self.forks.unsafe:
            env[process_tree.CLUSTER] = str(self.paths.folder)
            argv = [*self.options(rank), "--IPEngine.enable_nanny=False"]
            self.ranks[rank] = self.forks.fork(argv, env, self.info.cwd, log)
        else:
            argv = python_command.command("rankroom.rank.engine", *self.options(rank))
            self.ranks[rank] = self.spawn(argv, env, log)
        self.born[rank] = time.time()

    def options(self, rank: int) -> list[str]:
        """What every rank's command ends with."""
        return [
            f"--profile-dir={self.paths.profile}", f"--file={self.paths.engine_file}",
            f"--IPEngine.id={rank}", "--IPEngine.wait_for_url_file=30",
            "--IPEngine.timeout=20", "--log-level=WARN",
        ]  # fmt: skip

    def start_step(self, rank: int, start: int) -> None:
        """Start a rank on its node. It reads the cluster's key from the cluster's folder."""
        assert self.info.allocation is not None
        env = step_launcher.environment(os.environ) | {
            process_tree.SPOOL: str(self.paths.spool(rank)),
            process_tree.START: str(start),
            process_tree.STEP: f"{self.paths.folder}/{rank}/{start}",
            "RANKROOM_RANK": str(rank),
            # Python reads these before the rank can set them.
            "PYTHONUNBUFFERED": "1",
            "PYTHONFAULTHANDLER": "1",
        }
        if step_launcher.PYTHON not in os.environ:  # a container need not have the file
            env |= port_guard.environment(env)
        node = self.nodes[rank].name
        argv = step_launcher.command(self.info.allocation, node, rank, self.info.cwd)
        self.ranks[rank] = self.spawn([*argv, *self.options(rank)], env, self.paths.rank_log(rank))
        self.born[rank] = time.time()

    def spawn(self, argv: list[str], env: dict[str, str], log: Path) -> subprocess.Popen[bytes]:
        env[process_tree.CLUSTER] = str(self.paths.folder)
        with log.open("ab") as file:
            return subprocess.Popen(
                argv, env=env, cwd=self.info.cwd, stdin=subprocess.DEVNULL, stdout=file,
                stderr=subprocess.STDOUT, start_new_session=True,
            )  # fmt: skip

    def end(self, ranks: list[int]) -> None:
        """End these ranks with all they started, in whatever session that is."""
        processes = [self.ranks[rank] for rank in ranks]
        children = process_tree.descendants(process.pid for process in processes)
        self.ask_to_end(processes, RESTART_S)
        for rank in ranks:
            children |= process_tree.marked(process_tree.SPOOL, self.paths.spool(rank))
        process_tree.end(children)

    def end_all(self) -> None:
        """End every process: asked first, killed after a while, and all of them waited for."""
        children = process_tree.descendants([os.getpid()])
        self.ask_to_end([*self.ranks.values(), self.controller], STOP_S)
        if self.forks is not None:
            self.forks.close()
        process_tree.end(
            children
            | process_tree.marked(process_tree.CLUSTER, self.paths.folder) - {psutil.Process()}
        )

    def ask_to_end(self, processes: Sequence[Process], seconds: float) -> None:
        for process in processes:
            if process.poll() is None:
                process.terminate()
        deadline = time.monotonic() + seconds
        for process in processes:
            try:
                process.wait(max(0.0, deadline - time.monotonic()))
            except subprocess.TimeoutExpired:
                process.kill()
                process.wait()
