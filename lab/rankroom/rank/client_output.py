"""What a rank shows to ipyparallel's own clients: published to them, as any engine does it.

A run's output goes to its record instead. `%%px` and the views of a client are no runs.
"""

from __future__ import annotations

import contextlib
import sys
from collections.abc import Iterator
from typing import Any

from ipykernel.iostream import OutStream


class ClientStream(OutStream):
    """Publishes while a request of a client is on; a logger that keeps it writes to `own` later."""

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
    """Streams for requests of such clients; made when the first of them comes."""

    def __init__(self, session: Any, publisher: Any, engine_id: int) -> None:
        self._session = session
        self._publisher = publisher  # ipykernel's thread with the socket
        self._id = engine_id
        self._streams: dict[str, ClientStream] = {}

    @contextlib.contextmanager
    def published(self) -> Iterator[None]:
        """What is printed in here is published; what C code or a child writes is not."""
        for name in ("stdout", "stderr"):
            stream = self._streams.get(name) or self._made(name)
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
