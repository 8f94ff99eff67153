"""Publish a rank's output to ipyparallel's own clients, as any engine does.

A run's output goes to its record instead; `%%px` and the views of a client are not runs.
"""

from __future__ import annotations

import contextlib
import sys
from collections.abc import Iterator
from typing import Any

from ipykernel.iostream import OutStream


class ClientStream(OutStream):
    """Publishes what is written while a client's request runs, and passes it to `own` otherwise.

    A logger may keep this stream, and write to it, after the request.
    """

    def __init__(self, session: Any, publisher: Any, name: str, own: Any) -> None:
        super().__init__(session, publisher, name, watchfd=False)
        self.own = own
        self.is_on = False

    def write(self, string: str) -> Any:
        return super().write(string) if self.is_on else self.own.write(string)

    def flush(self) -> None:
        super().flush()
        self.own.flush()


class ClientOutput:
    """The streams for requests of these clients; created at the first request."""

    def __init__(self, session: Any, publisher: Any, engine_id: int) -> None:
        self._session = session
        self._publisher = publisher  # ipykernel's thread with the socket
        self._id = engine_id
        self._streams: dict[str, ClientStream] = {}

    @contextlib.contextmanager
    def published(self) -> Iterator[None]:
        """Publish what is printed in the block, but not what C code or child processes write."""
        for name in ("stdout", "stderr"):
            stream = self._streams.get(name) or self._made(name)
            if getattr(sys, name) is not stream:
                stream.own = getattr(sys, name)  # a cell may have replaced it since
            stream.is_on = True
            setattr(sys, name, stream)
        try:
            yield
        finally:
            for name, stream in self._streams.items():
                stream.flush()
                stream.is_on = False
                if getattr(sys, name) is stream:
                    setattr(sys, name, stream.own)

    def _made(self, name: str) -> ClientStream:
        made = ClientStream(self._session, self._publisher, name, getattr(sys, name))
        made.topic = f"engine.{self._id}.{name}".encode()
        self._streams[name] = made
        return made
