"""How busy the ranks are now, for clients that show it: nothing is measured unless one asks.

Ranks on this machine are measured here. On other nodes the process beside each rank does it, and
says so with its next question to the supervisor.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Iterable, Mapping
from typing import Any

from rankroom.reporting.samples import Sampler

PAUSE_S = 1.0  # between two looks; who asks sooner gets what the last one saw
FIRST_S = 0.3  # what a first look measures over
WATCHED_S = 10.0  # after the last look, until the nodes stop measuring
COMES_S = 4.0  # for what the nodes say to come, with a first look
OLD_S = 6.0  # what a node said before that is not the present any more

Load = dict[str, Any]  # cpu (per cent of a core), memory (bytes), gpu (per cent), gpu_memory


class Loads:
    """The present load of a cluster's ranks, as its supervisor knows it."""

    def __init__(self) -> None:
        self._lock = threading.Lock()  # one look at a time
        self._samplers: dict[int, tuple[int, Sampler]] = {}
        self._last: dict[str, Any] = {"ranks": {}, "at": 0.0}
        self._looked = float("-inf")
        self._asked = float("-inf")
        self._said: dict[int, tuple[float, Load]] = {}
        self._news = threading.Condition()

    def look(self, here: Mapping[int, tuple[int, str]], remote: Iterable[int]) -> dict[str, Any]:
        """The load of the ranks `here` (process and device of each), and of those on other nodes.

        One that nothing is known of is left out.
        """
        with self._lock:
            fresh = time.monotonic() - self._asked > WATCHED_S
            self._asked = time.monotonic()
            if self._asked - self._looked > PAUSE_S or fresh:
                found = self._measure(here) | self._told(set(remote), fresh)
                self._looked = time.monotonic()
                ranks = {str(rank): found[rank] for rank in sorted(found)}
                self._last = {"ranks": ranks, "at": time.time()}
            return self._last

    @property
    def watched(self) -> bool:
        """Whether somebody looks: the nodes are to measure then."""
        return time.monotonic() - self._asked < WATCHED_S

    def say(self, rank: int, load: Load) -> None:
        """What the process beside a rank has measured."""
        with self._news:
            self._said[rank] = (time.monotonic(), load)
            self._news.notify_all()

    def _measure(self, here: Mapping[int, tuple[int, str]]) -> dict[int, Load]:
        new = {}
        for rank, (pid, device) in here.items():
            if (known := self._samplers.get(rank)) is None or known[0] != pid:
                new[rank] = self._samplers[rank] = (pid, Sampler(device, pid))
                new[rank][1].start()
        if new:
            time.sleep(FIRST_S)
        return {rank: whole(self._samplers[rank][1].sample()) for rank in here}

    def _told(self, remote: set[int], fresh: bool) -> dict[int, Load]:
        def known() -> dict[int, Load]:
            now = time.monotonic()
            return {
                rank: load
                for rank, (at, load) in self._said.items()
                if rank in remote and now - at < OLD_S
            }

        with self._news:
            if fresh:
                self._news.wait_for(lambda: len(known()) == len(remote), COMES_S)
            return known()


def whole(sample: Load) -> Load:
    """A sample with what it does not know as None."""
    return {"gpu": None, "gpu_memory": None} | sample
