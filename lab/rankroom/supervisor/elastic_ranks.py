"""Ranks of one run that train with `hvd.elastic.run`: one that dies there may rejoin the run.

Its process is restarted as any rank's is (`processes/restarts.py`), and runs the cell from the
beginning, as workers of Horovod's own launcher do. The others go back to their last commit,
initialize Horovod again together with it, and send it their state.
"""

from __future__ import annotations

import time
from collections.abc import Collection
from dataclasses import dataclass

from rankroom.text.rank_ranges import name_ranks

MAX_RESTARTS_WITHOUT_STATE = 3  # restarts of a rank that keeps dying before it gets the state


@dataclass
class Absence:
    """A rank that died (`how`) and is waited for `seconds` long, `until` a deadline (monotonic)."""

    how: str
    until: float
    seconds: float


class ElasticRanks:
    """Which ranks of a run have the elastic state, and which are waited for.

    `meeting` counts how often a rank died and was waited for: the others regroup under its number,
    so that none of them meets a process that is gone by now.
    """

    def __init__(self, ranks: Collection[int]) -> None:
        self.meeting = 0
        self.inside: set[int] = set()  # ranks that are within hvd.elastic.run and have its state
        self.absent: dict[int, Absence] = {}
        self.without_state: set[int] = set()  # ranks that were restarted and have no state yet
        self.starts = dict.fromkeys(ranks, 0)  # how often each was restarted during this run
        self._tries = dict.fromkeys(ranks, 0)  # the same since the rank last had the state

    def note(self, rank: int, inside: bool) -> None:
        """Note that `rank` has the state of an elastic run, or has left `hvd.elastic.run`."""
        if inside:
            self.inside.add(rank)
            self.without_state.discard(rank)
            self._tries[rank] = 0
        else:
            self.inside.discard(rank)

    def go_on_without(self, rank: int) -> bool:
        """Return whether the others can wait for `rank`: all have the state, or will get it."""
        others = self.starts.keys() - {rank} - self.absent.keys() - self.without_state
        return bool(others) and others <= self.inside

    def is_hopeless(self, rank: int) -> bool:
        """Return whether `rank` has died as often as it may without getting the state."""
        return self._tries[rank] >= MAX_RESTARTS_WITHOUT_STATE

    def wait_for(self, rank: int, how: str, seconds: float) -> list[int]:
        """Wait for `rank`, which has died; return the ranks that are to regroup."""
        self.note(rank, False)
        self.without_state.discard(rank)
        self.absent[rank] = Absence(how, time.monotonic() + seconds, seconds)
        self.meeting += 1
        return sorted(self.starts.keys() - self.absent.keys())

    def wait_longer(self, rank: int, seconds: float) -> None:
        """Extend the wait for `rank` to `seconds` from now, as it is being started."""
        absence = self.absent[rank]
        self.absent[rank] = Absence(absence.how, time.monotonic() + seconds, seconds)

    def note_restarted(self, rank: int) -> str:
        """Note that `rank` is connected again; return how it had ended."""
        self.without_state.add(rank)
        self.starts[rank] += 1
        self._tries[rank] += 1
        return self.absent.pop(rank).how

    def give_up(self) -> dict[int, str]:
        """Stop waiting; return how the ranks had ended that were waited for."""
        given_up, self.absent = self.absent, {}
        return {rank: absence.how for rank, absence in given_up.items()}

    def overdue(self) -> dict[int, str]:
        """Return how the ranks had ended whose time to come back is over."""
        now = time.monotonic()
        return {
            rank: NOT_RESTARTED_IN_TIME.format(how=absence.how, seconds=absence.seconds)
            for rank, absence in self.absent.items()
            if now >= absence.until
        }

    def words(self) -> str:
        """Return which ranks are waited for, in words; empty if none is."""
        if not self.absent:
            return ""
        who, have = name_ranks(sorted(self.absent)), "have" if len(self.absent) > 1 else "has"
        return f"{who} {have} died and {have} not been restarted yet"


def wait_words(cluster: str, rank: int, how: str, seconds: float, comes: bool) -> str:
    """Return the log line for a rank that died and is waited for; `comes` if it is restarted."""
    words = RESTARTING_MESSAGE if comes else WAITING_MESSAGE
    return words.format(cluster=cluster, rank=rank, how=how, seconds=seconds)


RESTARTING_MESSAGE = (
    "rank {rank} {how}: it is being restarted, and the others go back to their last commit\n"
)
WAITING_MESSAGE = (
    "rank {rank} {how}: the other ranks wait {seconds:.0f} s for it. The notebook is busy, so "
    "restart the rank in the sidebar, or with `rankroom cluster restart {cluster} --ranks {rank}` "
    "in a terminal (with `%cluster start --auto-restart` this is automatic)\n"
)
RESTARTS_EXHAUSTED = (
    f"{{how}}; it was restarted {MAX_RESTARTS_WITHOUT_STATE} times, and died each time before it "
    "caught up with the others"
)
NOT_RESTARTED_IN_TIME = (
    "{how}, and was not restarted within {seconds:.0f} s: restart it with `%cluster restart`, or "
    "have this done automatically with `%cluster start --auto-restart`"
)
