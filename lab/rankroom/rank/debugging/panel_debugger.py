"""A rank in JupyterLab's own debugger: breakpoints in the gutter of a cell, steps, variables.

JupyterLab speaks the Debug Adapter Protocol (DAP). ipykernel answers a part of it, and pydevd,
which comes with debugpy, the rest. Requests to a rank arrive through the supervisor, and pydevd has
one end of a pair of sockets, so that no port is opened. All this runs in a thread of its own. Only
the main thread, which runs the cells, is ever stopped. Meanwhile the run's prompt takes commands,
too.
"""

from __future__ import annotations

import asyncio
import contextlib
import json
import os
import re
import signal
import threading
from collections.abc import Callable, Coroutine
from pathlib import Path
from types import FrameType
from typing import Any

from jupyter_client.jsonutil import json_default
from traitlets.log import get_logger

from rankroom.errors import RankroomError
from rankroom.rank.debugging import tracing
from rankroom.rank.debugging.prompts import Prompts
from rankroom.reporting.spans import span

Message = dict[str, Any]
Done = Callable[[Message], None]

PROMPT = "debugger> "
# Commands at the prompt, and their requests in DAP. Anything else but `q` and `w` is evaluated.
DAP_REQUESTS = {
    "c": "continue", "n": "next", "s": "stepIn", "r": "stepOut",
    "continue": "continue", "next": "next", "step": "stepIn", "return": "stepOut",
}  # fmt: skip
FORWARDED_EVENTS = {
    "initialized",
    "stopped",
    "continued",
    "thread",
    "breakpoint",
}  # events that are passed on


class PanelDebugger:
    """Handles the requests of JupyterLab to this rank's debugger; `tell(event)` sends it an event.

    `cells()` returns the file names of this session's cells.
    """

    def __init__(
        self, prompts: Prompts, cells: Callable[[], set[str]], tell: Callable[[Message], None]
    ) -> None:
        self._prompts = prompts
        self._cells = cells
        self._tell = tell
        self._loop: asyncio.AbstractEventLoop | None = None
        self._debugger: Any = None
        self._stopped: int | None = None  # pydevd's id of the main thread, while it is stopped
        self._place = ""
        self._span = contextlib.ExitStack()
        self._traces = False  # whether pydevd may be tracing the main thread
        os.register_at_fork(after_in_child=self._spare_child)

    @property
    def is_on(self) -> bool:
        """Whether JupyterLab's debugger is switched on for this rank."""
        return self._debugger is not None and self._debugger.is_started

    def take(self, message: Message, done: Done) -> None:
        """Handle a DAP request, then call `done({"answer": …})` or `done({"refused": why})`; called
        from any thread."""
        if self._loop is None:
            self._loop = asyncio.new_event_loop()
            threading.Thread(
                target=self._loop.run_forever, name="rankroom-debugger", daemon=True
            ).start()
        asyncio.run_coroutine_threadsafe(self._answer(message, done), self._loop)

    # -- in the main thread

    def begin_cell(self) -> None:
        """Trace the cell that starts if the debugger is on: an interrupt may have stopped that."""
        if self.is_on:
            self._traces = True
            tracing.trace_this_thread()
        elif self._traces:
            self._traces = False
            tracing.stop_tracing()

    def end_cell(self) -> None:
        """Stop tracing after a cell, however it ended: an interrupt may have come at a
        breakpoint."""
        if self._traces:
            tracing.stop_tracing()
            if stopped := set(self._debugger.stopped_threads):
                self._do_soon(self._note_interrupt(stopped))

    def _spare_child(self) -> None:
        """Stop tracing in a process that the cell has forked: no debugger could resume it."""
        if self._traces:
            tracing.stop_tracing()

    def stop_in(self, frame: FrameType) -> None:
        """Stop in `frame` now, as breakpoint() does."""
        tracing.stop_in(frame)

    # -- in the debugger's own thread

    async def _answer(self, message: Message, done: Done) -> None:
        try:
            if self._debugger is None:
                # debugpy is large: it is imported only when needed.
                from rankroom.rank.debugging.pydevd_client import DapDebugger

                self._debugger = DapDebugger(self._on_event)
            arguments = message.get("arguments") or {}
            if self._stopped is not None and "threadId" in arguments:
                # JupyterLab assumes that the thread that runs cells is number 1.
                message = {**message, "arguments": {**arguments, "threadId": self._stopped}}
            answer = await self._debugger.process_request(message)
            if message["command"] == "stackTrace":
                self._leave_out_callers(answer.get("body", {}))
            said = {"answer": json.loads(json.dumps(answer, default=json_default))}
        except RankroomError as error:
            said = {"refused": str(error)}
        except Exception as error:
            said = {"refused": f"{type(error).__name__}: {error}"}
        if message["command"] == "disconnect":
            self._resumed()
        self._traces |= self.is_on  # setting a breakpoint makes pydevd trace threads
        done(said)

    def _on_event(self, event: Message) -> None:
        """Handle an event of pydevd."""
        if event["event"] == "stopped":
            self._do_soon(self._stop(event))
        elif event["event"] in FORWARDED_EVENTS:
            if event["event"] == "continued":
                self._resumed()
            self._tell(event)

    async def _stop(self, event: Message) -> None:
        """Report to the panel that a thread has stopped, and open the run's prompt for it."""
        thread: int = event["body"]["threadId"]
        frames = (await self._request("stackTrace", threadId=thread))["body"]["stackFrames"]
        place = self._place_of(frames)
        known = (await self._request("threads"))["body"]["threads"]
        names = {each["name"] for each in known if each["id"] == thread}
        if thread not in self._debugger.stopped_threads:  # it was continued or interrupted
            return
        why = self._prompts.unattended
        if names - {threading.main_thread().name}:
            why = "it is not in the rank's main thread"
        if why:
            self._prompts.pass_over("a breakpoint", place, why)
            await self._request("continue", threadId=thread)
            return
        self._stopped, self._place = thread, place
        self._span.enter_context(span("in the debugger"))
        self._tell(event)
        self._ask()

    def _ask(self) -> None:
        self._prompts.begin_question(
            "debugger", PROMPT, self._place, lambda text: self._do_soon(self._take_command(text))
        )

    async def _take_command(self, text: str | None) -> None:
        """Execute a command that was typed at the prompt; None releases the cell."""
        thread = self._stopped
        if thread is None:  # it was continued in the panel
            return
        if text is not None:
            print(f"{PROMPT}{text}", flush=True)
        words = (text or "").strip()
        if text is None or words in ("q", "quit"):
            signal.pthread_kill(threading.main_thread().ident or 0, signal.SIGINT)
            return
        if command := DAP_REQUESTS.get(words):
            await self._request(command, threadId=thread)
            return
        if words:
            print(await self._evaluated(words, thread), flush=True)
        if self._stopped is not None:
            self._prompts.end_question()
            self._ask()

    async def _evaluated(self, words: str, thread: int) -> str:
        """Return the stack, or the value of an expression in its innermost frame, as text."""
        body = (await self._request("stackTrace", threadId=thread))["body"]
        self._leave_out_callers(body)
        frames = body["stackFrames"]
        if words in ("w", "where"):
            return "\n".join(f"{self._line_of(each)} in {each['name']}" for each in frames)
        if not frames:  # it was continued in the panel
            return ""
        expression = re.sub(r"^pp? ", "", words)  # pdb's commands p and pp
        answer = await self._request(
            "evaluate", expression=expression, frameId=frames[0]["id"], context="repl"
        )
        return str(answer["body"]["result"] if answer["success"] else answer.get("message", ""))

    def _place_of(self, frames: list[Message]) -> str:
        """Return where it has stopped, in the words of the prompt; `frames` are innermost first."""
        cells = self._cells()
        ours = [each for each in frames if _path(each) in cells]
        if not frames or _path(frames[0]) not in cells:
            return self._line_of(frames[0] if frames else {})
        # The line in the running cell, even if it has stopped in a function of an earlier one.
        return self._line_of(next(each for each in ours if _path(each) == _path(ours[-1])))

    def _line_of(self, frame: Message) -> str:
        path, line = _path(frame), frame.get("line", 0)
        return f"cell line {line}" if path in self._cells() else f"{Path(path).name}:{line}"

    def _leave_out_callers(self, body: Message) -> None:
        """Remove the frames outside the cell."""
        frames, cells = body.get("stackFrames", []), self._cells()
        ours = [i for i, each in enumerate(frames) if _path(each) in cells]
        if ours:
            body["stackFrames"] = frames[: ours[-1] + 1]
            body.pop("totalFrames", None)

    def _resumed(self) -> None:
        if self._stopped is not None:
            self._stopped = None
            self._prompts.end_question()
            self._span.close()
            self._debugger.debugpy_client.resumed()

    async def _note_interrupt(self, stopped: set[int]) -> None:
        """Tell pydevd and the panel that these threads, which pydevd takes for stopped, have been
        resumed: an interrupt has ended the cell."""
        for thread in stopped:
            await self._request("continue", threadId=thread)
            if thread in self._debugger.stopped_threads:
                self._debugger.stopped_threads.discard(thread)
                self._resumed()
                about = {"threadId": thread, "allThreadsContinued": True}
                self._tell({"type": "event", "event": "continued", "seq": 0, "body": about})

    async def _request(self, command: str, **arguments: Any) -> Message:
        request = {"type": "request", "command": command, "arguments": arguments}
        answer: Message = await self._debugger.debugpy_client.send_dap_request(request)
        return answer

    def _do_soon(self, what: Coroutine[Any, Any, None]) -> None:
        assert self._loop is not None
        asyncio.run_coroutine_threadsafe(_logged(what), self._loop)


def _path(frame: Message) -> str:
    return str((frame.get("source") or {}).get("path", ""))


async def _logged(what: Coroutine[Any, Any, None]) -> None:
    """Await `what`, and write an error to the rank's log."""
    try:
        await what
    except Exception:
        get_logger().exception("JupyterLab's debugger")
