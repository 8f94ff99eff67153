"""The process beside each rank: passes signals on, as ipyparallel's does, and watches two others.

When the rank ends, it tells the controller. When the cluster's supervisor ends first, killed say,
it ends the rank with all that the rank started, as no other process would. A thread of the rank
could not do that, as it does not run while C code holds Python's lock; and a signal that the kernel
sends on a parent's death comes when the thread ends that started the rank, and reaches no child of
the rank.
"""

from __future__ import annotations

import contextlib
import os
import pickle
import sys
from subprocess import PIPE, Popen
from typing import Any

import psutil
from ipyparallel.engine.nanny import KernelNanny

from rankroom.agent import orphan_check
from rankroom.system import process_tree, python_command

END_S = 1.0  # a rank without a supervisor is killed this long after SIGTERM
ASK_S = 2.0  # for the supervisor to hear that a rank has ended
LAST_MS = 3000  # for a rank's last replies to leave; the controller may be gone


class RankNanny(KernelNanny):
    """ipyparallel's nanny, which also ends a rank whose cluster has no supervisor any more."""

    async def start(self) -> None:
        await super().start()
        # As they are made, they would wait for a dead controller, or rank, without end.
        self.control_socket.linger = LAST_MS
        self.parent_socket.linger = 0

    def wait_for_parent_thread(self) -> None:
        if process_tree.STEP in os.environ:
            self.follow_from_afar()
            return
        supervisor = int(os.environ[process_tree.SUPERVISOR])
        if process_tree.first_ended(self.pid, supervisor) != self.pid and process_tree.running(
            self.parent_process
        ):
            others = process_tree.descendants([self.pid]) - {psutil.Process()}
            process_tree.end([self.parent_process, *others], END_S)
        self.loop.add_callback(self.finish)

    def follow_from_afar(self) -> None:
        """The same where the supervisor is on another machine: nothing of the rank stays on
        this.
        """
        orphan_check.follow(self.pid)
        ended = not process_tree.running(self.parent_process)
        if ended:
            with contextlib.suppress(OSError):
                orphan_check.ask_supervisor("gone", ASK_S)
        step = os.environ[process_tree.STEP]
        left = {each for each, value in process_tree.belonging(process_tree.STEP) if value == step}
        # It was asked before, or has ended: its children have no time left.
        process_tree.end(left, 0.0 if ended else END_S)
        self.loop.add_callback(self.finish)


def start_nanny(**about: Any) -> tuple[str, Popen[bytes]]:
    """Start the nanny of this process; the address that takes the place of the controller's.

    Raises RuntimeError when it does not start. ipyparallel's own function names its own module.
    """
    nanny = Popen(python_command.command(__name__), stdin=PIPE, stdout=PIPE, start_new_session=True)
    assert nanny.stdin is not None
    assert nanny.stdout is not None
    nanny.stdin.write(pickle.dumps({"pid": os.getpid(), **about}))
    nanny.stdin.close()
    address = nanny.stdout.readline().decode().strip()
    if not address:
        nanny.terminate()
        raise RuntimeError("the process beside this rank did not start")
    return address, nanny


def main() -> None:
    """Be a nanny, configured by stdin; the address for the rank goes to stdout."""
    with os.fdopen(sys.stdin.fileno(), "rb") as file:
        about = pickle.load(file)
    RankNanny.main(pipe=sys.stdout, **about)


if __name__ == "__main__":
    main()
