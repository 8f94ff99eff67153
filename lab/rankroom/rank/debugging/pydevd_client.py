"""ipykernel's debugger, connected to a pydevd in this process by a pair of sockets.

This module is imported when it is first needed, as it imports debugpy.
"""

from __future__ import annotations

import asyncio
import contextlib
import inspect
import itertools
import json
import shutil
import socket
import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any

from ipykernel import debugger as ipykernel_debugger
from ipykernel.compiler import get_tmp_directory
from ipykernel.debugger import Debugger, DebugpyClient
from traitlets.log import get_logger

from rankroom import config
from rankroom.errors import RankroomError
from rankroom.rank.debugging import tracing
from rankroom.system.internals import demand

Message = dict[str, Any]

# Requests that only a stopped thread answers.
STOPPED_THREAD_REQUESTS = {
    "completions", "evaluate", "exceptionInfo", "scopes", "setExpression", "setVariable",
    "stackTrace", "variables",
}  # fmt: skip
THREAD_RUNNING_REPLY = {
    "type": "response", "success": False, "message": "the rank is running",
    "body": {"result": "", "scopes": [], "stackFrames": [], "threads": [], "variables": []},
}  # fmt: skip


class DapDebugger(Debugger):
    """Answers what ipykernel answers for any kernel; `heard(event)` is called with pydevd's events.

    Raises RankroomError if there is no debugpy, or if ipykernel's debugger lacks a method.
    """

    def __init__(self, heard: Callable[[Message], None]) -> None:
        if not ipykernel_debugger._is_debugpy_available:
            raise RankroomError(NO_DEBUGPY)
        demand("ipykernel", Debugger, ["_handle_event", "process_request", "start", "stop"])
        log = get_logger()
        files = tracing.files_to_step_over()
        # Before ipykernel 7, the debugger took no files to leave out.
        knows = "kernel_modules" in inspect.signature(Debugger.__init__).parameters
        super().__init__(
            log, None, heard, None, None, **({"kernel_modules": files} if knows else {})
        )
        self._rules = [{"path": file, "include": False} for file in files]
        self.debugpy_client = PydevdClient(log, None, self._handle_event)
        self.debugpy_initialized = True  # debugpy's own server is not started

    def start(self) -> bool:
        """Start pydevd, and create the folder that ipykernel names for the cells' files."""
        config.make_own(Path(get_tmp_directory()))
        return bool(super().start())

    def stop(self) -> None:
        """Stop pydevd, and remove the cells' files."""
        super().stop()
        shutil.rmtree(get_tmp_directory(), ignore_errors=True)

    async def attach(self, message: Message) -> Message:
        """Attach so that other threads keep running where one stops: some are the rank's own."""
        how = {
            "debugOptions": ["DebugStdLib"],  # a user's own code may be below Python's folder
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
    """Sends requests to pydevd, and matches its replies to them in whatever order they arrive."""

    def get_host_port(self) -> tuple[str, int]:
        """Return the address that ipykernel gives to debugpy's adapter, which is not used here."""
        return "", 0

    def connect_tcp_socket(self) -> None:
        """Start pydevd, connected by a pair of sockets."""
        self._loop = asyncio.get_running_loop()
        self._numbers = itertools.count(1)
        self._asked: dict[int, tuple[str, asyncio.Future[Message]]] = {}
        self._socket, its = socket.socketpair()
        threading.Thread(
            target=self._read, args=[self._socket], name="rankroom-debugger-in", daemon=True
        ).start()
        tracing.start(its)

    def disconnect_tcp_socket(self) -> None:
        """Stop pydevd."""
        tracing.stop()
        with contextlib.suppress(OSError):
            self._socket.shutdown(socket.SHUT_RDWR)
        self._give_up(set())

    async def send_dap_request(self, msg: Message) -> Message:
        """Send a request, and return its reply."""
        if msg["command"] == "setBreakpoints":
            tracing.exclude_other_threads()  # those started since
        answer = await self._answered(msg)
        if msg["command"] == "attach":
            await self._answered({"type": "request", "command": "configurationDone"})
        return answer

    def resumed(self) -> None:
        """Give up pending requests that only a stopped thread answers, as it has resumed."""
        self._give_up(STOPPED_THREAD_REQUESTS)

    # -- messages

    async def _answered(self, msg: Message) -> Message:
        number = next(self._numbers)
        future: asyncio.Future[Message] = self._loop.create_future()
        self._asked[number] = msg["command"], future
        data = json.dumps({**msg, "seq": number}).encode()
        self._socket.sendall(b"Content-Length: %d\r\n\r\n%b" % (len(data), data))
        return {**await future, "request_seq": msg.get("seq", 0), "command": msg["command"]}

    def _give_up(self, commands: set[str]) -> None:
        """Answer pending requests of these commands ourselves; of all, if the set is empty."""
        for number, (command, future) in list(self._asked.items()):
            if not commands or command in commands:
                self._asked.pop(number)
                if not future.done():
                    future.set_result({**THREAD_RUNNING_REPLY, "seq": 0})

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


NO_DEBUGPY = (
    "JupyterLab's debugger needs debugpy, which is not installed on the ranks: run "
    "`pip install debugpy` in their environment"
)
