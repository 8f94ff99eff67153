"""The connection of one kernel to the ranks of a cluster: requests out, batches of events in.

Requests go through ipyparallel's client. Events come on a subscription of our own, because the
client hands messages only to whoever sent the request; a kernel that attaches later must see them
too, and nothing needs to parse or keep them on the way.
"""

from __future__ import annotations

import contextlib
import functools
import json
import logging
import os
import threading
import time
from collections.abc import Callable, Sequence
from concurrent.futures import Future, wait
from pathlib import Path
from typing import Any

import ipyparallel
import zmq

from rankroom.errors import NoClusterError
from rankroom.rpc.sessions import session_for, unsigned_as_encrypted
from rankroom.system.internals import demand

TOPIC = b"rankroom"
# Of ipyparallel's client, and touched in this module only.
INTERNALS = (
    "_mux_stream", "_control_stream", "_query_stream", "_send", "_io_loop", "_build_targets",
    "_update_engines",
)  # fmt: skip
RETRY_MS = 5000  # at most, between two tries to reach a controller that is gone
CONNECT_S = 10.0  # for the controller to answer, unless the machine is very busy
ASK_S = 0.5  # between two questions which ranks there are, or whether they are reached
REACH_S = 20.0  # for ranks to be reached
Receive = Callable[[dict[str, Any], bytes], None]


def context() -> zmq.Context[zmq.Socket[bytes]]:
    """What all links of this process are made with.

    Its sockets pause longer and longer where nobody listens: a notebook may keep the link to a
    cluster that has died for days, and somebody else may come to listen there.
    """
    return _context_of(os.getpid())


@functools.cache
def _context_of(pid: int) -> zmq.Context[zmq.Socket[bytes]]:
    made = zmq.Context()  # one that was made before a fork has no threads after it
    made.reconnect_ivl_max = RETRY_MS
    return made


class Link:
    """Talks to the ranks through the controller described by `client_file`."""

    def __init__(self, client_file: Path) -> None:
        """Raises TimeoutError when the controller does not answer within CONNECT_S."""
        with unsigned_as_encrypted():
            self.client = ipyparallel.Client(str(client_file), timeout=CONNECT_S, context=context())
        demand("ipyparallel", self.client, INTERNALS)
        # The client warns on stderr about every engine that leaves; runs report that themselves.
        logging.getLogger("ipyparallel").setLevel(logging.ERROR)
        self._asked = 0.0  # which ranks there are
        self._reached: set[bytes] = set()  # what ranks are known by that have answered
        self._runs: dict[str, Receive] = {}
        self._tap = Tap(client_file, self._deliver)

    @property
    def ranks(self) -> list[int]:
        """The ranks that are registered now. A rank's engine id is its rank."""
        return list(self.client.ids)

    def ask_for_ranks(self) -> None:
        """Learn, a moment later, of ranks that came unnoticed while the client connected.

        It hears of those that come, but not from the first moment on.
        """
        if time.monotonic() < self._asked + ASK_S:
            return
        self._asked = time.monotonic()
        client = self.client
        answer = client._send(client._query_stream, "connection_request")
        answer.add_done_callback(
            lambda done: client._update_engines(done.result()["content"]["engines"])
        )

    def identity(self, rank: int) -> bytes:
        """What a rank's process is known by; it differs when the rank was restarted.

        Empty if no such rank is registered now.
        """
        with contextlib.suppress(NoClusterError):
            return self._identity(rank)
        return b""

    def subscribe(self, run: str, receive: Receive) -> None:
        """Have `receive(header, lines)` called, in a thread, for each batch of this run."""
        self._runs[run] = receive

    def unsubscribe(self, run: str) -> None:
        self._runs.pop(run, None)

    def reach(self, ranks: Sequence[int]) -> None:
        """Have ranks that were sent no cell yet answer on the way that cells take.

        A rank is known before the controller's scheduler has its connection, by much on a busy
        machine, and what is sent to it before is dropped without a word. So it is asked until it
        answers; one that does not, as it is busy with something else, is taken to be there.
        """
        waiting = {each for rank in ranks if (each := self.identity(rank))} - self._reached
        until = time.monotonic() + REACH_S
        while waiting and time.monotonic() < until:
            asked = {
                identity: self.client.send_execute_request(
                    self.client._mux_stream, "", silent=True, ident=identity
                )
                for identity in waiting
            }
            wait(asked.values(), ASK_S)
            waiting = {each for each in waiting if not asked[each].done()}
            self._reached |= asked.keys() - waiting
        self._reached |= waiting

    def execute(self, rank: int, source: str, about: dict[str, Any]) -> Future[Any]:
        """Run `source` as a cell on `rank`; `about` is the request's `rankroom` metadata."""
        client = self.client
        # The stream, not its socket: a send beside the stream can swallow the sign that a reply has
        # come, which would then wait for the next one.
        return client.send_execute_request(  # type: ignore[no-any-return]
            client._mux_stream, source, silent=False, metadata={"rankroom": about},
            ident=self._identity(rank),
        )  # fmt: skip

    def request(self, ranks: Sequence[int], **content: Any) -> list[Future[Any]]:
        """Ask ranks something that they answer even while a cell runs or hangs.

        Ranks that are gone are left out.
        """
        stream = self.client._control_stream
        return [
            self.client._send(stream, "rankroom_request", content=content, ident=self._identity(r))
            for r in ranks
            if r in self.client.ids
        ]

    def busy(self, seconds: float = 2.0) -> dict[int, str]:
        """Which ranks run a cell now, and the id of that run."""
        ranks = self.ranks
        asked = self.request(ranks, do="status")
        found = {}
        deadline = time.monotonic() + seconds
        for rank, future in zip(ranks, asked, strict=True):
            with contextlib.suppress(TimeoutError):
                answer = future.result(max(0.0, deadline - time.monotonic()))
                if answer["content"].get("run"):
                    found[rank] = answer["content"]["run"]
        return found

    def signal(self, ranks: Sequence[int], signal: str) -> None:
        """Send a signal to the ranks' processes, wherever they are."""
        present = [rank for rank in ranks if rank in self.client.ids]
        if present:
            self.client.send_signal(signal, targets=present, block=False)

    def later(self, seconds: float, call: Callable[[], None]) -> None:
        """Have `call()` called once, in the client's thread."""
        loop = self.client._io_loop
        loop.add_callback(lambda: loop.call_later(seconds, call))

    def view(self, ranks: Sequence[int]) -> Any:
        """ipyparallel's own view of some ranks, for pushing and pulling objects."""
        return self.client.direct_view(list(ranks))

    def close(self) -> None:
        """Let go of the sockets; the ranks stay."""
        self._tap.close()
        with contextlib.suppress(Exception):
            self.client.close()

    def _identity(self, rank: int) -> bytes:
        try:
            return bytes(self.client._build_targets(rank)[0][0])
        except (IndexError, ipyparallel.error.NoEnginesRegistered):
            raise NoClusterError(GONE.format(rank=rank)) from None

    def _deliver(self, header: dict[str, Any], lines: bytes) -> None:
        receive = self._runs.get(header["run"])
        if receive is not None:
            receive(header, lines)


class Tap:
    """A subscription to the ranks' batches, in a thread of its own."""

    def __init__(self, client_file: Path, deliver: Receive) -> None:
        info = json.loads(client_file.read_text())
        self._session = session_for(info)
        self._deliver = deliver
        self._socket = context().socket(zmq.SUB)
        self._socket.RCVHWM = 0
        self._socket.LINGER = 0
        if info.get("curve_serverkey"):
            public, secret = zmq.curve_keypair()
            self._socket.curve_publickey = public
            self._socket.curve_secretkey = secret
            self._socket.curve_serverkey = info["curve_serverkey"].encode()
        self._socket.connect(f"{info['interface']}:{info['iopub']}")
        self._socket.subscribe(TOPIC)
        self._closed = threading.Event()
        self._thread = threading.Thread(target=self._listen, name="rankroom-tap", daemon=True)
        self._thread.start()

    def close(self) -> None:
        self._closed.set()
        self._thread.join(2)

    def _listen(self) -> None:
        while not self._closed.is_set():
            if not self._socket.poll(200):
                continue
            frames = self._socket.recv_multipart(copy=False)
            try:
                _, parts = self._session.feed_identities(frames, copy=False)
                message = self._session.deserialize(parts, copy=False)
                lines = message["buffers"][0]
                self._deliver(message["content"], bytes(lines))
            except Exception:
                # One bad message must not end the subscription; gaps are filled from the spool.
                logging.getLogger(__name__).exception("a batch of events could not be read")
        self._socket.close()


GONE = "rank {rank} is gone: `%cluster restart --ranks {rank}` restarts it"
