"""The key-value store in which Horovod's ranks find one another's addresses, as Gloo expects it.

Gloo sends HTTP requests, with a connection for each. N ranks with Rankroom's build send 3 N of
them, with a site's own build some 10 N², and poll every 10 ms for keys that do not exist yet. So
one thread answers all, and a request for a missing key is held until the key exists. Horovod's
client cannot authenticate itself: its connection is admitted by its origin, and a store is open
only while ranks meet.
"""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Callable
from socket import SOMAXCONN

Admits = Callable[[tuple[str, int], tuple[str, int]], bool]
HOLD_S = 1.0  # a request for a missing key is held for at most so long; Gloo retries
REQUEST_TIMEOUT_S = 10.0  # timeout for a connected peer to send a whole request
LARGEST = 1 << 20  # bytes of a request: 1,024 ranks' addresses of each other are 0.2 MB
MOST = 1 << 28  # bytes put into a store, including keys

_loop: asyncio.AbstractEventLoop | None = None
_lock = threading.Lock()


class HorovodStore:
    """Serves PUT, GET and DELETE of /scope/key on a port of its own; `data` outlives it.

    `admits(peer, here)` says whether a connection between these two addresses is a rank's.
    """

    def __init__(self, interface: str, data: dict[bytes, bytes], admits: Admits) -> None:
        """Raises OSError when no port of `interface` can be opened."""
        self.data = data
        self.admits = admits
        self.taken = 0
        self.peers: set[_Peer] = set()
        self.waiting: dict[bytes, set[_Peer]] = {}
        loop = _running()
        self._server = asyncio.run_coroutine_threadsafe(self._open(interface), loop).result()
        self.port: int = self._server.sockets[0].getsockname()[1]

    def close(self) -> None:
        """Stop listening, and close all connections."""
        _running().call_soon_threadsafe(self._close)

    async def _open(self, interface: str) -> asyncio.Server:
        loop = asyncio.get_running_loop()
        return await loop.create_server(lambda: _Peer(self), interface, 0, backlog=SOMAXCONN)

    def _close(self) -> None:
        self._server.close()
        for peer in list(self.peers):
            peer.transport.abort()


class _Peer(asyncio.Protocol):
    """One connection, for one request."""

    transport: asyncio.Transport

    def __init__(self, store: HorovodStore) -> None:
        self._store = store
        self._got = b""
        self._path = b""

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        assert isinstance(transport, asyncio.Transport)
        self.transport = transport
        self._store.peers.add(self)
        self._deadline = asyncio.get_running_loop().call_later(REQUEST_TIMEOUT_S, transport.abort)
        peer, here = (transport.get_extra_info(each) for each in ("peername", "sockname"))
        if not (peer and self._store.admits(peer, here)):
            transport.abort()

    def connection_lost(self, exc: Exception | None) -> None:
        self._deadline.cancel()
        self._store.peers.discard(self)
        self._wait_no_more()

    def data_received(self, data: bytes) -> None:
        self._got += data
        if len(self._got) > LARGEST:
            self.transport.abort()
            return
        head, is_whole, body = self._got.partition(b"\r\n\r\n")
        if self._path or not is_whole:
            return
        first, *headers = head.split(b"\r\n")
        named = dict(header.lower().split(b":", 1) for header in headers if b":" in header)
        length = named.get(b"content-length", b"0").strip()
        method, _, rest = first.partition(b" ")
        if not length.isdigit() or len(length) > 9 or method not in (b"GET", b"PUT", b"DELETE"):
            self.transport.abort()
        elif len(body) >= int(length):
            self._path = rest.partition(b" ")[0]
            self._act(method, body[: int(length)])

    def answer(self, status: bytes, body: bytes = b"") -> None:
        """Send the reply and close the connection: Gloo reads until it is closed."""
        self.transport.write(b"HTTP/1.0 %s\r\nContent-Length: %d\r\n\r\n" % (status, len(body)))
        self.transport.write(body)
        self.transport.close()

    def _act(self, method: bytes, body: bytes) -> None:
        store, path = self._store, self._path
        if method == b"PUT":
            store.taken += len(path) + len(body)
            if store.taken > MOST:
                self.transport.abort()
                return
            store.data[path] = body
            self.answer(b"200 OK")
            for peer in store.waiting.pop(path, ()):
                peer.answer(b"200 OK", body)
        elif method == b"DELETE":
            # Horovod's "I am done"; the values stay, as slower ranks still need them.
            self.answer(b"200 OK")
        elif path in store.data:
            self.answer(b"200 OK", store.data[path])
        else:
            store.waiting.setdefault(path, set()).add(self)
            self._deadline.cancel()
            loop = asyncio.get_running_loop()
            self._deadline = loop.call_later(HOLD_S, self._give_up)

    def _give_up(self) -> None:
        self._wait_no_more()
        self.answer(b"404 Not Found")

    def _wait_no_more(self) -> None:
        waiting = self._store.waiting.get(self._path, set())
        waiting.discard(self)
        if not waiting:
            self._store.waiting.pop(self._path, None)


def _running() -> asyncio.AbstractEventLoop:
    """Return the event loop of all stores of this process, which runs in a thread of its own."""
    global _loop
    with _lock:
        if _loop is None:
            made = asyncio.new_event_loop()
            thread = threading.Thread(target=made.run_forever, name="horovod-stores", daemon=True)
            try:
                thread.start()
            except RuntimeError:  # no thread available: the next call must not get a dead loop
                made.close()
                raise
            _loop = made
        return _loop
