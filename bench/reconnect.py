"""The link to a login node is cut and restored: time until noticed, and until reconnected."""

from __future__ import annotations

import random
import sys
import time
from pathlib import Path

from table import NotMeasured, Row

sys.path.insert(0, str(Path(__file__).parents[1] / "tests" / "slurm"))
from machines import Machines, missing
from remote_python import Elsewhere

MOST = 5.0
BEGIN = """
from rankroom.ssh.connection import SshConnection
line, told = SshConnection("login"), []
kept = go(line.keep(lambda state, words: told.append(state)))
"""
LONGEST_CUT_S = 30.0


def measure(quick: bool) -> list[Row]:
    """Disconnect the login node's network several times, each for a random time."""
    if why := missing():
        raise NotMeasured(why)
    machines = Machines(nodes=1)
    try:
        machines.up()
        environment = {
            "RANKROOM_SSH": f"ssh -F {machines.root}/client/ssh_config",
            "RANKROOM_HOME": "/tmp/rankroom",
        }
        with Elsewhere(machines, "laptop", "root", environment) as laptop:
            laptop.do(BEGIN)
            laptop.until("told")
            cuts = [_cut(machines, laptop) for _ in range(3 if quick else 12)]
    finally:
        machines.down()
    noticed, opened = zip(*cuts, strict=True)
    return [
        Row("a dead link is noticed", "s", noticed, at_most=MOST),
        Row("the line is open after the link is back", "s", opened, at_most=MOST),
    ]


def _cut(machines: Machines, laptop: Elsewhere) -> tuple[float, float]:
    laptop.do("told.clear()")
    cut = time.monotonic()
    machines.unplug("login", "campus")
    try:
        laptop.until("told")
        noticed = time.monotonic() - cut
        # The link may be restored at any moment of an attempt to reconnect.
        time.sleep(random.uniform(0, LONGEST_CUT_S))
    finally:
        mended = time.monotonic()
        machines.plug("login", "campus")
    laptop.until("told[-1] == 'open'")
    return noticed, time.monotonic() - mended
