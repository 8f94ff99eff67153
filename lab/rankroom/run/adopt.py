"""Runs whose kernel is gone: taken up by the next process that has to do with their cluster.

Ranks go on without a kernel and write to their spools. The adopter becomes the writer of the
record, learns from it what has been, takes the rest from the spools, and follows the ranks that
still run. Where the cluster is gone as well, the record is completed as far as the spools go.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable
from concurrent.futures import Future
from typing import Any

from rankroom.errors import RankroomError
from rankroom.record.model import Failure, RunInfo, parse_event
from rankroom.record.patient_writer import PatientWriter
from rankroom.record.store import Store, Writer
from rankroom.record.takeover import take_over
from rankroom.run.assembly import Spool
from rankroom.run.engine_client import Link
from rankroom.run.run import ENDED, LATE_S, Run

LOOK_S = 0.3  # between two looks at ranks, as no reply of theirs comes to who did not send the cell
ANSWER_S = 2.0  # for a rank to say what it runs
NOT_SENT = "never got the cell: its kernel ended while it was sent"


class AdoptedRun(Run):
    """A run that another process began."""

    def __init__(
        self,
        info: RunInfo,
        source: str,
        link: Link,
        store: Store,
        spool: Spool,
        how_ended: Callable[[int], str],
    ) -> None:
        super().__init__(
            source, info.ranks, info.size, info.cluster, link, store, spool, how_ended, info=info
        )
        self._replaying = False

    def resume(self, writer: Writer) -> None:
        """Bring the record up to the present, and go on with it; returns when it is there."""
        self._writer = PatientWriter(writer)
        with self._lock:
            self._replay()
            self._link.subscribe(self.id, self._receive)
            for rank in self._ranks:
                self._assembly.resume(rank, self._next_seq[rank])
                self._catch_up(rank)
            if any(info.state in ("error", "lost") for info in self._ranks.values()):
                self._failed()
            # They may all have ended before.
            self._finish_if_over()
        if not self._ended:
            self._look()
        if not self._ended:
            threading.Thread(target=self._follow, name="rankroom-adopted", daemon=True).start()

    def _replay(self) -> None:
        """Learn from the record what its writer knew."""
        self._replaying = True
        with self._store.paths(self.id).events.open("rb") as file:
            for line in file:
                event = parse_event(line)
                if event is None or event["rank"] not in self._ranks:
                    continue
                rank = event["rank"]
                # A full disk may have left some out.
                self._next_seq[rank] = event["seq"]
                self._notice(rank, line)
                if event["kind"] == "status" and event["state"] == "lost":
                    self._blame(rank, str(event.get("note", "")))
        self._replaying = False

    def _blame(self, rank: int, how: str) -> None:
        known = self.info.failure
        if known is None or known.ename == "HorovodInternalError":
            self.info.failure = Failure(rank, "RankLost", f"rank {rank} {how}")

    def _catch_up(self, rank: int) -> None:
        if self._ranks[rank].state not in ENDED:
            self._take_rest(rank)

    def _failed(self) -> None:
        if not self._replaying:
            super()._failed()

    def _finish_if_over(self) -> None:
        if not self._replaying:
            super()._finish_if_over()

    def _follow(self) -> None:
        while not self._over.wait(LOOK_S):
            self._look()

    def _look(self) -> None:
        """See which ranks are gone, or have ended without that their last batch came through."""
        asked = self._ask()
        deadline = time.monotonic() + ANSWER_S
        idle = []
        for rank, future in asked.items():
            if future is None:
                self._lost(rank)
                continue
            try:
                answer = future.result(max(0.0, deadline - time.monotonic()))
            except Exception:
                continue  # one that does not answer is stuck, not gone
            if answer["content"].get("run") != self.id:
                idle.append(rank)
        if idle and not self._over.wait(LATE_S):
            for rank in idle:
                self._idle(rank)

    def _ask(self) -> dict[int, Future[Any] | None]:
        """A question to each rank that has not ended; None for a rank that is not there."""
        asked: dict[int, Future[Any] | None] = {}
        for rank in self.running:
            try:
                future = self._link.request([rank], do="status")
            except (RankroomError, OSError):
                future = []
            asked[rank] = future[0] if future else None
        return asked

    def _idle(self, rank: int) -> None:
        """The rank does not run this cell: it has ended, or has never begun."""
        with self._lock:
            if self._ended:
                return
            self._catch_up(rank)
            if self._ranks[rank].state not in ENDED and self._next_seq[rank] == 0:
                self._blame(rank, NOT_SENT)
                self._add(rank, "status", state="lost", note=NOT_SENT)
            elif self._ranks[rank].state not in ENDED:
                self._lost(rank)


def adopt(
    run_id: str,
    link: Link,
    store: Store,
    spool: Spool,
    how_ended: Callable[[int], str],
    elsewhere: bool = False,
) -> AdoptedRun:
    """Take up a run that has lost its kernel; `elsewhere` says that this was on another host.

    Raises RecordError if somebody else has.
    """
    source = store.source(run_id)
    info, writer = take_over(store, run_id, elsewhere)
    run = AdoptedRun(info, source, link, store, spool, how_ended)
    try:
        run.resume(writer)
    except BaseException:
        run.let_go()
        raise
    return run
