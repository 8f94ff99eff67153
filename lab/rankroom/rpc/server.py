"""The end of a cluster's connections that answers: its supervisor's, over ZeroMQ.

Everything is encrypted by CURVE, with a key of the server that only the cluster's file of mode 0600
holds: who does not know it cannot even begin to speak. One thread takes in all messages and sends
all answers, so what it calls must not wait; what has to wait for something is answered later.
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

LARGEST = 1 << 26  # bytes of a part of a message: who announces more is hung up on
GREET_MS = 5000  # for a peer to show that it knows the key
LONGEST_PATH = 100  # bytes of a socket's path; the system allows 108, with a zero at the end
WAITING = 4  # messages of a peer that are in memory here; what it says beyond waits on its side
LARGE = 1 << 16  # bytes from which on a part is not copied
MOST_OPEN = 1 << 16  # descriptors of a process that listens; a connection takes one
SOCKET = "rpc"  # in the cluster's folder, where all its processes are on one machine


class Question:
    """What a peer asks or tells, and the way to answer: from any thread."""

    def __init__(self, server: Server, frames: list[bytes]) -> None:
        """Raises ValueError for what is no message of ours."""
        self.peer, self._number, content, *self.buffers = frames
        self.content: dict[str, Any] = json.loads(content)
        if not isinstance(self.content, dict):
            raise ValueError("a message begins with an object")
        self.until: float = self.content.pop("until", math.inf)  # by the clock of who asks
        self._server = server

    def answer(self, *buffers: bytes, **content: Any) -> None:
        """Answer it, where an answer is waited for."""
        if self._number:
            self._server.reply(self.peer, self._number, content, buffers)

    def refuse(self, error: Exception) -> None:
        """Answer with an error: one of ours is raised again by who asks, as the same."""
        if isinstance(error, RankroomError):
            self.answer(error=type(error).__name__, text=str(error))
        else:
            self.answer(failed=repr(error))


class Server(Loop):
    """Listens on `interface`, or in `folder` where that is empty, for who knows its `key`.

    `take(question)` is called in the server's thread for each message; what it raises is logged,
    and told to who asked. Raises OSError where it cannot listen.
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
        # What the kernel drops beyond, of 100 by default, is tried again after 1, 3 and 7 s.
        made.BACKLOG = socket.SOMAXCONN
        made.HANDSHAKE_IVL = GREET_MS
        made.ROUTER_HANDOVER = 1  # a peer that comes again after a cut takes its own place
        made.MAXMSGSIZE = LARGEST
        made.SNDHWM = 0  # nothing that was said is dropped
        made.RCVHWM = WAITING
        self.address = self._listen(interface, folder)
        super().__init__(made)

    def tell(self, peer: bytes, *buffers: bytes, **content: Any) -> None:
        """Tell a peer what it did not ask for; nothing happens if it is gone."""
        self.reply(peer, b"", content, buffers)

    def reply(
        self, peer: bytes, number: bytes, content: dict[str, Any], buffers: Sequence[bytes]
    ) -> None:
        """Send the answer to a peer's question of that number, or with no number a telling."""
        frames = [peer, number, json.dumps(content).encode(), *buffers]
        small = all(len(each) < LARGE for each in buffers)
        self.send(frames, copy=small)

    def _listen(self, interface: str, folder: Path) -> str:
        path = folder / SOCKET
        if not interface and len(os.fsencode(path)) <= LONGEST_PATH:
            # Not every file system of a home has sockets.
            with contextlib.suppress(zmq.ZMQError):
                path.unlink(missing_ok=True)
                self._socket.bind(f"ipc://{path}")
                return f"ipc://{path}"
        where = f"tcp://{interface or '127.0.0.1'}"
        try:
            return f"{where}:{self._socket.bind_to_random_port(where)}"
        except zmq.ZMQBaseError as error:  # which is no OSError
            raise OSError(f"cannot listen on {where}: {error}") from error

    def _take_in(self, frames: list[bytes]) -> None:
        question = Question(self, frames)
        # In a folder, that is this machine's. What was asked while this process stood still may
        # have been asked again since, or been given up.
        if self.address.startswith("ipc:") and question.until < time.monotonic():
            return
        try:
            self._take(question)
        except Exception as error:
            question.refuse(error)
            if not isinstance(error, RankroomError):
                raise


def _allow_many_descriptors() -> None:
    """Let this process have more of them than is usual, if it may.

    ZeroMQ aborts a process that listens in a folder when it has none left for who connects.
    """
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    most = MOST_OPEN if hard == resource.RLIM_INFINITY else min(MOST_OPEN, hard)
    if soft != resource.RLIM_INFINITY and soft < most:
        resource.setrlimit(resource.RLIMIT_NOFILE, (most, hard))
