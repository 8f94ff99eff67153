"""JupyterLab's debugger panel for tests: its requests to a kernel, and the events it receives."""

from __future__ import annotations

import contextlib
import itertools
import threading
import time
from collections.abc import Iterator
from queue import Empty
from typing import Any

from jupyter_client import BlockingKernelClient
from jupyter_core.utils import ensure_event_loop

from kernel import Kernel, Shown

Message = dict[str, Any]
ANSWERED_S = 60.0
SOON_S = 30.0


class Panel:
    """Sends requests as JupyterLab does: always about thread 1, one at a time."""

    def __init__(self, kernel: Kernel) -> None:
        self.kernel = kernel
        self.events: list[Message] = []
        self._numbers = itertools.count(1)
        self._client = BlockingKernelClient()
        self._client.load_connection_file(kernel.manager.connection_file)
        self._client.start_channels()
        self._open = True
        self._listener = threading.Thread(target=self._listen, daemon=True)
        self._listener.start()

    def close(self) -> None:
        self._open = False
        self._listener.join()
        self._client.stop_channels()

    def ask(self, command: str, **arguments: Any) -> Message:
        """Send a request; return the reply."""
        content = {
            "type": "request", "seq": next(self._numbers), "command": command,
            "arguments": arguments,
        }  # fmt: skip
        message = self._client.session.msg("debug_request", content)
        self._client.control_channel.send(message)
        while True:
            reply = self._client.get_control_msg(timeout=ANSWERED_S)
            if reply["parent_header"].get("msg_id") == message["msg_id"]:
                answer: Message = reply["content"]
                return answer

    def do(self, command: str, **arguments: Any) -> Any:
        """Send a request that must succeed; return the body of the reply."""
        answer = self.ask(command, **arguments)
        assert answer.get("success"), answer
        return answer.get("body")

    @property
    def is_on(self) -> bool:
        return bool(self.do("debugInfo")["isStarted"])

    def switch_on(self) -> None:
        self.do("initialize", clientID="jupyterlab", adapterID="", linesStartAt1=True)
        self.do("attach")
        self.do("configurationDone")

    def switch_off(self) -> None:
        self.do("disconnect", restart=False, terminateDebuggee=False)

    def click(self, code: str, *lines: int) -> list[int]:
        """Click beside these lines of a cell; return the lines that then have a breakpoint."""
        path = self.do("dumpCell", code=code)["sourcePath"]
        return self.click_in(path, *lines)

    def click_in(self, path: str, *lines: int) -> list[int]:
        asked = [{"line": line} for line in lines]
        body = self.do("setBreakpoints", source={"path": path}, breakpoints=asked)
        return [each["line"] for each in body["breakpoints"]]

    def stops(self) -> int:
        """How many `stopped` events have been received."""
        return sum(each["event"] == "stopped" for each in self.events)

    def heard(self, event: str, more_than: int = 0) -> None:
        """Wait until an event has been received more than `more_than` times."""
        deadline = time.monotonic() + SOON_S
        while sum(each["event"] == event for each in self.events) <= more_than:
            assert time.monotonic() < deadline, f"no {event}: {self.events}"
            time.sleep(0.02)

    def frames(self) -> list[tuple[str, int]]:
        """The names and lines of the stack's frames, innermost first."""
        found = self.do("stackTrace", threadId=1)["stackFrames"]
        return [(each["name"], each["line"]) for each in found]

    def variables(self) -> dict[str, str]:
        """Names and values of the innermost frame's variables."""
        [frame, *_] = self.do("stackTrace", threadId=1)["stackFrames"]
        [scope, *_] = self.do("scopes", frameId=frame["id"])["scopes"]
        found = self.do("variables", variablesReference=scope["variablesReference"])["variables"]
        return {each["name"]: each["value"] for each in found}

    def step(self, command: str = "next") -> list[tuple[str, int]]:
        """Step, and return the frames at the next stop."""
        before = self.stops()
        self.do(command, threadId=1)
        self.heard("stopped", before)
        return self.frames()

    def go_on(self) -> None:
        self.do("continue", threadId=1)

    def _listen(self) -> None:
        while self._open:
            with contextlib.suppress(Empty, OSError):
                message = self._client.get_iopub_msg(timeout=0.5)
                if message["msg_type"] == "debug_event":
                    self.events.append(message["content"])
        ensure_event_loop().close()  # this thread's


class InCell:
    """A cell that runs in a thread; `shown` is set when it has ended."""

    def __init__(self, kernel: Kernel, code: str, attended: bool = True) -> None:
        self._kernel, self._code, self._attended = kernel, code, attended
        self._thread = threading.Thread(target=self._run)
        self._thread.start()
        self.shown = Shown()

    def _run(self) -> None:
        self.shown = self._kernel.run(self._code, attended=self._attended)

    @property
    def is_over(self) -> bool:
        return not self._thread.is_alive()

    def over(self, seconds: float = SOON_S) -> Shown:
        """Wait for the cell's end; return what it has shown."""
        self._thread.join(seconds)
        assert self.is_over, "the cell is still running"
        return self.shown


@contextlib.contextmanager
def stopped(panel: Panel, code: str, attended: bool = True) -> Iterator[InCell]:
    """Run a cell to its first stop; at the end, interrupt it if it is still running."""
    before = panel.stops()
    cell = InCell(panel.kernel, code, attended)
    try:
        panel.heard("stopped", before)
        yield cell
    finally:
        cell._thread.join(2.0)
        if not cell.is_over:
            panel.kernel.interrupt()
            cell.over()
