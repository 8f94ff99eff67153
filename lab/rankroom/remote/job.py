"""The main process of the job of a cluster on a site: starts its supervisor, and waits for its end.

`python -m rankroom.remote.job NAME` replaces the script's shell, so that the scheduler's signals
(its warning, and the end of the job) reach it. It ends with the cluster, and the cluster with it.
"""

from __future__ import annotations

import argparse
import signal
from types import FrameType

from rankroom import config
from rankroom.cluster import launch, lookup
from rankroom.cluster.local import Cluster
from rankroom.errors import RankroomError
from rankroom.system.log_line import say


def main(argv: list[str] | None = None) -> int:
    """Start the cluster and wait until it is over; return the exit status of the job."""
    options = argparse.ArgumentParser("rankroom.remote.job")
    options.add_argument("name")
    options.add_argument("--ranks", type=int, required=True)
    options.add_argument("--reached-from", default="")
    options.add_argument("--folder", default=None)
    options.add_argument("--auto-restart", action="store_true")
    chosen = options.parse_args(argv)

    def end(number: int, frame: FrameType | None) -> None:
        signal.signal(signal.SIGTERM, signal.SIG_IGN)
        say("the job has been asked to end")
        raise SystemExit(0)

    signal.signal(signal.SIGTERM, end)
    signal.signal(
        signal.SIGUSR1, lambda number, frame: say("the job is about to reach its time limit")
    )
    try:
        paths, supervisor = launch.launch(
            chosen.ranks, chosen.name, chosen.folder or str(config.user_home()),
            chosen.auto_restart, chosen.reached_from,
        )  # fmt: skip
        cluster = Cluster.ready(paths, supervisor, say)
    except RankroomError as error:
        say(str(error))
        return 1
    try:
        say(f"{cluster.name}: ready")
        # Wait for the process: polling its file would load the file system that all jobs share.
        supervisor.wait()
        info = paths.read()
        say(f"the cluster is over: {lookup.why_gone(info)}")
        return int(info is not None and info.state == "failed")
    except SystemExit:
        lookup.end(paths)
        say("ended")
        return 0


if __name__ == "__main__":
    raise SystemExit(main())
