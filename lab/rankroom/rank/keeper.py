"""The process that keeps a cluster on one machine: starts controller and ranks, and watches them.

It belongs to no kernel, so ranks outlive the notebook that started them; it is the parent of all
its processes, so it learns how each of them ended. `python -m rankroom.rank.keeper FOLDER` is
started by `rankroom.local`; it does what its cluster.json asks and writes the outcome there.
"""

from __future__ import annotations

import contextlib
import os
import secrets
import shutil
import signal
import socket
import subprocess
import sys
import threading
import time
from pathlib import Path
from types import FrameType

from rankroom.clusterfile import ClusterInfo, ClusterPaths
from rankroom.rank.environment import rank_environment, wire_locally
from rankroom.rank.rendezvous import Rendezvous
from rankroom.record import RankInfo

INTERFACE = "127.0.0.1"
STOP_S = 3.0  # a process that has not ended this long after SIGTERM is killed


class Keeper:
    """Controller and ranks of one cluster as child processes."""

    def __init__(self, paths: ClusterPaths, info: ClusterInfo, devices: int) -> None:
        self.paths = paths
        self.info = info
        self.devices = devices
        self.cores = len(os.sched_getaffinity(0))
        self.wiring = wire_locally(info.size)
        self.ranks: dict[int, subprocess.Popen[bytes]] = {}
        self.stopping = threading.Event()
        info.secret = secrets.token_urlsafe(24)
        self.rendezvous = Rendezvous(INTERFACE, info.secret, self.answer)
        info.desk = self.rendezvous.address
        info.host = socket.gethostname()
        info.keeper = os.getpid()
        self.controller = self.start_controller()
        for rank in range(info.size):
            self.start_rank(rank)
        info.state = "running"
        self.save()

    def save(self) -> None:
        self.info.ranks = [
            RankInfo(rank, self.info.host, process.pid, self.device(rank), local_rank=rank)
            for rank, process in sorted(self.ranks.items())
        ]
        self.paths.write(self.info)

    def device(self, rank: int) -> str:
        return f"cuda:{rank % self.devices}" if self.devices else "cpu"

    def start_controller(self) -> subprocess.Popen[bytes]:
        argv = [
            sys.executable, "-m", "ipyparallel.controller",
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
        return self.spawn(argv, dict(os.environ), self.paths.controller_log)

    def start_rank(self, rank: int) -> None:
        env = dict(os.environ) | rank_environment(
            rank, self.info.size, self.wiring, self.devices, self.cores, os.environ
        )
        env |= {
            "RANKROOM_SPOOL": str(self.paths.spool(rank)),
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

    def spawn(self, argv: list[str], env: dict[str, str], log: Path) -> subprocess.Popen[bytes]:
        with log.open("ab") as file:
            return subprocess.Popen(
                argv, env=env, cwd=self.info.cwd, stdin=subprocess.DEVNULL, stdout=file,
                stderr=subprocess.STDOUT, start_new_session=True,
            )  # fmt: skip

    def answer(self, question: dict[str, object]) -> dict[str, object]:
        """Requests of kernels, which come with the cluster's secret."""
        if question["do"] == "stop":
            self.stopping.set()
        return {}

    def watch(self) -> None:
        """Until told to stop: note how each process that ends ended."""
        while not self.stopping.wait(0.1):
            changed = False
            for rank, process in list(self.ranks.items()):
                if str(rank) not in self.info.exits and process.poll() is not None:
                    self.info.exits[str(rank)] = describe_exit(process.returncode)
                    changed = True
            if self.controller.poll() is not None:
                self.info.state = "failed"
                how = describe_exit(self.controller.returncode)
                self.info.message = f"the ipyparallel controller {how}"
                self.save()
                return
            if changed:
                self.save()
            if len(self.info.exits) == self.info.size:
                self.info.state = "failed"
                self.info.message = "every rank has ended"
                self.save()
                return

    def close(self) -> None:
        """End every process: asked first, killed after a while, and all of them waited for."""
        processes = [*self.ranks.values(), self.controller]
        for process in processes:
            if process.poll() is None:
                process.terminate()
        deadline = time.monotonic() + STOP_S
        for process in processes:
            try:
                process.wait(max(0.0, deadline - time.monotonic()))
            except subprocess.TimeoutExpired:
                # The rank's own children (loaders, say) are in its session: end them with it.
                with contextlib.suppress(ProcessLookupError):
                    os.killpg(process.pid, signal.SIGKILL)
                process.wait()
        if self.info.state != "failed":
            self.info.state = "stopped"
        self.save()


def describe_exit(code: int) -> str:
    """A return code in words: `ended with status 1`, `was killed by SIGKILL`."""
    if code >= 0:
        return f"ended with status {code}"
    try:
        return f"was killed by {signal.Signals(-code).name}"
    except ValueError:
        return f"was killed by signal {-code}"


def main(argv: list[str]) -> None:
    """Keep the cluster in folder argv[1] with argv[2] GPUs until it is stopped."""
    folder = Path(argv[1])
    paths = ClusterPaths(folder.name, folder.parent)
    info = paths.read()
    if info is None:
        raise SystemExit(f"no cluster.json in {folder}")
    keeper: Keeper | None = None

    def stop(number: int, frame: FrameType | None) -> None:
        if keeper is not None:
            keeper.stopping.set()

    signal.signal(signal.SIGTERM, stop)
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    try:
        keeper = Keeper(paths, info, int(argv[2]))
        keeper.watch()
        keeper.close()
        if keeper.info.state == "stopped":
            shutil.rmtree(folder, ignore_errors=True)
    except OSError as error:
        info.state, info.message = "failed", f"cannot start: {error}"
        paths.write(info)
        raise


if __name__ == "__main__":
    main(sys.argv)
