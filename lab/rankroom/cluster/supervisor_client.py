"""A process's connections to the supervisor of a cluster: a request gets its reply, or raises why
there is none."""

from __future__ import annotations

import contextlib
import os
import secrets
import threading
import time
from collections.abc import Callable
from concurrent.futures import Future
from concurrent.futures import TimeoutError as NotYet
from typing import Any

from rankroom import errors
from rankroom.cluster import lookup
from rankroom.errors import SUPERVISOR_FAILED, RankroomError, StartError, UnreadableError
from rankroom.record.cluster_file import ClusterInfo, ClusterPaths
from rankroom.rpc.client import Answer, Client, Direct, RpcError, Take

REPLY_TIMEOUT_S = 30.0  # timeout for the supervisor's reply
SUPERVISOR_CHECK_INTERVAL_S = 0.5  # whether it is alive, while a reply is awaited
RENEW_S = 600.0  # between checks of an idle client whether the cluster has another supervisor


class SupervisorClient:
    """Sends requests to the supervisor that the cluster has now, whichever it had before.

    `refresh()` returns what the supervisor last wrote; `take(content, buffers)` is called in the
    connection's thread with messages that are not replies.
    """

    def __init__(self, paths: ClusterPaths, refresh: Callable[[], ClusterInfo], take: Take) -> None:
        self._paths = paths
        self._refresh = refresh
        self._take = take
        self._begin()

    def _begin(self) -> None:
        self._pid = os.getpid()
        self._lock = threading.RLock()  # any thread may send the first request
        self._client: Client | None = None
        self._directs: list[Direct] = []  # idle connections, for the next cell
        self._asks = ("", "")  # address and key of the supervisor that they are connected to

    def _notice_fork(self) -> None:
        """After a fork, start without connections: those and their threads are the parent's."""
        if self._pid != os.getpid():
            self._begin()

    def ask(
        self, do: str, *buffers: bytes, patience: float = REPLY_TIMEOUT_S, **question: Any
    ) -> Answer:
        """Return the supervisor's reply. Raises what it raised, NoClusterError once it is gone."""
        until = time.monotonic() + patience
        asked = self._connection().ask(*buffers, do=do, until=until, **question)
        said = self._result(asked, until, patience)
        errors.raise_reported(said)
        return said

    def ask_directly(
        self, is_cancelled: Callable[[], bool] = lambda: False, **question: Any
    ) -> Answer:
        """Send a request as `ask` does, but from this thread alone: waking another one takes a
        while, and a cell is waiting.

        Once `is_cancelled()`, the supervisor is told not to begin what has not begun; its reply
        says whether it has.
        """
        self._notice_fork()
        try:
            direct = self._directs.pop()
        except IndexError:
            self._connection()
            direct = Direct(*self._asks)
        until, mark = time.monotonic() + REPLY_TIMEOUT_S, secrets.token_hex(8)

        def look() -> None:
            if is_cancelled():
                self.tell(do="withdraw", mark=mark)

        try:
            asked = direct.ask(until=until, mark=mark, **question)
            self._connection()
            if direct.server != self._asks:  # it went to a supervisor that is gone
                direct.close()
                return self.ask_directly(is_cancelled, **question)
            said = self._result(asked, until, REPLY_TIMEOUT_S, look)
        except BaseException:
            direct.close()  # its reply may still arrive
            # The run would have no follower: if it has begun, it is interrupted.
            self.tell(do="withdraw", mark=mark, abandoned=True)
            raise
        if direct.server == self._asks:
            self._directs.append(direct)
        else:
            direct.close()
        errors.raise_reported(said)
        return said

    def tell(self, **content: Any) -> None:
        """Send a message that needs no reply, if there is a connection from a request before."""
        self._notice_fork()
        if (client := self._client) is not None:
            client.tell(**content)

    def close(self) -> None:
        """Close the connections; the next request opens them again."""
        self._notice_fork()
        with self._lock:
            client, self._client = self._client, None
            if client is not None:
                client.close()
            directs, self._directs = self._directs, []
            for direct in directs:
                direct.close()

    def _connection(self) -> Client:
        """Return the connection to the cluster's present supervisor."""
        self._notice_fork()
        info = self._refresh()
        if not info.rpc:
            self._demand_alive()
        with self._lock:
            if self._client is None or self._asks != (info.rpc, info.rpc_key):
                self.close()
                self._asks = info.rpc, info.rpc_key
                self._client = Client(*self._asks, self._take)
                self._renew(self._client)
            return self._client

    def _renew(self, client: Client) -> None:
        """Check from time to time whether the cluster has another supervisor: an idle client, too,
        is to hold the lease of the present one."""

        def look() -> None:
            if client is self._client:
                self._refresh()
                self._renew(client)

        client.later(RENEW_S, look)

    def _result(
        self,
        asked: Future[Answer] | Direct,
        until: float,
        patience: float,
        look: Callable[[], None] = lambda: None,
    ) -> Answer:
        while True:
            try:
                return asked.result(min(SUPERVISOR_CHECK_INTERVAL_S, patience))
            except RpcError as error:
                raise RankroomError(
                    SUPERVISOR_FAILED.format(name=self._paths.name, error=error)
                ) from None
            except (NotYet, TimeoutError):
                # Check the process, not the socket: a connection to a socket in a folder needs a
                # descriptor at both ends, and ZeroMQ aborts a process that listens and has none.
                self._demand_alive()
                look()
                info = self._refresh()
                # A reply may have to wait for ranks that are starting or restarting.
                waits = info.starting or len(info.ready) + len(info.exits) < info.size
                if not waits and time.monotonic() > until:
                    raise StartError(SLOW.format(name=self._paths.name, seconds=patience)) from None

    def _demand_alive(self) -> None:
        """Raise NoClusterError if the cluster no longer has a supervisor."""
        with contextlib.suppress(UnreadableError):
            lookup.read_supervised(self._paths)


SLOW = (
    "the supervisor of cluster {name} did not answer within {seconds:.0f} s: try again, or end the "
    "cluster with `%cluster stop`"
)
