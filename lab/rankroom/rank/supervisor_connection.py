"""A rank's connection to its supervisor: events out, cells and requests in.

Three threads are at work. The connection's own only passes messages on, so that events are sent
while a request is being answered; a second one answers requests, whatever the cell does; cells run
in the main thread.
"""

from __future__ import annotations

import json
import os
import queue
import sys
import threading
from collections.abc import Callable
from functools import partial
from typing import Any

from rankroom.rank.environment import FORK_SAFE_MODULES
from rankroom.rpc.client import Client

Content = dict[str, Any]
Done = Callable[..., None]


class SupervisorConnection:
    """Created once, when the rank is ready to run cells.

    `main(content, buffers, done)` is called in the connection's thread with work for the main
    thread, a cell or a request about variables; it calls `done(answer, *buffers)` at the end.
    `answer(question)` is called in a thread of its own and returns the reply.
    `debug(message, done)` takes the requests of JupyterLab's debugger.
    """

    def __init__(
        self,
        address: str,
        key: str,
        rank: int,
        start: int,
        main: Callable[[Content, list[bytes], Done], None],
        answer: Callable[[Content], Content],
        debug: Callable[[Content, Done], None],
    ) -> None:
        self._main = main
        self._answer = answer
        self._debug = debug
        self._about: Content = {"rank": rank, "start": start}
        self._questions: queue.SimpleQueue[Content] = queue.SimpleQueue()
        self._client = Client(
            address, key, self._take, f"rank {rank} {start} {os.getpid()}".encode()
        )
        threading.Thread(target=self._answer_all, name="rankroom-answer", daemon=True).start()

    def ready(self) -> None:
        """Tell the supervisor that this rank can take cells."""
        self._client.tell(do="ready", **self._about)

    def send(self, header: Content, lines: bytes) -> None:
        """Send a batch of events; a cell's last batch at once, while interrupts are ignored."""
        if ended := header["ended"]:
            header["modules"] = [name for name in FORK_SAFE_MODULES if name in sys.modules]
        self._client.tell(lines, at_once=ended, do="events", **header)

    def tell_debugger(self, event: Content) -> None:
        """Send an event to the client whose debugger this rank is in."""
        self._client.tell(do="debugged", event=event, **self._about)

    def _take(self, content: Content, buffers: list[bytes]) -> None:
        number = content["number"]
        if content["do"] == "execute":
            self._main(content | json.loads(buffers[0]), [], partial(self._tell, number))
        elif content["do"] == "apply":
            self._main(content, buffers, partial(self._tell, number))
        elif content["do"] == "debug":
            self._debug(content["message"], partial(self._tell, number))
        else:
            self._questions.put(content)

    def _answer_all(self) -> None:
        while True:
            question = self._questions.get()
            try:
                answer = self._answer(question)
            except Exception as error:
                answer = {"failed": repr(error)}
            self._tell(question["number"], answer)

    def _tell(self, number: int, answer: Content, *buffers: bytes) -> None:
        self._client.tell(*buffers, do="answered", number=number, answer=answer)
