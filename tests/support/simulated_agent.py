"""A node agent whose ranks are simulated: `python -m simulated_agent FOLDER` in its place.

It starts processes that simulate EACH ranks, and reports each rank as a real agent does. A signal
to one rank reaches all ranks in its process.
"""

from __future__ import annotations

import os
import signal
import socket
import subprocess
import sys
import threading
from pathlib import Path

from rankroom.agent.node_agent import Supervisor
from rankroom.record.cluster_file import ClusterPaths

EACH = 128  # ranks in one process


def main(folder: Path) -> None:
    supervisor = Supervisor()
    telling = threading.Lock()
    info = ClusterPaths(folder.name, folder.parent).read_patiently()
    assert info is not None
    size = info.size
    processes: dict[int, subprocess.Popen[bytes]] = {}

    def tell(**words: object) -> None:
        with telling:
            supervisor.tell(**words)

    def follow(first: int, count: int) -> None:
        code = processes[first].wait()
        for rank in range(first, first + count):
            tell(rank=rank, start=1, ended=code, words="")

    ports = [0] * (size + 1)
    tell(ready=True, host=socket.gethostname(), at="127.0.0.1", ports=ports, all=[])
    while (orders := supervisor.read()) is not None:
        for order in orders:
            if order["do"] == "start":
                rank, first = order["rank"], order["rank"] - order["rank"] % EACH
                if rank == first:
                    count = min(EACH, size - first)
                    words = ["-m", "simulated_ranks", str(folder), str(first), str(count)]
                    processes[first] = subprocess.Popen([sys.executable, *words])
                    threading.Thread(target=follow, args=(first, count), daemon=True).start()
                tell(rank=rank, start=order["start"], pid=processes[first].pid)
            elif order["do"] in ("signal", "end"):
                number = getattr(signal, order.get("signal", "SIGKILL"))
                for first in {rank - rank % EACH for rank in order["ranks"]}:
                    os.kill(processes[first].pid, number)
    for process in processes.values():
        process.kill()


if __name__ == "__main__":
    main(Path(sys.argv[1]))
