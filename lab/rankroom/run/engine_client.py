"""ipyparallel's own client of a cluster's ranks: for objects that are pushed to them and pulled.

It is made when it is first needed: cells do not go this way.
"""

from __future__ import annotations

import contextlib
import functools
import logging
import os
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import ipyparallel
import zmq

from rankroom.errors import NoClusterError
from rankroom.rpc.sessions import unsigned_as_encrypted
from rankroom.system.internals import demand
from rankroom.text.rank_ranges import format_ranks

# Of ipyparallel's client, and touched in this module only.
INTERNALS = ("_query_stream", "_send", "_update_engines")
RETRY_MS = 5000  # at most, between two tries to reach a controller that is gone
CONNECT_S = 10.0  # for the controller to answer, unless the machine is very busy
COMES_S = 10.0  # for ranks that run to be known to the controller
ASK_S = 0.5  # between two questions which ranks there are


@functools.cache
def _context_of(pid: int) -> zmq.Context[zmq.Socket[bytes]]:
    made = zmq.Context()  # one that was made before a fork has no threads after it
    # A notebook may keep its client of a cluster that has died for days, and somebody else may come
    # to listen there: it pauses longer and longer.
    made.reconnect_ivl_max = RETRY_MS
    return made


class EngineClient:
    """A client of the controller described by `client_file`."""

    def __init__(self, client_file: Path) -> None:
        """Raises TimeoutError when the controller does not answer within CONNECT_S."""
        context = _context_of(os.getpid())
        with unsigned_as_encrypted():
            self._client = ipyparallel.Client(str(client_file), timeout=CONNECT_S, context=context)
        demand("ipyparallel", self._client, INTERNALS)
        # It warns on stderr about every engine that leaves; Rankroom reports that itself.
        logging.getLogger("ipyparallel").setLevel(logging.ERROR)

    def view(self, ranks: Sequence[int]) -> Any:
        """ipyparallel's view of these ranks. Raises NoClusterError for one that does not come."""
        until = time.monotonic() + COMES_S
        asked = 0.0
        while missing := sorted(set(ranks) - set(self._client.ids)):
            if time.monotonic() > until:
                raise NoClusterError(UNKNOWN.format(ranks=format_ranks(missing)))
            if time.monotonic() > asked + ASK_S:
                asked = time.monotonic()
                self._ask_for_ranks()
            time.sleep(0.02)
        return self._client.direct_view(list(ranks))

    def close(self) -> None:
        """Close its sockets; the ranks stay."""
        with contextlib.suppress(Exception):
            self._client.close()

    def _ask_for_ranks(self) -> None:
        """Learn of ranks that came while the client connected, which it does not hear of."""
        client = self._client
        client._send(client._query_stream, "connection_request").add_done_callback(
            lambda done: client._update_engines(done.result()["content"]["engines"])
        )


UNKNOWN = (
    "rank {ranks} is not known to the cluster's controller: `%cluster restart` starts it again"
)
