"""Ranks of one run that train with `hvd.elastic.run`: one that dies there may come back into it.

Its process is started again as any rank is (`processes/restarts.py`), and runs the cell from its
beginning, as workers of Horovod's own launcher do. The others go back to their last commit, set
Horovod up again with it, and give it their state.
"""

from __future__ import annotations

import time
from collections.abc import Collection
from dataclasses import dataclass

from rankroom.text.rank_ranges import name_ranks

TRIES = 3  # to start a rank so that it gets the state


@dataclass
class Absence:
    """A rank that has died: `how`, and until when (monotonic) it is waited for, `seconds` long."""

    how: str
    until: float
    seconds: float


class ElasticRanks:
    """`meeting` counts how often ranks of the run died and were waited for: those that go on meet
    under its number, so that none is met that is gone by now."""

    def __init__(self, ranks: Collection[int]) -> None:
        self.meeting = 0
        self.inside: set[int] = set()  # ranks that are within hvd.elastic.run and have its state
        self.absent: dict[int, Absence] = {}
        self.behind: set[int] = set()  # ranks that were started again and have not got the state
        self.starts = dict.fromkeys(ranks, 0)  # how often each was, in this run
        self._tries = dict.fromkeys(ranks, 0)  # the same since it last had the state

    def note(self, rank: int, inside: bool) -> None:
        """`rank` has the state of an elastic run now, or has left that."""
        if inside:
            self.inside.add(rank)
            self.behind.discard(rank)
            self._tries[rank] = 0
        else:
            self.inside.discard(rank)

    def go_on_without(self, rank: int) -> bool:
        """Whether the others can wait for `rank`, as all have the state or are about to get it."""
        others = self.starts.keys() - {rank} - self.absent.keys() - self.behind
        return bool(others) and others <= self.inside

    def is_hopeless(self, rank: int) -> bool:
        """Whether `rank` has died as often as it may before it had the state."""
        return self._tries[rank] >= TRIES

    def wait_for(self, rank: int, how: str, seconds: float) -> list[int]:
        """`rank` has died and is waited for; the ranks that are to meet anew."""
        self.note(rank, False)
        self.behind.discard(rank)
        self.absent[rank] = Absence(how, time.monotonic() + seconds, seconds)
        self.meeting += 1
        return sorted(self.starts.keys() - self.absent.keys())

    def wait_longer(self, rank: int, seconds: float) -> None:
        """It is being started now."""
        absence = self.absent[rank]
        self.absent[rank] = Absence(absence.how, time.monotonic() + seconds, seconds)

    def come_back(self, rank: int) -> str:
        """`rank` is there again; how it had ended."""
        self.behind.add(rank)
        self.starts[rank] += 1
        self._tries[rank] += 1
        return self.absent.pop(rank).how

    def give_up(self) -> dict[int, str]:
        """Wait for none any more; how those had ended that were waited for."""
        given_up, self.absent = self.absent, {}
        return {rank: absence.how for rank, absence in given_up.items()}

    def overdue(self) -> dict[int, str]:
        """How the ranks had ended that were waited for long enough."""
        now = time.monotonic()
        return {
            rank: NOT_BACK.format(how=absence.how, seconds=absence.seconds)
            for rank, absence in self.absent.items()
            if now >= absence.until
        }

    def words(self) -> str:
        """Who is waited for; empty if nobody is."""
        if not self.absent:
            return ""
        who, have = name_ranks(sorted(self.absent)), "have" if len(self.absent) > 1 else "has"
        return f"{who} {have} died and {have} not been started again yet"


def wait_words(cluster: str, rank: int, how: str, seconds: float, comes: bool) -> str:
    """What the record says where a rank died that is waited for; `comes` if it is being started."""
    words = COMES_BACK if comes else WAITS
    return words.format(cluster=cluster, rank=rank, how=how, seconds=seconds)


COMES_BACK = "rank {rank} {how}: it is started again, and the others go back to their last commit\n"
WAITS = (
    "rank {rank} {how}: the others wait {seconds:.0f} s for it. As its notebook is busy, start it "
    "again in the sidebar, or by `rankroom cluster restart {cluster} --ranks {rank}` in a terminal "
    "(`%cluster start --auto-restart` has that done for you)\n"
)
HOPELESS = (
    f"{{how}}; it was started again {TRIES} times, and died before it came as far as the others"
)
NOT_BACK = (
    "{how}, and was not started again within {seconds:.0f} s: `%cluster restart` does that, and "
    "after `%cluster start --auto-restart` no one has to"
)
