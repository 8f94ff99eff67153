"""A rank's process: an ipyparallel engine with Rankroom's kernel, streams and adapters."""

from __future__ import annotations

import json
import logging
import os
import signal
import sys
import time
from pathlib import Path
from typing import Any

import ipyparallel.engine.app as engine_app
from ipyparallel.engine.kernel import IPythonParallelKernel

from rankroom.errors import RankroomError
from rankroom.rank import stacks
from rankroom.rank.client_output import ClientOutput
from rankroom.rank.import_hooks import show_imports
from rankroom.rank.kernel import RankKernel
from rankroom.rank.recovery import Recovery
from rankroom.rank.supervisor_connection import SupervisorConnection
from rankroom.rank.world import World
from rankroom.reporting.reporter import Reporter
from rankroom.system import process_tree, python_command
from rankroom.system.internals import demand

WRITTEN_S = 5.0
# What ipyparallel and ipykernel call, or are called by, in a rank; here and in kernel.py only.
OVERRIDDEN = ("redirect_output", "init_signal", "_signal_stop", "load_connection_file")
OF_KERNELS = (
    "_abort_queues", "_publish_execute_input", "_forward_input", "_restore_input",
    "_cancel_on_sigint", "dispatch_shell", "pre_handler_hook", "post_handler_hook", "shell_class",
)  # fmt: skip


# Where ranks are forked: what was made ready before the frameworks were imported.
prepared: tuple[World, Recovery] | None = None


def prepare() -> tuple[World, Recovery]:
    """Have frameworks that are imported from now on be adapted to."""
    show_imports()
    world = World.from_environment(os.environ)
    return world, Recovery(world)


class RankEngine(engine_app.IPEngine):
    """ipyparallel's engine; the one override that matters is where its output goes."""

    name = "rankroom-rank"
    _told_to_end = False

    def start(self) -> None:
        """Be a rank until told to end, which stops the event loop in the middle: not an error that
        a user should read."""
        try:
            super().start()
        except RuntimeError:
            if not self._told_to_end:
                raise
            sys.exit(1)

    def redirect_output(self, iopub_socket: Any) -> None:
        """Called by the engine once it has registered: from here on this process is a rank."""
        world, recovery = prepared or prepare()
        del sys.argv[1:]  # a cell that reads its arguments has none; these were the engine's
        self._keep_own_log()
        kernel = self.kernel
        start = int(os.environ.get(process_tree.START, "0"))
        connection = SupervisorConnection(
            world.rpc, world.rpc_key, world.rank, start,
            kernel.do_soon, kernel.answer, kernel.debug,
        )  # fmt: skip
        spool = Path(os.environ["RANKROOM_SPOOL"])
        reporter = Reporter(world.rank, spool, connection.send, world.size)
        reporter.install()
        output = ClientOutput(self.session, iopub_socket, self.id)
        kernel.take_part(world, reporter, recovery, output, connection.tell_debugger)
        stacks.answer_to_signal(reporter.spool / "stacks")
        if os.environ.get("RANKROOM_WATCHDOG") != "0":
            kernel.watchdog.start()
        connection.ready()

    def init_signal(self) -> None:
        """Ignore an interrupt between two cells. What the engine does then is write, and a handler
        that writes may wait without end for a lock that the interrupted code holds."""
        super().init_signal()
        signal.signal(signal.SIGINT, _do_nothing)
        self._process = os.getpid()
        os.register_at_fork(after_in_child=self._end_as_usual)

    def _end_as_usual(self) -> None:
        """What a rank forks ends by SIGTERM, as `multiprocessing` ends its pools' workers."""
        if signal.getsignal(signal.SIGTERM) == self._signal_stop:
            signal.signal(signal.SIGTERM, signal.SIG_DFL)

    def _signal_stop(self, number: int, frame: Any) -> None:
        if os.getpid() == self._process:
            self._told_to_end = True
            super()._signal_stop(number, frame)
            return
        # A library has put a handler of its own around this one.
        signal.signal(number, signal.SIG_DFL)
        os.kill(os.getpid(), number)

    def load_connection_file(self) -> None:
        """The engine waits for the file to be there; the controller may still be writing it."""
        python_command.find_modules_beside()  # ipyparallel has just put them before all others
        until = time.monotonic() + WRITTEN_S
        while time.monotonic() < until:
            try:
                json.loads(Path(self.url_file).read_text())
                break
            except ValueError:
                time.sleep(0.02)
        super().load_connection_file()

    def _keep_own_log(self) -> None:
        """The engine's log stays in the rank's log file when descriptor 2 moves to the spool."""
        own = os.fdopen(os.dup(2), "w", buffering=1)
        # Its handlers drop the rest anyway, after a record was made of each request.
        self.log.setLevel(logging.WARNING)
        for handler in self.log.handlers:
            if isinstance(handler, logging.StreamHandler):
                handler.setStream(own)
                # A disk that takes no log is none of the cell's that runs meanwhile.
                handler.handleError = _do_nothing  # type: ignore[method-assign,assignment]


def _do_nothing(*what: Any) -> None:
    """Unlike a signal that is ignored, this is not passed on to programs that a rank starts."""


def main() -> None:
    """Start this process as a rank; its environment says which."""
    try:
        demand("ipyparallel", engine_app, ["Kernel"])
        demand("ipyparallel", engine_app.IPEngine, OVERRIDDEN)
        demand("ipykernel", IPythonParallelKernel, OF_KERNELS)
    except RankroomError as error:
        sys.exit(str(error))
    # The engine creates its kernel by this module-level name; there is no option for the class.
    engine_app.Kernel = RankKernel
    RankEngine.launch_instance()


if __name__ == "__main__":
    main()
