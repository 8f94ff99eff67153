"""Whether a rank on another node than its supervisor is still wanted: the process beside it asks.

A process of another machine cannot be watched. So the supervisor is asked, again and again: it may
be gone, may have given this rank up while it was cut off, or may have started another in its place.
While somebody looks at the ranks, how busy this one is comes with the question.
"""

from __future__ import annotations

import os
import signal
import time
from typing import Any

from rankroom.agent.load import PAUSE_S, whole
from rankroom.reporting.samples import Sampler
from rankroom.rpc.client import ask
from rankroom.system import process_tree

LOOK_S = 2.0  # between two questions whether this rank is wanted
AGAIN_S = 0.5  # the same when nothing listens there
REFUSED = 3  # refusals in a row after which the supervisor is gone
SILENT_S = 60.0  # or so long nothing is heard of its machine


def follow(rank_pid: int) -> None:
    """Return when this rank has ended, or does not belong to the cluster any more."""
    refused, heard = 0, time.monotonic()
    sampler: Sampler | None = None  # while somebody looks
    pause = LOOK_S
    while not process_tree.ended_within(rank_pid, AGAIN_S if refused else pause):
        try:
            load = {"load": whole(sampler.sample())} if sampler else {}
            answer = ask_supervisor("stay", 5.0, **load)
            if not answer.get("kept"):
                return
            for name in answer.get("signals", ()):
                # The rank did not take them itself, as C code keeps Python from running there.
                os.kill(rank_pid, getattr(signal, name))
            refused, heard = 0, time.monotonic()
            if not answer.get("look"):
                sampler, pause = None, LOOK_S
            elif sampler is None:
                sampler, pause = Sampler(os.environ["RANKROOM_DEVICE"], rank_pid), PAUSE_S
                sampler.start()
        except OSError as error:
            gone = isinstance(error, ConnectionRefusedError)
            refused = refused + 1 if gone else 0
            if refused >= REFUSED or time.monotonic() - heard > SILENT_S:
                return


def ask_supervisor(do: str, patience: float, **more: Any) -> dict[str, Any]:
    """A question of this rank to its supervisor. Raises OSError when it does not answer."""
    env = os.environ
    return ask(
        env["RANKROOM_RPC"], env["RANKROOM_RPC_KEY"], patience, do=do,
        rank=int(env["RANKROOM_RANK"]), start=int(env[process_tree.START]), **more,
    )  # fmt: skip
