"""The processes of a cluster on this machine: controller and ranks, started, ended, and told apart.

Each is a child of the keeper and in a session of its own; it ends with all it has started.
"""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import psutil

from rankroom.clusterfile import ClusterInfo, ClusterPaths
from rankroom.rank import tree
from rankroom.rank.environment import rank_environment, wire_locally
from rankroom.record import RankInfo

INTERFACE = "127.0.0.1"
STOP_S = 3.0  # a process that has not ended this long after SIGTERM is killed
RESTART_S = 1.0  # the same for a rank whose successor somebody waits for


class Children:
    """Controller and ranks; `info` says where the desk is that ranks ask."""

    controller: subprocess.Popen[bytes]

    def __init__(self, paths: ClusterPaths, info: ClusterInfo, devices: int) -> None:
        self.paths = paths
        self.info = info
        self.devices = devices
        self.cores = len(os.sched_getaffinity(0))
        self.wiring = wire_locally(info.size)
        self.ranks: dict[int, subprocess.Popen[bytes]] = {}
        self.born: dict[int, float] = {}

    def places(self) -> list[RankInfo]:
        """Where each rank lives."""
        return [
            RankInfo(rank, self.info.host, process.pid, self.device(rank), local_rank=rank)
            for rank, process in sorted(self.ranks.items())
        ]

    def device(self, rank: int) -> str:
        return f"cuda:{rank % self.devices}" if self.devices else "cpu"

    def start_controller(self) -> None:
        argv = [
            sys.executable, "-m", "rankroom.rank.controller",
            f"--profile-dir={self.paths.profile}",
            f"--ip={INTERFACE}", f"--location={INTERFACE}",
            # The hub's history of all requests is memory nobody reads: records hold everything.
            "--IPController.db_class=NoDB",
            # Ranks are addressed one by one; no task queue, and no tree for broadcasts.
            "--TaskScheduler.scheme_name=none",
            "--IPController.broadcast_scheduler_depth=0",
            # A rank is registered after its first heartbeat; 3 s apart makes a long start.
            "--HeartMonitor.period=250", "--HeartMonitor.max_heartmonitor_misses=240",
            "--log-level=WARN",
        ]  # fmt: skip
        self.controller = self.spawn(argv, dict(os.environ), self.paths.controller_log)

    def start_rank(self, rank: int) -> None:
        env = dict(os.environ) | rank_environment(
            rank, self.info.size, self.wiring, self.devices, self.cores, os.environ
        )
        env |= {
            tree.SPOOL: str(self.paths.spool(rank)),
            tree.KEEPER: str(os.getpid()),
            "RANKROOM_DESK": self.info.desk,
            "RANKROOM_SECRET": self.info.secret,
        }
        argv = [
            sys.executable, "-m", "rankroom.rank.engine",
            f"--profile-dir={self.paths.profile}", f"--file={self.paths.engine_file}",
            f"--IPEngine.id={rank}", "--IPEngine.wait_for_url_file=30",
            "--IPEngine.timeout=20", "--log-level=WARN",
        ]  # fmt: skip
        self.ranks[rank] = self.spawn(argv, env, self.paths.rank_log(rank))
        self.born[rank] = time.time()

    def spawn(self, argv: list[str], env: dict[str, str], log: Path) -> subprocess.Popen[bytes]:
        env[tree.CLUSTER] = str(self.paths.folder)
        with log.open("ab") as file:
            return subprocess.Popen(
                argv, env=env, cwd=self.info.cwd, stdin=subprocess.DEVNULL, stdout=file,
                stderr=subprocess.STDOUT, start_new_session=True,
            )  # fmt: skip

    def end(self, ranks: list[int]) -> None:
        """End these ranks with all they started, in whatever session that is."""
        processes = [self.ranks[rank] for rank in ranks]
        children = tree.descendants(process.pid for process in processes)
        self.ask_to_end(processes, RESTART_S)
        for rank in ranks:
            children |= tree.marked(tree.SPOOL, self.paths.spool(rank))
        tree.end(children)

    def end_all(self) -> None:
        """End every process: asked first, killed after a while, and all of them waited for."""
        children = tree.descendants([os.getpid()])
        self.ask_to_end([*self.ranks.values(), self.controller], STOP_S)
        tree.end(children | tree.marked(tree.CLUSTER, self.paths.folder) - {psutil.Process()})

    def ask_to_end(self, processes: list[subprocess.Popen[bytes]], seconds: float) -> None:
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


def describe_exit(code: int) -> str:
    """A return code in words: `ended with status 1`, `was killed by SIGKILL`."""
    if code >= 0:
        return f"ended with status {code}"
    try:
        return f"was killed by {signal.Signals(-code).name}"
    except ValueError:
        return f"was killed by signal {-code}"
