"""Show a rank in JupyterLab's own debugger, in place of the notebook's kernel.

JupyterLab sends its requests to the kernel, which passes them on to the rank. JupyterLab identifies
a cell by a file that is named after a hash of the cell's text. On the rank, a `%%distributed` cell
is another file, which has only the lines that follow the magic.
"""

from __future__ import annotations

import ast
import asyncio
import contextlib
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from typing import Any, ClassVar

from ipykernel.compiler import get_file_name, get_tmp_directory, get_tmp_hash_seed
from ipykernel.ipkernel import IPythonKernel

from rankroom.cluster.base import AnyCluster
from rankroom.errors import NoClusterError, RankroomError, UsageError
from rankroom.system.internals import demand

Message = dict[str, Any]

MAX_CONCURRENT_REQUESTS = 8  # concurrent requests: one may evaluate something that takes long


@dataclass
class PanelCell:
    """A cell as JupyterLab knows it, by the file `here`. If it runs on the rank, `there` is its
    file on the rank, of which line 1 is line `before` + 1 here."""

    here: str
    text: str
    there: str = ""
    before: int = 0
    breakpoints: list[Message] = field(default_factory=list)


class RankInPanel:
    """From `show` to `leave`, JupyterLab's debugger shows `rank` in the notebook of `shell`."""

    current: ClassVar[RankInPanel | None] = None

    def __init__(self, shell: Any, cluster: AnyCluster, rank: int) -> None:
        self.cluster = cluster
        self.rank = rank
        self._shell = shell
        self._kernel = shell.kernel
        self._own = self._kernel.do_debug_request
        self._pool = ThreadPoolExecutor(MAX_CONCURRENT_REQUESTS, "rankroom-panel")
        self._cells: dict[str, PanelCell] = {}  # by either file

    def show(self) -> None:
        """Pass the debugger's requests on to the rank from now on.

        Raises UsageError if JupyterLab's debugger is switched on, here or in another notebook for
        this rank, RankroomError if the rank has no debugger.
        """
        demand("ipykernel", IPythonKernel, ["do_debug_request"])
        if getattr(getattr(self._kernel, "debugger", None), "is_started", False):
            raise UsageError(DEBUGGER_IS_ON)
        if self._is_on():  # a notebook that has ended left it on
            self.cluster.debug(self.rank, request("disconnect"))
        self.cluster.on_debugged = self._told
        self._kernel.do_debug_request = self._answer
        RankInPanel.current = self

    def leave(self) -> None:
        """Give the debugger back to the kernel. Raises UsageError if it is switched on."""
        is_on = False
        with contextlib.suppress(RankroomError):  # the rank is gone, or no longer in its cluster
            is_on = self._is_on()
        if is_on:
            raise UsageError(DEBUGGER_IS_ON)
        self._kernel.do_debug_request = self._own
        self._pool.shutdown(wait=False)
        RankInPanel.current = None

    def _is_on(self) -> bool:
        return bool(self.cluster.debug(self.rank, request("debugInfo"))["body"]["isStarted"])

    # -- requests of JupyterLab, in the kernel's control thread

    async def _answer(self, message: Message) -> Message:
        """Return the response to any request; JupyterLab logs why one failed."""
        command = message["command"]
        try:
            if command == "dumpCell":
                return await self._keep_cell(message)
            if command == "setBreakpoints":
                return await self._set_breakpoints(message)
            if command == "source" and (cell := self._cells.get(_path(message))):
                return response(message, {"content": cell.text})
            answer = await self._ask(message)
        except RankroomError as error:
            if isinstance(error, NoClusterError) and not self.cluster.running:
                self.leave()
                return dict(await self._own(message))
            if command == "debugInfo":
                return response(message, self._info({"isStarted": False, "stoppedThreads": []}))
            return {**response(message, {}), "success": False, "message": str(error)}
        if command == "debugInfo":
            answer["body"] = self._info(answer["body"])
        elif command == "stackTrace":
            for frame in answer.get("body", {}).get("stackFrames", ()):
                self._translate(frame)
        return answer

    async def _keep_cell(self, message: Message) -> Message:
        text = message["arguments"]["code"]
        cell = PanelCell(get_file_name(text), text)
        body = self._on_ranks(text)
        if body is not None:
            # `body` lacks the magic's line. Count lines, as IPython adds a newline at the end.
            cell.before = len(text.splitlines()) - len(body.splitlines())
            dumped = await self._ask(request("dumpCell", code=body))
            if dumped:  # empty if the debugger is off
                cell.there = dumped["body"]["sourcePath"]
                self._cells[cell.there] = cell
        before = self._cells.get(cell.here)
        cell.breakpoints = before.breakpoints if before else []
        self._cells[cell.here] = cell
        return response(message, {"sourcePath": cell.here})

    def _on_ranks(self, text: str) -> str | None:
        """Return the part of a cell that runs on ranks; None if the cell runs in the kernel."""
        try:
            [statement] = ast.parse(self._shell.transform_cell(text)).body
            magic, _, body = [ast.literal_eval(each) for each in statement.value.args]
        except (AttributeError, SyntaxError, ValueError):
            return None
        return str(body) if magic == "distributed" else None

    async def _set_breakpoints(self, message: Message) -> Message:
        cell = self._cells.get(_path(message))
        if cell is None:  # breakpoints in a file
            return await self._ask(message)
        wanted = message["arguments"].get("breakpoints") or []
        if not cell.there:
            cell.breakpoints = [{**each, "verified": False} for each in wanted]
            return response(message, {"breakpoints": cell.breakpoints})
        there = [{**each, "line": max(1, each["line"] - cell.before)} for each in wanted]
        arguments = {"source": {"path": cell.there}, "breakpoints": there}
        answer = await self._ask({**message, "arguments": {**message["arguments"], **arguments}})
        for each in answer.get("body", {}).get("breakpoints", ()):
            self._translate(each)
        cell.breakpoints = answer.get("body", {}).get("breakpoints", [])
        return answer

    async def _ask(self, message: Message) -> Message:
        loop = asyncio.get_running_loop()
        return await loop.run_in_executor(self._pool, self.cluster.debug, self.rank, message)

    # -- responses and events for JupyterLab

    def _info(self, body: Message) -> Message:
        """Return the body of a `debugInfo` response with what JupyterLab needs to find the files of
        cells and to show breakpoints again."""
        cells = {cell.here: cell for cell in self._cells.values() if cell.breakpoints}
        others = [
            each for each in body.get("breakpoints", ())
            if each["source"] not in self._cells
        ]  # fmt: skip
        mine = [
            {"source": here, "breakpoints": [{"line": b["line"]} for b in cell.breakpoints]}
            for here, cell in cells.items()
        ]
        return {
            **body,
            "hashMethod": "Murmur2",
            "hashSeed": get_tmp_hash_seed(),
            "tmpFilePrefix": f"{get_tmp_directory()}/",
            "tmpFileSuffix": ".py",
            "breakpoints": [*others, *(mine if body["isStarted"] else [])],
        }

    def _translate(self, about: Message) -> None:
        """Change the source and line of a frame or breakpoint in a cell's file on the rank to those
        of the cell in the notebook."""
        source = about.get("source") or {}
        cell = self._cells.get(source.get("path", ""))
        if cell is not None and cell.there == source["path"]:
            about["source"] = {**source, "path": cell.here}
            about["line"] += cell.before

    def _told(self, rank: int, event: Message | None) -> None:
        if rank != self.rank:
            return
        if event is None:  # the rank's process has ended
            about = {"threadId": 1, "allThreadsContinued": True}
            event = {"type": "event", "seq": 0, "event": "continued", "body": about}
        self._kernel._publish_debug_event(event)


def request(command: str, **arguments: Any) -> Message:
    """Return a request of our own."""
    return {"type": "request", "command": command, "seq": 0, "arguments": arguments}


def response(message: Message, body: Message) -> Message:
    """Return a response to the request `message`."""
    about = {"type": "response", "seq": message["seq"], "request_seq": message["seq"]}
    return {**about, "success": True, "command": message["command"], "body": body}


def _path(message: Message) -> str:
    return str((message["arguments"].get("source") or {}).get("path", ""))


DEBUGGER_IS_ON = (
    "JupyterLab's debugger is on: switch it off first (the bug icon above the notebook)"
)
