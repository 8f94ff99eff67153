"""The client side of a cluster's connections: of a kernel, a rank or the Jupyter server."""

from __future__ import annotations

import contextlib
import functools
import itertools
import json
import math
import os
import secrets
import socket
import time
from collections.abc import Callable, Sequence
from concurrent.futures import Future, InvalidStateError
from typing import Any

import zmq

from rankroom.rpc.loop import Loop

Content = dict[str, Any]
Socket = zmq.Socket[bytes]
Take = Callable[[Content, list[bytes]], None]
REACH_S = 5.0  # timeout of a connection that tests whether anything listens
LISTENER_CHECK_INTERVAL_S = 1.0  # whether the server still listens, while a reply is awaited
BEAT_MS, SILENT_MS = 2000, 10000  # between heartbeats; without one, before reconnecting
RETRY_MS = 5000  # longest delay between attempts to reconnect to a server that is gone


class Answer(dict[str, Any]):
    """A reply; `buffers` are the bytes that came with it."""

    buffers: Sequence[bytes] = ()


class Client(Loop):
    """A connection to the server at `address`, whose key is `key`.

    `take(content, buffers)` is called in the client's thread with messages of the server that are
    not replies. A connection that was closed is restored automatically, and the server knows the
    client by the same `name` then; with `beats`, so is one that is dead but not closed. It is not
    noticed here that the server is gone: there are no replies then.
    """

    def __init__(
        self,
        address: str,
        key: str,
        take: Take = lambda content, buffers: None,
        name: bytes = b"",
        beats: bool = False,
    ) -> None:
        self._take = take
        self._asked: dict[bytes, Future[Answer]] = {}
        self._questions = itertools.count(1)
        name = name or secrets.token_bytes(8).hex().encode()
        super().__init__(connected(address, key, name, beats))

    def ask(self, *buffers: bytes, **content: Any) -> Future[Answer]:
        """Send a request; the future gets the reply, or RpcError, in the client's thread."""
        number = b"%d" % next(self._questions)
        future = self._asked[number] = Future()
        self.send([number, packed(content), *buffers])
        return future

    def tell(self, *buffers: bytes, at_once: bool = False, **content: Any) -> None:
        """Send a message that needs no reply; `at_once` is that of `Loop.send`."""
        self.send([b"", packed(content), *buffers], at_once=at_once)

    def _take_in(self, frames: list[bytes]) -> None:
        number, packed_content, *buffers = frames
        content: Content = json.loads(packed_content)
        if not number:
            self._take(content, buffers)
        elif future := self._asked.pop(number, None):
            with contextlib.suppress(InvalidStateError):  # its caller no longer waits
                if "failed" in content:
                    future.set_exception(RpcError(content["failed"]))
                else:
                    answer = Answer(content)
                    answer.buffers = buffers
                    future.set_result(answer)


class Direct:
    """A connection for one request at a time, whose reply is awaited in the calling thread: waking
    another one takes a while. If a reply did not arrive, the connection can only be closed."""

    def __init__(self, address: str, key: str) -> None:
        self.server = address, key
        self._socket = connected(address, key)

    def ask(self, **content: Any) -> Direct:
        """Send a request; `result` returns the reply."""
        self._socket.send_multipart([b"1", packed(content)])
        return self

    def result(self, seconds: float) -> Answer:
        """Return the reply. Raises TimeoutError if there is none within `seconds`, RpcError."""
        if not self._socket.poll(math.ceil(1000 * max(0.0, seconds))):
            raise TimeoutError
        answer = Answer(json.loads(self._socket.recv_multipart()[1]))
        if "failed" in answer:
            raise RpcError(answer["failed"])
        return answer

    def close(self) -> None:
        """Close the connection."""
        self._socket.close()


class RpcError(OSError):
    """The server failed to answer."""


def ask(address: str, key: str, seconds: float = 30.0, /, **content: Any) -> Content:
    """Send one request to the server at `address`; return the reply. Raises ConnectionRefusedError
    if none listens, or no longer does, TimeoutError if it does not reply within `seconds`, other
    OSErrors."""
    until = time.monotonic() + seconds
    reach(address)
    try:
        with contextlib.closing(Direct(address, key)) as direct:
            direct.ask(until=until, **content)
            while True:
                with contextlib.suppress(TimeoutError):
                    return direct.result(min(LISTENER_CHECK_INTERVAL_S, until - time.monotonic()))
                if time.monotonic() >= until:
                    raise TimeoutError(f"no answer from {address} within {seconds:g} s")
                # It may have died since: a dying process accepts connections for a moment.
                reach(address)
    except zmq.ZMQError as error:
        raise OSError(error.errno, str(error)) from None


def reach(address: str) -> None:
    """Raise OSError unless a process listens at `address`: ZeroMQ itself would wait for one."""
    kind, _, where = address.partition("://")
    if kind == "ipc":
        with socket.socket(socket.AF_UNIX) as trying:
            trying.settimeout(REACH_S)
            trying.connect(where)
    elif kind == "tcp":
        host, _, port = where.rpartition(":")
        socket.create_connection((host, int(port)), REACH_S).close()
    else:
        raise ConnectionRefusedError(f"no address: {address!r}")


def connected(address: str, key: str, name: bytes = b"", beats: bool = False) -> Socket:
    """Return a socket that is connected to a server, or will be as soon as that listens. Raises
    OSError if there are no file descriptors left."""
    try:
        made = _context_of(os.getpid()).socket(zmq.DEALER)
    except zmq.ZMQError as error:  # not an OSError
        raise OSError(error.errno, str(error)) from None
    if name:
        made.IDENTITY = name
    if beats:
        made.HEARTBEAT_IVL, made.HEARTBEAT_TIMEOUT = BEAT_MS, SILENT_MS
    made.CURVE_PUBLICKEY, made.CURVE_SECRETKEY = zmq.curve_keypair()
    made.CURVE_SERVERKEY = key.encode()
    made.LINGER = 0
    made.SNDHWM = made.RCVHWM = 0
    made.connect(address)
    return made


def packed(content: Content) -> bytes:
    """Return the first part of a message."""
    return json.dumps(content).encode()


@functools.cache
def _context_of(pid: int) -> zmq.Context[Socket]:
    made = zmq.Context()  # a context that was made before a fork has no threads after it
    # A notebook may keep its connection to a cluster that has died for days.
    made.reconnect_ivl_max = RETRY_MS
    return made
