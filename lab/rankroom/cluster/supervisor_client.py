"""A process's connections to the supervisor of a cluster: a question gets its answer, or says why
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
from rankroom.errors import BROKEN, RankroomError, StartError, UnreadableError
from rankroom.record.cluster_file import ClusterInfo, ClusterPaths
from rankroom.rpc.client import Answer, Client, Direct, RpcError, Take

ASK_S = 30.0  # for the supervisor to answer
AGAIN_S = 0.5  # between two looks at whether it is still there
RENEW_S = 600.0  # between two looks at who it is, of a process that asks nothing


class SupervisorClient:
    """Asks the supervisor that the cluster has now, whichever it had before.

    `refresh()` is what that last wrote; `take(content, buffers)` is called in the connection's
    thread with what it tells without being asked.
    """

    def __init__(self, paths: ClusterPaths, refresh: Callable[[], ClusterInfo], take: Take) -> None:
        self._paths = paths
        self._refresh = refresh
        self._take = take
        self._begin()

    def _begin(self) -> None:
        self._pid = os.getpid()
        self._lock = threading.RLock()  # any thread may be the first that asks
        self._client: Client | None = None
        self._directs: list[Direct] = []  # idle connections, for the next cell
        self._asks = ("", "")  # whom all of them ask: address and key

    def _notice_fork(self) -> None:
        """The connections of a process that was forked are its parent's; so are their threads."""
        if self._pid != os.getpid():
            self._begin()

    def ask(self, do: str, *buffers: bytes, patience: float = ASK_S, **question: Any) -> Answer:
        """What the supervisor answers. Raises what it raised, NoClusterError once it is gone."""
        until = time.monotonic() + patience
        asked = self._connection().ask(*buffers, do=do, until=until, **question)
        said = self._result(asked, until, patience)
        errors.raise_told(said)
        return said

    def ask_directly(
        self, is_cancelled: Callable[[], bool] = lambda: False, **question: Any
    ) -> Answer:
        """The same, in this thread alone, as a cell waits: no lock is let go before it is sent.

        Once `is_cancelled()`, the supervisor is told not to begin what has not begun; its answer
        says whether it has.
        """
        self._notice_fork()
        try:
            direct = self._directs.pop()
        except IndexError:
            self._connection()
            direct = Direct(*self._asks)
        until, mark = time.monotonic() + ASK_S, secrets.token_hex(8)

        def look() -> None:
            if is_cancelled():
                self.tell(do="withdraw", mark=mark)

        try:
            asked = direct.ask(until=until, mark=mark, **question)
            self._connection()
            if direct.server != self._asks:  # that supervisor is gone
                direct.close()
                return self.ask_directly(is_cancelled, **question)
            said = self._result(asked, until, ASK_S, look)
        except BaseException:
            direct.close()  # its answer may come yet
            self.tell(do="withdraw", mark=mark)  # it would run unfollowed
            raise
        if direct.server == self._asks:
            self._directs.append(direct)
        else:
            direct.close()
        errors.raise_told(said)
        return said

    def tell(self, **content: Any) -> None:
        """Tell it what needs no answer, if it was asked something before."""
        self._notice_fork()
        if (client := self._client) is not None:
            client.tell(**content)

    def close(self) -> None:
        """Hang up, until something is asked again."""
        self._notice_fork()
        with self._lock:
            client, self._client = self._client, None
            if client is not None:
                client.close()
            directs, self._directs = self._directs, []
            for direct in directs:
                direct.close()

    def _connection(self) -> Client:
        """The connection to the cluster's present supervisor."""
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
        """See now and then whether another supervisor keeps the cluster, as its lease is to be held
        by an idle client, too."""

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
                return asked.result(min(AGAIN_S, patience))
            except RpcError as error:
                raise RankroomError(BROKEN.format(name=self._paths.name, error=error)) from None
            except (NotYet, TimeoutError):
                # By its process: who connects to a socket in a folder needs a descriptor at both
                # ends, and ZeroMQ ends a process that listens and has none.
                self._demand_alive()
                look()
                info = self._refresh()
                # For ranks that are starting, at first or again.
                waits = info.starting or len(info.ready) + len(info.exits) < info.size
                if not waits and time.monotonic() > until:
                    raise StartError(SLOW.format(name=self._paths.name, seconds=patience)) from None

    def _demand_alive(self) -> None:
        """Raise NoClusterError if the cluster has no supervisor any more."""
        with contextlib.suppress(UnreadableError):
            lookup.living(self._paths)


SLOW = "the supervisor of {name} did not answer within {seconds:.0f} s: `%cluster stop` ends it"
