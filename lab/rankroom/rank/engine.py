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

CONNECTION_FILE_TIMEOUT_S = 5.0
# Names of ipyparallel and ipykernel that a rank overrides or calls, here and in kernel.py only.
REQUIRED_ENGINE_NAMES = ("redirect_output", "init_signal", "_signal_stop", "load_connection_file")
REQUIRED_KERNEL_NAMES = (
    "_abort_queues", "_publish_execute_input", "_forward_input", "_restore_input",
    "_cancel_on_sigint", "dispatch_shell", "pre_handler_hook", "post_handler_hook", "shell_class",
)  # fmt: skip


# Set in a process that forks ranks, before it imports frameworks.
prepared: tuple[World, Recovery] | None = None


def prepare() -> tuple[World, Recovery]:
    """Install the hooks that adapt to the frameworks imported from now on."""
    show_imports()
    world = World.from_environment(os.environ)
    return world, Recovery(world)


class RankEngine(engine_app.IPEngine):
    """ipyparallel's engine; the one override that matters is where its output goes."""

    name = "rankroom-rank"
    _told_to_end = False

    def start(self) -> None:
        """Run as a rank until a signal ends it. That stops the event loop in the middle, with a
        RuntimeError that a user should not see."""
        try:
            super().start()
        except RuntimeError:
            if not self._told_to_end:
                raise
            sys.exit(1)

    def redirect_output(self, iopub_socket: Any) -> None:
        """Turn this process into a rank; the engine calls this once it has registered."""
        world, recovery = prepared or prepare()
        del sys.argv[1:]  # these are the engine's arguments, not the cell's
        self._keep_own_log()
        kernel = self.kernel
        start = int(os.environ.get(process_tree.START_MARK, "0"))
        connection = SupervisorConnection(
            world.rpc, world.rpc_key, world.rank, start,
            kernel.schedule_request, kernel.answer, kernel.debug,
        )  # fmt: skip
        spool = Path(os.environ["RANKROOM_SPOOL"])
        reporter = Reporter(world.rank, spool, connection.send, world.size)
        reporter.install()
        output = ClientOutput(self.session, iopub_socket, self.id)
        kernel.initialize_rank(world, reporter, recovery, output, connection.tell_debugger)
        stacks.answer_to_signal(reporter.spool / "stacks")
        if os.environ.get("RANKROOM_WATCHDOG") != "0":
            kernel.watchdog.start()
        connection.ready()

    def init_signal(self) -> None:
        """Ignore interrupts between two cells. The engine's own handler writes, and a handler that
        writes may deadlock on a lock that the interrupted code holds."""
        super().init_signal()
        signal.signal(signal.SIGINT, _do_nothing)
        self._process = os.getpid()
        os.register_at_fork(after_in_child=self._end_as_usual)

    def _end_as_usual(self) -> None:
        """Let SIGTERM end a process forked by a rank, as `multiprocessing` ends its workers."""
        if signal.getsignal(signal.SIGTERM) == self._signal_stop:
            signal.signal(signal.SIGTERM, signal.SIG_DFL)

    def _signal_stop(self, number: int, frame: Any) -> None:
        if os.getpid() == self._process:
            self._told_to_end = True
            super()._signal_stop(number, frame)
            return
        # A forked process in which a library has wrapped this handler, so it was not reset there.
        signal.signal(number, signal.SIG_DFL)
        os.kill(os.getpid(), number)

    def load_connection_file(self) -> None:
        """Wait until the file is complete: the engine waits only until it exists, and the
        controller may still be writing it."""
        python_command.find_modules_beside()  # ipyparallel has just put them before all others
        until = time.monotonic() + CONNECTION_FILE_TIMEOUT_S
        while time.monotonic() < until:
            try:
                json.loads(Path(self.url_file).read_text())
                break
            except ValueError:
                time.sleep(0.02)
        super().load_connection_file()

    def _keep_own_log(self) -> None:
        """Keep the engine's log in the rank's log file when descriptor 2 moves to the spool."""
        own = os.fdopen(os.dup(2), "w", buffering=1)
        # The handlers drop lower levels anyway, but only after creating a record for each request.
        self.log.setLevel(logging.WARNING)
        for handler in self.log.handlers:
            if isinstance(handler, logging.StreamHandler):
                handler.setStream(own)
                # A full disk must not show up in the cell that is running.
                handler.handleError = _do_nothing  # type: ignore[method-assign,assignment]


def _do_nothing(*what: Any) -> None:
    """Ignore a signal, or an error of a log handler. Unlike SIG_IGN, a Python handler is not
    inherited by programs that a rank starts."""


def main() -> None:
    """Run this process as the rank that its environment describes."""
    try:
        demand("ipyparallel", engine_app, ["Kernel"])
        demand("ipyparallel", engine_app.IPEngine, REQUIRED_ENGINE_NAMES)
        demand("ipykernel", IPythonParallelKernel, REQUIRED_KERNEL_NAMES)
    except RankroomError as error:
        sys.exit(str(error))
    # The engine creates its kernel by this module-level name; there is no option for the class.
    engine_app.Kernel = RankKernel
    RankEngine.launch_instance()


if __name__ == "__main__":
    main()
