"""The present load of ranks, for clients that show it: nothing is measured unless one asks."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Sequence
from concurrent.futures import Future, wait
from typing import Any

MEASUREMENT_INTERVAL_S = 1.0  # between two measurements; in between, the last one is returned
REPLY_TIMEOUT_S = 4.0  # timeout for the replies of the nodes' agents
Load = dict[str, Any]  # cpu (percent of a core), memory (bytes), gpu (percent), gpu_memory


class Loads:
    """The present load of a cluster's ranks; `ask()` requests it from each node's agent."""

    def __init__(self, ask: Callable[[], Sequence[Future[dict[int, Load]]]]) -> None:
        self._ask = ask
        self._lock = threading.Lock()  # one measurement at a time
        self._last: dict[str, Any] = {"ranks": {}, "at": 0.0}
        self._looked = float("-inf")

    def look(self) -> dict[str, Any]:
        """Return the load of all ranks; those of which nothing is known are left out."""
        with self._lock:
            if time.monotonic() - self._looked > MEASUREMENT_INTERVAL_S:
                answered = wait(self._ask(), REPLY_TIMEOUT_S).done
                found = {rank: load for each in answered for rank, load in each.result().items()}
                self._looked = time.monotonic()
                ranks = {str(rank): found[rank] for rank in sorted(found)}
                self._last = {"ranks": ranks, "at": time.time()}
            return self._last
