"""The server side of a cluster's connections: that of its supervisor, over ZeroMQ.

Everything is encrypted by CURVE, with a key of the server that only the cluster's file of mode 0600
holds: a peer that does not know it fails the handshake. One thread receives all messages and sends
all replies, so what it calls must not block; a request that has to wait is answered later.
"""

from __future__ import annotations

import contextlib
import json
import math
import os
import resource
import socket
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import zmq

from rankroom.errors import RankroomError
from rankroom.rpc.loop import Loop

MAX_PART_BYTES = 1 << 26  # bytes of a part of a message: a peer that announces more is disconnected
HANDSHAKE_TIMEOUT_MS = 5000  # handshake timeout, for a peer to prove that it knows the key
# Bytes of a socket's path; the system allows 108, with a zero at the end.
MAX_SOCKET_PATH_BYTES = 100
# Messages of a peer that are queued here; further ones wait on its side.
MAX_QUEUED_MESSAGES_PER_PEER = 4
ZERO_COPY_MIN_BYTES = 1 << 16  # bytes from which on a part is not copied
MAX_DESCRIPTORS = 1 << 16  # file descriptors of a process that listens; a connection takes one
SOCKET_NAME = "rpc"  # in the cluster's folder, if all its processes are on one machine


class Question:
    """A request or message of a peer; it may be answered from any thread."""

    def __init__(self, server: Server, frames: list[bytes]) -> None:
        """Raises ValueError for what is not a message of ours."""
        self.peer, self._number, content, *self.buffers = frames
        self.content: dict[str, Any] = json.loads(content)
        if not isinstance(self.content, dict):
            raise ValueError("a message begins with an object")
        self.until: float = self.content.pop("until", math.inf)  # by the peer's monotonic clock
        self._server = server

    def answer(self, *buffers: bytes, **content: Any) -> None:
        """Send the reply, if the peer expects one."""
        if self._number:
            self._server.reply(self.peer, self._number, content, buffers)

    def refuse(self, error: Exception) -> None:
        """Reply with an error: a RankroomError is raised again by the client, as the same class."""
        if isinstance(error, RankroomError):
            self.answer(error=type(error).__name__, text=str(error))
        else:
            self.answer(failed=repr(error))


class Server(Loop):
    """Listens on `interface`, or if that is empty in `folder`, for peers that know its `key`.

    `take(question)` is called in the server's thread for each message; an error that it raises is
    the reply, and is logged unless it is a RankroomError. Raises OSError if it cannot listen.
    """

    def __init__(self, interface: str, folder: Path, take: Callable[[Question], None]) -> None:
        self._take = take
        _allow_many_descriptors()
        public, secret = zmq.curve_keypair()
        self.key = public.decode()
        context: zmq.Context[zmq.Socket[bytes]] = zmq.Context.instance()
        self._socket = made = context.socket(zmq.ROUTER)
        made.CURVE_SERVER = 1
        made.CURVE_PUBLICKEY, made.CURVE_SECRETKEY = public, secret
        # Connections that the kernel drops beyond it (100 by default) retry after 1, 3 and 7 s.
        made.BACKLOG = socket.SOMAXCONN
        made.HANDSHAKE_IVL = HANDSHAKE_TIMEOUT_MS
        made.ROUTER_HANDOVER = 1  # a peer that reconnects replaces its old connection
        made.MAXMSGSIZE = MAX_PART_BYTES
        made.SNDHWM = 0  # no message is dropped
        made.RCVHWM = MAX_QUEUED_MESSAGES_PER_PEER
        self.address = self._listen(interface, folder)
        super().__init__(made)

    def tell(self, peer: bytes, *buffers: bytes, **content: Any) -> None:
        """Send a peer a message that is not a reply; does nothing if the peer is gone."""
        self.reply(peer, b"", content, buffers)

    def reply(
        self, peer: bytes, number: bytes, content: dict[str, Any], buffers: Sequence[bytes]
    ) -> None:
        """Send the reply to a peer's request; an empty `number` marks a message that is none."""
        frames = [peer, number, json.dumps(content).encode(), *buffers]
        small = all(len(each) < ZERO_COPY_MIN_BYTES for each in buffers)
        self.send(frames, copy=small)

    def _listen(self, interface: str, folder: Path) -> str:
        path = folder / SOCKET_NAME
        if not interface and len(os.fsencode(path)) <= MAX_SOCKET_PATH_BYTES:
            # Not every file system supports sockets.
            with contextlib.suppress(zmq.ZMQError):
                path.unlink(missing_ok=True)
                self._socket.bind(f"ipc://{path}")
                return f"ipc://{path}"
        where = f"tcp://{interface or '127.0.0.1'}"
        try:
            return f"{where}:{self._socket.bind_to_random_port(where)}"
        except zmq.ZMQBaseError as error:  # not an OSError
            raise OSError(f"cannot listen on {where}: {error}") from error

    def _take_in(self, frames: list[bytes]) -> None:
        question = Question(self, frames)
        # On a socket in a folder, the peer's clock is this machine's. A request that was sent while
        # this process was suspended may have been repeated since, or abandoned.
        if self.address.startswith("ipc:") and question.until < time.monotonic():
            return
        try:
            self._take(question)
        except Exception as error:
            question.refuse(error)
            if not isinstance(error, RankroomError):
                raise


def _allow_many_descriptors() -> None:
    """Raise this process's limit of file descriptors, as far as it may.

    ZeroMQ aborts a process that listens on a socket in a folder if none is left for a connection.
    """
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    most = MAX_DESCRIPTORS if hard == resource.RLIM_INFINITY else min(MAX_DESCRIPTORS, hard)
    if soft != resource.RLIM_INFINITY and soft < most:
        resource.setrlimit(resource.RLIMIT_NOFILE, (most, hard))
