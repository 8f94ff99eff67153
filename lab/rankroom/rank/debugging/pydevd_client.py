"""ipykernel's debugger over a pydevd in this process, to which it speaks by a pair of sockets.

It is imported when it is first needed, as it brings debugpy along.
"""

from __future__ import annotations

import asyncio
import contextlib
import functools
import inspect
import itertools
import json
import shutil
import socket
import sys
import sysconfig
import threading
from collections.abc import Callable
from pathlib import Path
from types import FrameType
from typing import Any

from ipykernel import debugger as ipykernel_debugger
from ipykernel.compiler import get_tmp_directory
from ipykernel.debugger import Debugger, DebugpyClient
from traitlets.log import get_logger

from rankroom import config
from rankroom.errors import RankroomError
from rankroom.system.internals import demand

Message = dict[str, Any]

# Packages that run a cell.
OURS = {
    "IPython", "asyncio", "debugpy", "ipykernel", "ipyparallel", "rankroom", "tornado",
    "traitlets", "zmq",
}  # fmt: skip
# What only a thread that stands still answers.
OF_A_STOP = {
    "completions", "evaluate", "exceptionInfo", "scopes", "setExpression", "setVariable",
    "stackTrace", "variables",
}  # fmt: skip
RUNS_ON = {
    "type": "response", "success": False, "message": "the rank runs on",
    "body": {"result": "", "scopes": [], "stackFrames": [], "threads": [], "variables": []},
}  # fmt: skip


class DapDebugger(Debugger):
    """Answers what ipykernel answers for any kernel; `heard(event)` is what pydevd tells.

    Raises RankroomError where there is no debugpy, or another one than ipykernel's.
    """

    def __init__(self, heard: Callable[[Message], None]) -> None:
        if not ipykernel_debugger._is_debugpy_available:
            raise RankroomError(NO_DEBUGPY)
        demand("ipykernel", Debugger, ["_handle_event", "process_request", "start", "stop"])
        log = get_logger()
        files = _files()
        # Before ipykernel 7, a debugger knew of no files that it is to leave out.
        knows = "kernel_modules" in inspect.signature(Debugger.__init__).parameters
        super().__init__(
            log, None, heard, None, None, **({"kernel_modules": files} if knows else {})
        )
        self._rules = [{"path": file, "include": False} for file in files]
        self.debugpy_client = PydevdClient(log, None, self._handle_event)
        self.debugpy_initialized = True  # no debugpy is to listen

    def start(self) -> bool:
        """Start pydevd; the cells' files are in a folder that ipykernel names."""
        config.make_own(Path(get_tmp_directory()))
        return bool(super().start())

    def stop(self) -> None:
        """End pydevd."""
        super().stop()
        shutil.rmtree(get_tmp_directory(), ignore_errors=True)

    async def attach(self, message: Message) -> Message:
        """Other threads go on where one stops: some of them are the rank's own."""
        how = {
            "debugOptions": ["DebugStdLib"],  # a user's own Python may be below Python's folder
            "rules": self._rules,
            "stopAllThreadsOnSuspend": False,
        }
        arguments = {**message.get("arguments", {}), **how}
        answer: Message = await super().attach({**message, "arguments": arguments})
        return answer

    def _handle_event(self, msg: Message) -> None:
        if msg["event"] == "stopped":
            self.stopped_threads.add(msg["body"]["threadId"])
        elif msg["event"] == "continued":
            self.stopped_threads.clear()
        self.event_callback(msg)


class PydevdClient(DebugpyClient):
    """Requests to pydevd, each with its own answer, in whatever order these come."""

    def get_host_port(self) -> tuple[str, int]:
        """What ipykernel tells debugpy's adapter, which is not there."""
        return "", 0

    def connect_tcp_socket(self) -> None:
        """Start pydevd."""
        import pydevd

        self._loop = asyncio.get_running_loop()
        self._numbers = itertools.count(1)
        self._asked: dict[int, tuple[str, asyncio.Future[Message]]] = {}
        self._socket, its = socket.socketpair()
        threading.Thread(
            target=self._read, args=[self._socket], name="rankroom-debugger-in", daemon=True
        ).start()
        _spare_threads()
        connect, pydevd.start_client = pydevd.start_client, lambda host, port: its
        try:
            pydevd.settrace(
                host="this process", port=0, protocol="dap", suspend=False, notify_stdin=False,
                trace_only_current_thread=True, wait_for_ready_to_run=False,
            )  # fmt: skip
        finally:
            pydevd.start_client = connect
            _trace_no_more()  # this is no cell
        pydb = pydevd.get_global_debugger()
        pydb.do_wait_suspend = functools.partial(_interruptibly, pydb.do_wait_suspend)

    def disconnect_tcp_socket(self) -> None:
        """End pydevd."""
        import pydevd

        pydevd.stoptrace()
        with contextlib.suppress(OSError):
            self._socket.shutdown(socket.SHUT_RDWR)
        self._let_go(set())

    async def send_dap_request(self, msg: Message) -> Message:
        """Its answer."""
        if msg["command"] == "setBreakpoints":
            _spare_threads()  # those that have been started since
        answer = await self._answered(msg)
        if msg["command"] == "attach":
            await self._answered({"type": "request", "command": "configurationDone"})
        return answer

    def goes_on(self) -> None:
        """The thread that stood still runs on: what it was asked there, it does not answer."""
        self._let_go(OF_A_STOP)

    # -- in the main thread

    def trace_this_thread(self) -> None:
        """Have it stop at breakpoints."""
        import pydevd

        if (pydb := pydevd.get_global_debugger()) is not None:
            if _monitors():
                pydb.enable_tracing(pydb.trace_dispatch, apply_to_all_threads=True)
            pydb.enable_tracing(pydb.trace_dispatch)

    def trace_no_more(self) -> None:
        """Have it run as fast as before."""
        _trace_no_more()

    def stop_in(self, frame: FrameType) -> None:
        """Stand still in `frame`, until a request goes on."""
        import pydevd
        from _pydevd_bundle.pydevd_comm_constants import CMD_SET_BREAK

        if (pydb := pydevd.get_global_debugger()) is not None:
            thread = threading.current_thread()
            _trace_no_more(all_threads=False)  # or it stands still in pydevd's own code
            pydb.set_suspend(thread, CMD_SET_BREAK, suspend_requested=True)
            pydb.do_wait_suspend(thread, frame, "line", None)
            pydb.enable_tracing(pydb.trace_dispatch)

    # -- how

    async def _answered(self, msg: Message) -> Message:
        number = next(self._numbers)
        future: asyncio.Future[Message] = self._loop.create_future()
        self._asked[number] = msg["command"], future
        data = json.dumps({**msg, "seq": number}).encode()
        self._socket.sendall(b"Content-Length: %d\r\n\r\n%b" % (len(data), data))
        return {**await future, "request_seq": msg.get("seq", 0), "command": msg["command"]}

    def _let_go(self, commands: set[str]) -> None:
        """Answer these ourselves, or all if there are none."""
        for number, (command, future) in list(self._asked.items()):
            if not commands or command in commands:
                self._asked.pop(number)
                if not future.done():
                    future.set_result({**RUNS_ON, "seq": 0})

    def _read(self, ours: socket.socket) -> None:
        with ours, ours.makefile("rb") as stream, contextlib.suppress(OSError, ValueError):
            while head := stream.readline():
                if head.startswith(b"Content-Length:"):
                    while stream.readline().strip():
                        pass
                    message = json.loads(stream.read(int(head.partition(b":")[2])))
                    self._loop.call_soon_threadsafe(self._take_in, message)

    def _take_in(self, message: Message) -> None:
        if message["type"] == "event":
            self.event_callback(message)
        elif message["type"] == "response":
            _, future = self._asked.pop(message["request_seq"], ("", None))
            if future is not None and not future.done():
                future.set_result(message)


def _interruptibly(wait: Callable[..., None], *about: Any, **more: Any) -> None:
    """Stand still. An interrupt ends the cell: pydevd would stop again in what handles that."""
    from _pydevd_bundle.pydevd_thread_lifecycle import resume_threads

    try:
        wait(*about, **more)
    except BaseException:
        _trace_no_more(all_threads=False)
        resume_threads("*")
        raise


def _monitors() -> bool:
    """Whether pydevd traces by sys.monitoring, from Python 3.12 on: all threads or none."""
    from _pydevd_bundle.pydevd_constants import PYDEVD_USE_SYS_MONITORING

    return bool(PYDEVD_USE_SYS_MONITORING)


def _trace_no_more(all_threads: bool = True) -> None:
    """Trace this thread no more, or all where they are traced together."""
    import pydevd_tracing
    from _pydevd_sys_monitoring import pydevd_sys_monitoring

    if _monitors():
        pydevd_sys_monitoring.stop_monitoring(all_threads=all_threads)
    else:
        pydevd_tracing.SetTrace(None)  # sys.settrace itself is pydevd's now, and warns


def _spare_threads() -> None:
    """Have pydevd leave alone all threads there are but the main one."""
    for thread in threading.enumerate():
        if thread is not threading.main_thread():
            thread.pydev_do_not_trace = True  # type: ignore[attr-defined]
            thread.is_pydev_daemon_thread = True  # type: ignore[attr-defined]


def _files() -> list[str]:
    """The files in which no step ends: the kernel's, and of Python's own modules those that are
    imported, as the kernel uses them between two statements of a cell."""
    stdlib = sysconfig.get_path("stdlib")
    found = []
    for name, module in list(sys.modules.items()):
        file = getattr(module, "__file__", None) or ""
        is_pythons = file.startswith(stdlib) and "site-packages" not in file
        if file and (is_pythons or name.partition(".")[0] in OURS):
            found.append(file)
    return found


NO_DEBUGPY = "debugpy is not installed on the ranks, which JupyterLab's debugger needs"
