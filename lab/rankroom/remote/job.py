"""What runs in the job of a cluster on a site: has its supervisor start, and stays.

`python -m rankroom.remote.job NAME` takes the place of the script's shell, so that the scheduler's
warning and its end reach it. It ends with the cluster, and the cluster with it.
"""

from __future__ import annotations

import argparse
import os
import signal
import threading
import time
from pathlib import Path
from types import FrameType

from rankroom.cluster import launch, lookup
from rankroom.errors import RankroomError
from rankroom.record.cluster_file import ClusterPaths
from rankroom.supervisor import lease

LOOK_S = 0.2


def main(argv: list[str] | None = None) -> int:
    """Start the cluster and stay until it is over; the exit status of the job."""
    options = argparse.ArgumentParser("rankroom.remote.job")
    options.add_argument("name")
    options.add_argument("--ranks", type=int, required=True)
    options.add_argument("--reached-from", default="")
    options.add_argument("--folder", default=None)
    options.add_argument("--auto-restart", action="store_true")
    chosen = options.parse_args(argv)
    over = threading.Event()

    def end(number: int, frame: FrameType | None) -> None:
        say("the job has been asked to end")
        over.set()

    def warn(number: int, frame: FrameType | None) -> None:
        say("the job's time is nearly over")

    signal.signal(signal.SIGTERM, end)
    signal.signal(signal.SIGUSR1, warn)
    try:
        paths, supervisor = launch.launch(
            chosen.ranks, chosen.name, chosen.folder or str(Path.home()), chosen.auto_restart,
            chosen.reached_from,
        )  # fmt: skip
        held = lease.hold(paths.folder)
        try:
            info = launch.wait_ready(paths, supervisor, say, over.is_set)
            say(f"{info.name}: ready")
        except BaseException:
            lookup.end(paths)
            raise
    except RankroomError as error:
        say(str(error))
        return 1
    try:
        return stay(paths, over)
    finally:
        os.close(held)


def stay(paths: ClusterPaths, over: threading.Event) -> int:
    """Until the cluster has ended or the job is to end; 1 if the cluster has failed."""
    while launch.alive(paths.read()):
        if over.wait(LOOK_S):
            lookup.end(paths)
            say("ended")
            return 0
    info = paths.read()
    say(f"the cluster is over: {lookup.why_gone(info)}")
    return int(info is not None and info.state == "failed")


def say(words: str) -> None:
    """A line of the job's log."""
    print(f"{time.strftime('%H:%M:%S')} {words}", flush=True)


if __name__ == "__main__":
    raise SystemExit(main())
