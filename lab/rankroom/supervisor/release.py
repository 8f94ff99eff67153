"""How the ranks of a run are freed: interrupted, or released where others will not join them.

A rank that waits in a collective hears no signal, and one whose peer has failed waits for ever. So
collectives are released after an interrupt, and soon after the first rank has failed, unless those
that still run are about to end by themselves.
"""

from __future__ import annotations

import contextlib
import threading
import time
from collections.abc import Callable, Collection, Sequence
from concurrent.futures import Future
from functools import partial
from typing import Any

from rankroom.errors import RankroomError
from rankroom.supervisor.rank_connections import RankConnections

GRACE_S = 0.03  # after the first failure, for ranks that fail by themselves
COMPUTES_S = 0.3  # after it, for a rank that is on its way to where the first one failed
ANSWER_S = 0.3  # for a rank to say how it is
RELEASE_S = 0.5  # after an interrupt, before blocked collectives are released
AGAIN_S = 0.7  # after an interrupt, before ranks that did not take notice get another
RELEASED_S = 3.0  # for ranks to confirm that they let go
SIGNALLED_S = 3.0  # for agents to send a signal
HELD_S = 0.5  # between two looks at whether somebody still works with a rank's debugger


class Release:
    """What a run does to free its ranks.

    `running()` are those of `ranks` that have not ended, none once the run is over; `raised` those
    known to have raised; `given_up` those that the run does not wait for any more, though they may
    live; `confirmed()` is called when ranks have let go, or do not say so in time. While
    `is_held()`, somebody looks around on a rank: nothing is released of its own accord.
    """

    def __init__(
        self,
        run: str,
        ranks: Sequence[int],
        connections: RankConnections,
        running: Callable[[], Sequence[int]],
        raised: Collection[int],
        given_up: Collection[int],
        confirmed: Callable[[], None],
        is_held: Callable[[], bool],
        has_begun: Callable[[int], bool],
    ) -> None:
        self.interrupted = False
        self._run = run
        self._ranks = ranks
        self._connections = connections
        self._running = running
        self._raised = raised
        self._given_up = given_up
        self._confirmed = confirmed
        self._is_held = is_held
        self._has_begun = has_begun
        self._failed_at = float("inf")  # when that was noticed of the first rank
        self._looks = False  # at what the others do, soon: once for all that fail until then
        self._asked: list[Future[Any]] = []
        self._signals: list[Future[Any]] = []  # on their way to ranks
        self._sending = 0  # signals that are just being sent
        self._signalled_by = 0.0  # until when they may come; monotonic
        self._unconfirmed = 0  # of those asked
        self._confirmed_by = 0.0  # until when ranks may confirm that they let go; monotonic
        self._lock = threading.Lock()

    @property
    def asked(self) -> bool:
        """True once collectives were asked to let go, blocked or not."""
        return bool(self._asked)

    @property
    def pending(self) -> bool:
        """True while ranks may yet be signalled, or say that they let go: it would hit what runs
        after this."""
        # The lock has the thread that ends the run wait for a release that is just being sent.
        with self._lock:
            now = time.monotonic()
            # A rank whose node is cut off never confirms, and may be given up much later.
            if self._unconfirmed > 0 and now < self._confirmed_by:
                return True
            is_on_its_way = self._sending or any(not each.done() for each in self._signals)
            # To a node that is cut off none comes.
            return bool(is_on_its_way) and now < self._signalled_by and not self._given_up

    def interrupt(self) -> None:
        """KeyboardInterrupt on the ranks that still run; blocked collectives are released."""
        self.interrupted = True
        ranks = self._running()
        self._signal(ranks)
        self._connections.later(RELEASE_S, partial(self.release, prompts=True))
        for rank in ranks:
            self._connections.later(AGAIN_S, partial(self._interrupt_again, rank))

    def release(self, prompts: bool = False) -> list[Future[Any]]:
        """Let go of blocked collectives on all ranks of the run, if any of them still runs; with
        `prompts`, also of what waits for an answer.

        All of them, as Horovod is shut down and initialises again with the next cell on all ranks.
        Returns what the ranks answer.
        """
        with self._lock:
            if not self._running() or (self._asked and not (prompts and self._is_held())):
                return self._asked
            # Who has left the cell, or is about to, joins in nothing more.
            is_whole = len(self._running()) == len(self._ranks) and not self._raised
            about = {
                "run": self._run, "raised": sorted(self._raised), "prompts": prompts,
                "interrupted": self.interrupted, "parted": self.interrupted or not is_whole,
            }  # fmt: skip
            asked: list[Future[Any]] = []
            with contextlib.suppress(RankroomError, OSError):
                asked = self._connections.request(self._ranks, do="release", **about)
            self._asked = asked or self._asked
            self._confirmed_by = time.monotonic() + RELEASED_S
            self._unconfirmed += len(asked)
        # The run ends when every rank has let go: a release that came late would hit the next cell.
        for future in asked:
            future.add_done_callback(self._confirm)
        self._connections.later(RELEASED_S, self._confirmed)
        return asked

    def failed(self) -> None:
        """A rank has raised, or is gone: soon see what the others do."""
        self._failed_at = min(self._failed_at, time.monotonic())
        if not self.interrupted:
            self._look_soon()

    def _signal(self, ranks: Sequence[int]) -> None:
        """Interrupt ranks; the run does not end before that has come to them."""
        with self._lock:
            self._sending += 1
            self._signalled_by = time.monotonic() + SIGNALLED_S
        sent = self._connections.signal(ranks, "SIGINT")
        with self._lock:
            self._sending -= 1
            self._signals = [*(each for each in self._signals if not each.done()), *sent]
        for future in sent:  # which an agent's thread does
            future.add_done_callback(lambda done: self._connections.later(0.0, self._confirmed))
        self._connections.later(SIGNALLED_S, self._confirmed)

    def _confirm(self, future: Future[Any]) -> None:
        with self._lock:
            self._unconfirmed -= 1
        self._confirmed()

    def _look_soon(self) -> None:
        if not self._looks:
            self._looks = True
            self._connections.later(GRACE_S, self._release_if_stuck)

    def _interrupt_again(self, rank: int) -> None:
        """Python drops an interrupt that comes in a destructor, or while a process is forked; and a
        rank does one that comes before the cell."""
        if rank not in self._running() and rank not in self._given_up:
            return
        with contextlib.suppress(RankroomError, OSError):
            for future in self._connections.request([rank], do="status"):
                future.add_done_callback(partial(self._interrupt_unless_tidying, rank))

    def _interrupt_unless_tidying(self, rank: int, answer: Future[Any]) -> None:
        runs = rank in self._running()
        if answer.exception() or not (runs or rank in self._given_up):
            return
        said = answer.result()
        if said.get("run") == self._run:
            # One that was raised in the cell has been heard, whatever the cell has made of it: it
            # may be saving what it has.
            if said.get("failing") or said.get("tidying") or said.get("interrupted"):
                return
            self._signal([rank])
        elif not runs and self._has_begun(rank):
            return  # it has ended the cell that it was in when it was given up
        self._connections.later(AGAIN_S, partial(self._interrupt_again, rank))

    def _release_if_stuck(self) -> None:
        """Release, unless every rank that still runs has failed as well and is about to end.

        A cell that fails alike on all ranks must not cost them their groups: one that computes, or
        waits for the processor only, may be about to fail.
        """
        if self._is_held():
            self._connections.later(HELD_S, self._release_if_stuck)
            return
        self._looks = False
        running = self._running()
        if not running or self._asked:
            return
        asked: list[Future[Any]] = []
        with contextlib.suppress(RankroomError, OSError):
            asked = self._connections.request(running, do="status")
        for future in asked:
            future.add_done_callback(self._release_unless_failing)
        # A rank that cannot even answer may be blocked in a way that the others can end.
        self._connections.later(ANSWER_S, partial(self._release_unless_answered, asked))

    def _release_unless_answered(self, asked: list[Future[Any]]) -> None:
        if not all(each.done() for each in asked):
            self.release()

    def _release_unless_failing(self, answer: Future[Any]) -> None:
        said = {} if answer.exception() else answer.result()
        if said.get("computes") and time.monotonic() - self._failed_at < COMPUTES_S:
            self._look_soon()
        elif not said.get("failing"):
            self.release()
