"""Where ranks meet when Horovod initialises: one small key-value server per initialisation.

Horovod's Gloo writes addresses into an HTTP store that cannot be used twice. Each library (torch's
and TensorFlow's Horovod are two) and each re-initialisation therefore gets a store of its own, on
the interface the ranks use, open only until all of them have met. The store has no authentication
(Horovod's client cannot), so asking for one, and closing it, needs the cluster's secret.
"""

from __future__ import annotations

import hmac
import json
import threading
import urllib.request
from collections.abc import Callable
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

OPEN_S = 120.0  # a store that not all ranks reach is closed after this


Answer = Callable[[dict[str, Any]], dict[str, Any]]


class _Store(ThreadingHTTPServer):
    """PUT, GET and DELETE of /scope/key, as Horovod's Gloo client asks."""

    daemon_threads = True

    def __init__(self, interface: str, data: dict[str, bytes]) -> None:
        super().__init__((interface, 0), _StoreHandler)
        self.data = data
        threading.Thread(target=self.serve_forever, args=(0.05,), daemon=True).start()

    def close(self) -> None:
        self.shutdown()
        self.server_close()


class _Quiet(BaseHTTPRequestHandler):
    server: Any

    def log_message(self, format: str, *args: Any) -> None:
        pass

    def answer(self, status: int, body: bytes = b"") -> None:
        self.send_response(status)
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)

    def body(self) -> bytes:
        return self.rfile.read(int(self.headers.get("Content-Length") or 0))


class _StoreHandler(_Quiet):
    def do_GET(self) -> None:
        value = self.server.data.get(self.path)
        self.answer(404 if value is None else 200, value or b"")

    def do_PUT(self) -> None:
        self.server.data[self.path] = self.body()
        self.answer(200)

    def do_DELETE(self) -> None:
        # Horovod's "I am done"; the values stay, as slower ranks still need them.
        self.answer(200)


class Rendezvous:
    """Opens and closes stores on behalf of the ranks of one cluster."""

    def __init__(self, interface: str, secret: str, others: Answer) -> None:
        """`others` answers the questions that are not about stores."""
        self._interface = interface
        self._secret = secret
        self.others = others
        self._lock = threading.Lock()
        self._data: dict[str, dict[str, bytes]] = {}
        self._open: dict[str, _Store] = {}
        self._met: dict[str, set[int]] = {}
        desk = ThreadingHTTPServer((interface, 0), _DeskHandler)
        desk.daemon_threads = True
        desk.rendezvous = self  # type: ignore[attr-defined]
        threading.Thread(target=desk.serve_forever, args=(0.05,), daemon=True).start()
        self.address = f"{interface}:{desk.server_address[1]}"

    def allowed(self, secret: str) -> bool:
        return hmac.compare_digest(self._secret.encode(), secret.encode())

    def meet(self, key: str) -> int:
        """The port of the store named `key`, opened now if it is not open."""
        with self._lock:
            if key not in self._open:
                self._met[key] = set()
                self._open[key] = _Store(self._interface, self._data.setdefault(key, {}))
                timer = threading.Timer(OPEN_S, self._close, (key,))
                timer.daemon = True
                timer.start()
            return int(self._open[key].server_address[1])

    def met(self, key: str, rank: int, size: int) -> None:
        """`rank` has met the others; the store closes when all `size` have."""
        with self._lock:
            self._met.setdefault(key, set()).add(rank)
            complete = len(self._met[key]) >= size
        if complete:
            self._close(key)

    def _close(self, key: str) -> None:
        with self._lock:
            store = self._open.pop(key, None)
        if store is not None:
            store.close()


class _DeskHandler(_Quiet):
    def do_POST(self) -> None:
        rendezvous: Rendezvous = self.server.rendezvous
        if not rendezvous.allowed(self.headers.get("Authorization") or ""):
            self.answer(403)
            return
        ask = json.loads(self.body())
        if ask["do"] == "meet":
            self.answer(200, json.dumps({"port": rendezvous.meet(ask["key"])}).encode())
        elif ask["do"] == "met":
            rendezvous.met(ask["key"], ask["rank"], ask["size"])
            self.answer(200, b"{}")
        else:
            self.answer(200, json.dumps(rendezvous.others(ask)).encode())


def ask(address: str, secret: str, **question: Any) -> dict[str, Any]:
    """A rank's question to the desk at `address`. Raises OSError when nobody answers."""
    request = urllib.request.Request(
        f"http://{address}/",
        data=json.dumps(question).encode(),
        headers={"Authorization": secret},
        method="POST",
    )
    # No proxy: a site's http_proxy must not get between ranks of one cluster.
    opener = urllib.request.build_opener(urllib.request.ProxyHandler({}))
    with opener.open(request, timeout=30) as reply:
        answer: dict[str, Any] = json.loads(reply.read())
    return answer
