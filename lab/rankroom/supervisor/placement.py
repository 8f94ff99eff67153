"""Where the ranks of an allocation are: what each says as it starts, passed on to all others."""

from __future__ import annotations

import threading
import time
from collections.abc import Container
from dataclasses import dataclass, replace
from typing import Any

GIVEN_UP = "was given up"  # how such a rank ended begins with this
SILENT_S = 20.0  # a rank that its node says nothing of for so long is taken for lost
PAUSED_S = 2.0  # without a look, many of which are taken in a second
STARTING_S = 60.0  # until it is ready: as many start, their machine may be too busy to say anything


@dataclass(frozen=True)
class RankLocation:
    """Where a rank's process is. `start` counts how often it was started."""

    start: int
    host: str
    pid: int
    address: str
    ports: tuple[int, int]  # for torch's store, and for TensorFlow's worker


class Placement:
    """The places of all ranks of a cluster, and when each was last heard of."""

    def __init__(self, size: int) -> None:
        self.size = size
        self.places: dict[int, RankLocation] = {}
        self.starts: dict[int, int] = {}
        self._expected: dict[int, int] = {}  # which start of each rank, if any
        self._heard: dict[int, float] = {}
        self._looked = time.monotonic()
        self._lock = threading.Lock()

    def start(self, rank: int) -> int:
        """`rank` is being started: the number of this start."""
        with self._lock:
            self.starts[rank] = self.starts.get(rank, 0) + 1
            self._heard.pop(rank, None)
            self._expected[rank] = self.starts[rank]
            return self.starts[rank]

    def answer(self, question: dict[str, Any]) -> dict[str, Any]:
        """What a rank, or its nanny, asks as it starts and lives: whether it is kept, and where
        all are once they have said so."""
        rank, start = question["rank"], question["start"]
        with self._lock:
            # One that was replaced, or given up while it was cut off, ends itself.
            kept = self._expected.get(rank) == start
            if kept:
                self._heard[rank] = time.monotonic()
            if kept and question["do"] == "place":
                store, worker = question["ports"]
                place = RankLocation(
                    start, question["host"], question["pid"], question["at"], (store, worker)
                )
                if (before := self.places.get(rank)) and before.address == place.address:
                    # The others have been told these.
                    place = replace(place, ports=before.ports)
                self.places[rank] = place
            if len(self.places) < self.size:
                return {"kept": kept}
            places = [self.places[each] for each in range(self.size)]
        return {
            "kept": kept,
            "addresses": [each.address for each in places],
            "ports": [each.ports[1] for each in places],
            "master_port": places[0].ports[0],
        }

    def is_placed(self, rank: int) -> bool:
        """Whether the rank's latest start has said where it is."""
        place = self.places.get(rank)
        return place is not None and place.start == self.starts.get(rank)

    def silent(self, ready: Container[int]) -> list[int]:
        """The ranks that were heard of once, and then no more; those `ready` have less time."""
        with self._lock:
            now = time.monotonic()
            if now - self._looked > PAUSED_S:
                # This process stood still itself, and heard nothing of anybody.
                missed = now - self._looked
                self._heard = {rank: min(now, at + missed) for rank, at in self._heard.items()}
            self._looked = now
            return [
                rank
                for rank, heard in self._heard.items()
                if now - heard > (SILENT_S if rank in ready else STARTING_S)
            ]

    def give_up(self, rank: int) -> None:
        """`rank` is not expected any more; should it live, it is made to end."""
        with self._lock:
            self._expected.pop(rank, None)
            self._heard.pop(rank, None)
