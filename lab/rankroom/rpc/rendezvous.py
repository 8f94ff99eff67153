"""Where ranks meet: a desk that gathers what all of them say, and stores for Horovod.

A gathering is the one collective that needs no framework: it is what initialisations start with,
so that ranks which failed differently agree again, and it can be left at any moment.

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
from socket import SOMAXCONN
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:  # what only asks goes without asyncio
    from rankroom.rpc.horovod_store import HorovodStore

OPEN_S = 120.0  # a store that not all ranks reach is closed after this
LONGEST = 1 << 26  # bytes of a question; what ranks gather is small
POLL_S = 1.0  # a rank that waits at the desk asks again after this

Answer = Callable[[dict[str, Any]], dict[str, Any]]


class _Server(ThreadingHTTPServer):
    daemon_threads = True
    # What the kernel drops beyond, of 5 by default, is tried again after 1, 3 and 7 s.
    request_queue_size = SOMAXCONN


class _Round:
    """One gathering: what each rank said, until all have."""

    def __init__(self, number: int) -> None:
        self.number = number
        self.values: dict[int, Any] = {}
        self.complete = False


class Rendezvous:
    """The desk of one cluster: gathers, and opens and closes stores on behalf of the ranks."""

    def __init__(self, interface: str, secret: str, others: Answer) -> None:
        """`others` answers the questions that are not about stores."""
        self._interface = interface
        self._secret = secret
        self.others = others
        self._lock = threading.Lock()
        self._data: dict[str, dict[bytes, bytes]] = {}
        self._open: dict[str, HorovodStore] = {}
        self._met: dict[str, set[int]] = {}
        self._rounds: dict[str, list[_Round]] = {}
        self._arrived = threading.Condition(self._lock)
        desk = _Server((interface, 0), _DeskHandler)
        desk.rendezvous = self  # type: ignore[attr-defined]
        # Seconds between two looks whether it is to end, which it never is told.
        threading.Thread(target=desk.serve_forever, args=(60.0,), daemon=True).start()
        self.address = f"{interface}:{desk.server_address[1]}"

    def allowed(self, seal: str, body: bytes) -> bool:
        """Whether `seal` was made by one who knows the secret."""
        return hmac.compare_digest(_seal(self._secret, body).encode(), seal.encode())

    def gather(
        self, topic: str, number: int | None, rank: int, size: int, value: Any
    ) -> dict[str, Any]:
        """What all `size` ranks said about `topic`, once they have; else who has, after a while.

        A rank that asks again passes the number of its round, as the round may be over by then.
        """
        with self._lock:
            rounds = self._rounds.setdefault(topic, [_Round(0), _Round(1)])
            round_ = next((each for each in rounds if each.number == number), rounds[-1])
            if not round_.complete:
                round_.values[rank] = value
                if len(round_.values) >= size:
                    round_.complete = True
                    # Ranks still waiting in this round need it; nobody waits in an older one.
                    self._rounds[topic] = [round_, _Round(round_.number + 1)]
                    self._arrived.notify_all()
            self._arrived.wait_for(lambda: round_.complete or rank not in round_.values, POLL_S)
            values = [round_.values[each] for each in sorted(round_.values)]
            return {
                "round": round_.number,
                "complete": round_.complete,
                "ranks": sorted(round_.values),
                "values": values if round_.complete else [],
            }

    def leave(self, topic: str, rank: int) -> None:
        """`rank` no longer waits for the others at `topic`."""
        with self._lock:
            for round_ in self._rounds.get(topic, ()):
                if not round_.complete:
                    round_.values.pop(rank, None)
            self._arrived.notify_all()

    def meet(self, key: str) -> int:
        """The port of the store named `key`, opened now if it is not open."""
        from rankroom.rpc.horovod_store import HorovodStore

        with self._lock:
            if key not in self._open:
                self._met[key] = set()
                self._open[key] = HorovodStore(self._interface, self._data.setdefault(key, {}))
                timer = threading.Timer(OPEN_S, self._close, (key,))
                timer.daemon = True
                timer.start()
            return self._open[key].port

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


class _DeskHandler(BaseHTTPRequestHandler):
    server: Any
    timeout = 10  # for whoever connects and says nothing

    def log_message(self, format: str, *args: Any) -> None:
        pass

    def answer(self, status: int, body: bytes = b"") -> None:
        self.send_response(status)
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)

    def do_POST(self) -> None:
        rendezvous: Rendezvous = self.server.rendezvous
        length = int(self.headers.get("Content-Length") or 0)
        body = self.rfile.read(length) if length <= LONGEST else b""
        if not rendezvous.allowed(self.headers.get("Authorization") or "", body):
            self.answer(403)
            return
        ask = json.loads(body)
        if ask["do"] == "meet":
            self.answer(200, json.dumps({"port": rendezvous.meet(ask["key"])}).encode())
        elif ask["do"] == "met":
            rendezvous.met(ask["key"], ask["rank"], ask["size"])
            self.answer(200, b"{}")
        elif ask["do"] == "gather":
            answer = rendezvous.gather(
                ask["topic"], ask["round"], ask["rank"], ask["size"], ask["value"]
            )
            self.answer(200, json.dumps(answer).encode())
        elif ask["do"] == "leave":
            rendezvous.leave(ask["topic"], ask["rank"])
            self.answer(200, b"{}")
        else:
            self.answer(200, json.dumps(rendezvous.others(ask)).encode())


def ask(address: str, secret: str, patience: float = 30.0, **question: Any) -> dict[str, Any]:
    """A rank's question to the desk at `address`. Raises OSError when nobody answers.

    The secret itself does not travel: whoever gets the desk's port after it learns nothing.
    """
    body = json.dumps(question).encode()
    request = urllib.request.Request(
        f"http://{address}/",
        data=body,
        headers={"Authorization": _seal(secret, body)},
        method="POST",
    )
    # No proxy: a site's http_proxy must not get between ranks of one cluster.
    opener = urllib.request.build_opener(urllib.request.ProxyHandler({}))
    with opener.open(request, timeout=patience) as reply:
        answer: dict[str, Any] = json.loads(reply.read())
    return answer


def _seal(secret: str, body: bytes) -> str:
    return hmac.new(secret.encode(), body, "sha256").hexdigest()
