"""Plays a learner: runs a notebook's cells on the learner's server, over a websocket as a browser
does.

`lesson_player.py ADDRESS TOKEN NOTEBOOK OPTIONS`, where ADDRESS is http://HOST:PORT and OPTIONS are
JSON: `solved` exercises are answered with the course's solutions, and `hang` adds a cell that hangs
and is interrupted once the file `go-on` exists in the home folder. Prints a line of JSON for each
cell: its id, what it printed, and whether it raised.
"""

from __future__ import annotations

import json
import sys
import time
import urllib.request
import uuid
from pathlib import Path
from typing import Any

import websocket

from rankroom.course.lessons import LESSONS
from rankroom.course.solutions import solutions

CELL_S = 300.0
# How long a learner reads the output of a cell, and of a cell that failed.
READS_S, WONDERS_S = 0.2, 5.0
# The server only accepts requests for a local host, as they arrive through a user's tunnel.
HOST = "localhost"
HANG = """%%distributed
import time
import torch
import torch.distributed as dist
if not dist.is_initialized():
    dist.init_process_group("gloo")
dist.barrier() if rank == 0 else time.sleep(600)
"""


class Page:
    """A notebook that is open in a browser, with its kernel."""

    def __init__(self, address: str, token: str) -> None:
        self._address = address
        self._headers = {"Authorization": f"token {token}", "Host": HOST}
        self._kernel = json.load(self._post("/api/kernels", b"{}"))["id"]
        channels = address.replace("http", "ws") + f"/api/kernels/{self._kernel}/channels"
        header = {"Authorization": f"token {token}"}
        self._socket = websocket.create_connection(
            channels, header=header, host=HOST, timeout=CELL_S
        )

    def send(self, source: str) -> str:
        """Send a cell; return the message id to wait for."""
        number = uuid.uuid4().hex
        head = {"msg_id": number, "msg_type": "execute_request", "session": "s", "username": "u",
                "version": "5.3"}  # fmt: skip
        content = {"code": source, "silent": False, "stop_on_error": False}
        message = {"header": head, "parent_header": {}, "metadata": {}, "channel": "shell"}
        self._socket.send(json.dumps({**message, "content": content}))
        return number

    def wait(self, number: str) -> tuple[str, bool]:
        """What the cell printed, and whether it raised."""
        said, raised = [], False
        while True:
            message = json.loads(self._socket.recv())
            if message["parent_header"].get("msg_id") != number:
                continue
            content = message["content"]
            said.append(content.get("text") or content.get("data", {}).get("text/plain", ""))
            if message["msg_type"] == "error":
                raised = True
                said.append("\n".join(content["traceback"]))
            if message["msg_type"] == "status" and content["execution_state"] == "idle":
                return "".join(said), raised

    def interrupt(self) -> None:
        """Interrupt the kernel, as the stop button does."""
        self._post(f"/api/kernels/{self._kernel}/interrupt", b"")

    def _post(self, path: str, data: bytes) -> Any:
        request = urllib.request.Request(
            self._address + path, data=data, headers=self._headers, method="POST"
        )
        return urllib.request.urlopen(request, timeout=CELL_S)


def cells(notebook: Path, solved: list[str]) -> list[tuple[str, str]]:
    """The ids and sources of the code cells; solved exercises have the course's solution."""
    lesson = next(each for each in LESSONS if each.file == notebook.name)
    answers = {each.exercise: each.source for each in solutions(lesson) if each.exercise in solved}
    found = []
    for cell in json.loads(notebook.read_text("utf-8"))["cells"]:
        source = "".join(cell["source"])
        name = source.partition("\n")[0].removeprefix("%%check ")
        if cell["cell_type"] == "code":
            answer = answers.get(name)
            found.append((cell["id"], f"%%check {name}\n{answer}" if answer else source))
    return found


def play(address: str, token: str, notebook: Path, options: dict[str, Any]) -> None:
    page = Page(address, token)
    for name, source in cells(notebook, options.get("solved", [])):
        said, raised = page.wait(page.send(source))
        tell(name, said, raised)
        time.sleep(WONDERS_S if raised else READS_S)
    if options.get("hang"):
        number = page.send(HANG)
        tell("hangs", "", False)
        until = time.monotonic() + CELL_S
        while not Path.home().joinpath("go-on").exists() and time.monotonic() < until:
            time.sleep(0.1)
        page.interrupt()
        tell("hang", *page.wait(number))
    tell("end", "", False)


def tell(name: str, said: str, raised: bool) -> None:
    print(json.dumps({"cell": name, "said": said, "raised": raised}), flush=True)


if __name__ == "__main__":
    play(sys.argv[1], sys.argv[2], Path(sys.argv[3]), json.loads(sys.argv[4]))
