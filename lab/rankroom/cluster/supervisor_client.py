"""A process's connections to the supervisor of a cluster: a question gets its answer, or says why
there is none."""

from __future__ import annotations

import contextlib
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


class SupervisorClient:
    """Asks the supervisor that the cluster has now, whichever it had before.

    `refresh()` is what that last wrote; `take(content, buffers)` is called in the connection's
    thread with what it tells without being asked.
    """

    def __init__(self, paths: ClusterPaths, refresh: Callable[[], ClusterInfo], take: Take) -> None:
        self._paths = paths
        self._refresh = refresh
        self._take = take
        self._client: Client | None = None
        self._directs: list[Direct] = []  # idle connections, for the next cell
        self._asks = ("", "")  # whom all of them ask: address and key

    def ask(self, do: str, *buffers: bytes, patience: float = ASK_S, **question: Any) -> Answer:
        """What the supervisor answers. Raises what it raised, NoClusterError once it is gone."""
        until = time.monotonic() + patience
        asked = self._connection().ask(*buffers, do=do, until=until, **question)
        said = self._result(asked, until, patience)
        errors.raise_told(said)
        return said

    def ask_directly(self, **question: Any) -> Answer:
        """The same, in this thread alone, as a cell waits: no lock is let go before it is sent."""
        try:
            direct = self._directs.pop()
        except IndexError:
            self._connection()
            direct = Direct(*self._asks)
        until = time.monotonic() + ASK_S
        try:
            address, asked = self._asks, direct.ask(until=until, **question)
            self._connection()
            if address != self._asks:  # that supervisor is gone
                direct.close()
                return self.ask_directly(**question)
            said = self._result(asked, until, ASK_S)
        except BaseException:
            direct.close()  # its answer may come yet
            raise
        self._directs.append(direct)
        errors.raise_told(said)
        return said

    def tell(self, **content: Any) -> None:
        """Tell it what needs no answer, if it was asked something before."""
        if self._client is not None:
            self._client.tell(**content)

    def close(self) -> None:
        """Hang up, until something is asked again."""
        client, self._client = self._client, None
        if client is not None:
            client.close()
        while self._directs:
            self._directs.pop().close()

    def _connection(self) -> Client:
        """The connection to the cluster's present supervisor."""
        info = self._refresh()
        if not info.rpc:
            self._demand_alive()
        if self._client is None or self._asks != (info.rpc, info.rpc_key):
            self.close()
            self._asks = info.rpc, info.rpc_key
            self._client = Client(*self._asks, self._take)
        return self._client

    def _result(self, asked: Future[Answer] | Direct, until: float, patience: float) -> Answer:
        while True:
            try:
                return asked.result(min(AGAIN_S, patience))
            except RpcError as error:
                raise RankroomError(BROKEN.format(name=self._paths.name, error=error)) from None
            except (NotYet, TimeoutError):
                # By its process: who connects to a socket in a folder needs a descriptor at both
                # ends, and ZeroMQ ends a process that listens and has none.
                self._demand_alive()
                waits = bool(self._refresh().starting)  # for ranks that are being restarted
                if not waits and time.monotonic() > until:
                    raise StartError(SLOW.format(name=self._paths.name, seconds=patience)) from None

    def _demand_alive(self) -> None:
        """Raise NoClusterError if the cluster has no supervisor any more."""
        with contextlib.suppress(UnreadableError):
            lookup.living(self._paths)


SLOW = "the supervisor of {name} did not answer within {seconds:.0f} s: `%cluster stop` ends it"
