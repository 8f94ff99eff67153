"""A rank's connection to its supervisor: events out, cells and questions in.

Three threads are at work: the connection's own only passes on, so that events leave while a
question is answered; questions are answered in a second one, whatever the cell does; cells run in
the main thread.
"""

from __future__ import annotations

import json
import os
import queue
import signal
import threading
from collections.abc import Callable
from functools import partial
from typing import Any

from rankroom.rpc.client import Client

DONE_S = 0.1  # after the last event of a cell, until its end is sent once more
Content = dict[str, Any]
Done = Callable[..., None]


class SupervisorConnection:
    """Made once, when the rank is ready to run cells.

    `main(content, buffers, done)` is called, in the connection's thread, with what is for the main
    thread, a cell or a look at variables: `done(answer, *buffers)` once it is done.
    `answer(question)` is called in a thread of its own.
    """

    def __init__(
        self,
        address: str,
        key: str,
        rank: int,
        start: int,
        main: Callable[[Content, list[bytes], Done], None],
        answer: Callable[[Content], Content],
    ) -> None:
        self._main = main
        self._answer = answer
        self._about = {"rank": rank, "start": start}
        self._questions: queue.SimpleQueue[Content] = queue.SimpleQueue()
        self._client = Client(
            address, key, self._take, f"rank {rank} {start} {os.getpid()}".encode()
        )
        threading.Thread(target=self._answer_all, name="rankroom-answer", daemon=True).start()

    def ready(self) -> None:
        """Tell the supervisor that cells may come."""
        self._client.tell(do="ready", **self._about)

    def send(self, header: Content, lines: bytes) -> None:
        """Send a batch of events."""
        self._client.tell(lines, do="events", **header)

    def _take(self, content: Content, buffers: list[bytes]) -> None:
        number = content["number"]
        if content["do"] == "execute":
            cell = content | json.loads(buffers[0])
            self._main(cell, [], lambda answer: self._tell_later(number, answer))
        elif content["do"] == "apply":
            self._main(content, buffers, partial(self._tell, number))
        elif content["do"] == "signal":
            os.kill(os.getpid(), getattr(signal, content["signal"]))
            self._tell(number, {})
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

    def _tell_later(self, number: int, answer: Content) -> None:
        # Its last event has said it; this is for when that does not arrive.
        self._client.later(DONE_S, lambda: self._tell(number, answer))

    def _tell(self, number: int, answer: Content, *buffers: bytes) -> None:
        self._client.tell(*buffers, do="answered", number=number, answer=answer)
