"""The thread of a connection: what comes in, what others want sent, and what is due later."""

from __future__ import annotations

import contextlib
import heapq
import itertools
import logging
import math
import socket
import threading
import time
from collections import deque
from collections.abc import Callable

import zmq

Call = Callable[[], object]


class Loop:
    """One thread that owns a ZeroMQ socket; `take_in()` is called there when messages have come."""

    def __init__(self, zmq_socket: zmq.Socket[bytes], take_in: Call) -> None:
        self._socket = zmq_socket
        self._take_in = take_in
        self._calls: deque[Call] = deque()
        self._timers: list[tuple[float, int, Call]] = []
        self._numbers = itertools.count()
        self._closed = False
        self._waking, self._woken = socket.socketpair()
        self._waking.setblocking(False)
        self._woken.setblocking(False)
        self._thread = threading.Thread(target=self._run, name="rankroom-rpc", daemon=True)
        self._thread.start()

    def call(self, call: Call) -> None:
        """Have `call()` called in the loop's thread; at once if this is it."""
        if self.is_own_thread:
            call()
            return
        self._calls.append(call)
        with contextlib.suppress(OSError):  # it will wake anyway, or is closed
            self._waking.send(b"\0")

    def later(self, seconds: float, call: Call) -> None:
        """Have `call()` called in the loop's thread after so many seconds."""
        due = (time.monotonic() + seconds, next(self._numbers), call)
        self.call(lambda: heapq.heappush(self._timers, due))

    @property
    def is_own_thread(self) -> bool:
        """True in the loop's thread."""
        return threading.get_ident() == self._thread.ident

    def close(self) -> None:
        """End the thread and close its socket; what has not been sent is not sent any more."""
        self._closed = True
        self.call(lambda: None)
        if not self.is_own_thread:
            self._thread.join(2)

    def _run(self) -> None:
        poller = zmq.Poller()
        poller.register(self._socket, zmq.POLLIN)
        poller.register(self._woken, zmq.POLLIN)
        while not self._closed:
            ready = dict(poller.poll(self._wait_ms()))
            if self._woken.fileno() in ready:
                self._woken.recv(4096)
            while self._calls:
                self._safely(self._calls.popleft())
            if self._socket in ready:
                self._safely(self._take_in)
            while self._timers and self._timers[0][0] <= time.monotonic():
                self._safely(heapq.heappop(self._timers)[2])
        self._socket.close(linger=0)
        self._waking.close()
        self._woken.close()

    def _wait_ms(self) -> int | None:
        if not self._timers:
            return None
        return max(0, math.ceil((self._timers[0][0] - time.monotonic()) * 1000))

    def _safely(self, call: Call) -> None:
        try:
            call()
        except Exception:
            # One bad message or call must not end what all others rely on.
            logging.getLogger(__name__).exception("in the thread of a connection")
