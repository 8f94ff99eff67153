"""Which ranks are to be restarted: those that a client asks for, and those that have died."""

from __future__ import annotations

import threading
import time
from collections.abc import Collection

from rankroom import config
from rankroom.record.cluster_file import ClusterInfo
from rankroom.supervisor.processes import start_limit
from rankroom.supervisor.processes.cluster_processes import Processes

MAX_AUTO_RESTARTS, AUTO_RESTART_WINDOW_S = (
    3,
    60.0,
)  # automatic restarts of a rank in that time, before it is left down


class Restarts:
    """`asked` are the ranks that the watch loop restarts next; `lock` guards them and `ready`."""

    def __init__(self, info: ClusterInfo, children: Processes, ready: Collection[int]) -> None:
        self.asked: set[int] = set()
        self.lock = threading.Lock()
        self._info = info
        self._children = children
        self._ready = ready
        self._brought_back: dict[int, list[float]] = {}
        # Read now: when a rank ends, it may be impossible.
        self._start_s = start_limit.seconds(info)
        self._elastic_s = config.elastic_seconds()

    def ask_for(self, ranks: list[int]) -> str:
        """Request a restart of `ranks`; return why that is refused, empty if it is not."""
        with self.lock:
            for rank in ranks:
                if rank in self.asked:
                    return TWICE.format(rank=rank)
                age = time.monotonic() - self._children.born.get(rank, time.monotonic())
                young = age < self._start_s
                if young and rank not in self._ready and str(rank) not in self._info.exits:
                    again = rank in self._info.starting
                    return (TWICE if again else STARTING).format(rank=rank)
            self.asked.update(ranks)
            # At once, as a cell that comes before they are ended must wait for them.
            self._info.starting = sorted({*self._info.starting, *ranks})
        return ""

    def decide_auto_restart(self, rank: int, how: str) -> tuple[bool, str]:
        """Return whether a rank that has ended is restarted automatically, and how it ended, in
        words."""
        if not self._info.auto_restart or rank in self.asked:
            return False, how
        now = time.monotonic()
        lately = [
            each for each in self._brought_back.get(rank, []) if now - each < AUTO_RESTART_WINDOW_S
        ]
        if len(lately) >= MAX_AUTO_RESTARTS:
            return False, LEFT_DOWN.format(
                how=how, times=MAX_AUTO_RESTARTS, seconds=AUTO_RESTART_WINDOW_S
            )
        self._brought_back[rank] = [*lately, now]
        return True, how

    def return_timeout_s(self, rank: int) -> float:
        """Return how long others may wait for a rank that has ended; 0 if it is left down."""
        if rank in self.asked:
            return self._start_s
        return 0.0 if self._info.auto_restart else self._elastic_s


TWICE = "rank {rank} is already being restarted: wait until it is ready"
STARTING = "rank {rank} is starting: wait until it is ready"
LEFT_DOWN = "{how}; it was restarted {times} times within {seconds:.0f} s, so it stays down"
