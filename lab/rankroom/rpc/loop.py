"""The thread of a connection: handles messages, sends those of other threads, and runs timers."""

from __future__ import annotations

import contextlib
import heapq
import itertools
import logging
import math
import select
import socket
import threading
import time
from collections import deque
from collections.abc import Callable, Sequence
from functools import partial

import zmq

Call = Callable[[], object]
Frames = Sequence[bytes]
# As an int: with pyzmq's own constants, each part of a message takes longer to flag than to send.
SEND_MORE_FLAG = int(zmq.SNDMORE)


class Loop:
    """One thread at a ZeroMQ socket, which handles each message that arrives."""

    def __init__(self, zmq_socket: zmq.Socket[bytes]) -> None:
        self._socket = zmq_socket
        self._lock = threading.RLock()  # of the socket, which several threads use
        self._to_send: deque[tuple[Frames, bool]] = deque()
        self._calls: deque[Call] = deque()
        self._timers: list[tuple[float, int, Call]] = []
        self._numbers = itertools.count()
        self._closed = False
        self._waking, self._woken = socket.socketpair()
        self._waking.setblocking(False)
        self._woken.setblocking(False)
        self._thread = threading.Thread(target=self._run, name="rankroom-rpc", daemon=True)
        self._thread.start()

    def _take_in(self, frames: list[bytes]) -> None:
        """Handle one message, in the loop's thread."""
        raise NotImplementedError

    def call(self, call: Call) -> None:
        """Call `call()` in the loop's thread; at once if this is it."""
        if self.is_own_thread:
            call()
            return
        self._calls.append(call)
        self._wake()

    def send(self, frames: Frames, copy: bool = True, at_once: bool = False) -> None:
        """Send a message after those before it: in the loop's thread, or `at_once` in this one.

        Waking the other one takes a while; but in this one, no signal handler may raise meanwhile.
        """
        self._to_send.append((frames, copy))
        if self.is_own_thread:
            self._send_all()
        elif not at_once or (self._send_all() and self._has_come()):
            self._wake()

    def later(self, seconds: float, call: Call) -> None:
        """Call `call()` in the loop's thread after `seconds`."""
        due = (time.monotonic() + seconds, next(self._numbers), call)
        self.call(lambda: heapq.heappush(self._timers, due))

    @property
    def is_own_thread(self) -> bool:
        """True in the loop's thread."""
        return threading.get_ident() == self._thread.ident

    def close(self) -> None:
        """End the thread and close its socket; messages that have not been sent are dropped."""
        self._closed = True
        self.call(lambda: None)
        if not self.is_own_thread:
            self._thread.join(2)

    def _run(self) -> None:
        poller = select.poll()
        poller.register(self._socket, select.POLLIN)
        poller.register(self._woken, select.POLLIN)
        while not self._closed:
            frames = self._received()
            if frames is None and self._woken.fileno() in dict(poller.poll(self._wait_ms())):
                self._woken.recv(4096)
            if self._to_send:
                self._send_all()
            while self._calls:
                self._safely(self._calls.popleft())
            if frames is not None:
                self._safely(partial(self._take_in, frames))
            while self._timers and self._timers[0][0] <= time.monotonic():
                self._safely(heapq.heappop(self._timers)[2])
        with self._lock:
            self._socket.close(linger=0)
        self._waking.close()
        self._woken.close()

    def _wake(self) -> None:
        with contextlib.suppress(OSError):  # it will wake anyway, or is closed
            self._waking.send(b"\0")

    def _received(self) -> list[bytes] | None:
        with self._lock, contextlib.suppress(zmq.Again):
            return self._socket.recv_multipart(zmq.NOBLOCK)
        return None

    def _send_all(self) -> bool:
        """Send all queued messages; return True unless the connection is closed."""
        with self._lock:
            while self._to_send and not self._socket.closed:
                frames, copy = self._to_send.popleft()
                self._safely(partial(self._send_one, frames, copy))
            return not self._socket.closed

    def _send_one(self, frames: Frames, copy: bool) -> None:
        *others, last = frames
        send: Callable[..., object] = self._socket.send
        for part in others:
            send(part, SEND_MORE_FLAG, copy)
        send(last, 0, copy)

    def _has_come(self) -> bool:
        """Return whether a message arrived while another was sent: the poller may not see it."""
        with self._lock:
            return not self._socket.closed and bool(int(self._socket.get(zmq.EVENTS)) & zmq.POLLIN)

    def _wait_ms(self) -> int | None:
        if not self._timers:
            return None
        return max(0, math.ceil((self._timers[0][0] - time.monotonic()) * 1000))

    def _safely(self, call: Call) -> None:
        try:
            call()
        except Exception:
            # One bad message or call must not end the thread on which all others rely.
            logging.getLogger(__name__).exception("in the thread of a connection")
