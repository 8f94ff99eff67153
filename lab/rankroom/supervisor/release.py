"""How the ranks of a run are freed: interrupted, or released where their peers will not join.

A rank that is blocked in a collective does not react to a signal, and waits forever if a peer has
failed. So collectives are released after an interrupt, and soon after the first rank has failed,
unless the ranks still running are about to end by themselves.
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

FAILURE_GRACE_S = 0.03  # after a failure, before the other ranks are checked: they may fail alike
# After the first failure, for a rank to reach the point where that one failed.
COMPUTING_GRACE_S = 0.3
STATUS_TIMEOUT_S = 0.3  # timeout for a rank to report its status
RELEASE_DELAY_S = 0.5  # after an interrupt, before blocked collectives are released
REPEAT_INTERRUPT_DELAY_S = 0.7  # after an interrupt, before ranks that did not react get another
RELEASED_S = 3.0  # timeout for ranks to confirm a release
SIGNALLED_S = 3.0  # timeout for agents to send a signal
DEBUGGER_POLL_INTERVAL_S = 0.5  # poll interval while a user works in a rank's debugger


class Release:
    """Interrupts and releases the ranks of one run.

    `running()` returns those of `ranks` that have not ended, none once the run is over; `raised`
    are those known to have raised; `given_up` those that the run no longer waits for, though they
    may be alive. `confirmed()` is called when ranks have confirmed a release or been signaled, or
    time out. While `is_held()`, a user inspects a rank: nothing is released automatically.
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
        self._failed_at = float("inf")  # when the first failure was noticed; monotonic
        self._looks = False  # a check of the other ranks is scheduled, for all failures until then
        self._asked: list[Future[Any]] = []
        # Whether they were told that some ranks have left the cell, or that it is interrupted: they
        # cannot meet again in it.
        self._has_parted = False
        self._signals: list[Future[Any]] = []  # done once an agent has sent them
        self._sending = 0  # calls that are passing signals to agents
        self._signalled_by = 0.0  # until when signals may arrive; monotonic
        self._unconfirmed = 0  # release requests without a reply
        self._confirmed_by = 0.0  # until when ranks may confirm a release; monotonic
        self._lock = threading.Lock()

    @property
    def asked(self) -> bool:
        """True once ranks were asked to release collectives, blocked or not."""
        return bool(self._asked)

    @property
    def _may_meet_again(self) -> bool:
        return bool(self._asked) and not self._has_parted

    @property
    def pending(self) -> bool:
        """True while a signal or release may still reach a rank: it would hit the next run."""
        # The lock makes the thread that ends the run wait for a release that is just being sent.
        with self._lock:
            now = time.monotonic()
            # A rank whose node is cut off never confirms, and may be given up much later.
            if self._unconfirmed > 0 and now < self._confirmed_by:
                return True
            is_on_its_way = self._sending or any(not each.done() for each in self._signals)
            # No signal reaches a node that is cut off.
            return bool(is_on_its_way) and now < self._signalled_by and not self._given_up

    def interrupt(self) -> None:
        """Raise KeyboardInterrupt on the ranks still running; blocked collectives are released."""
        self.interrupted = True
        ranks = self._running()
        # A debugger that the cell opens in answer to the interrupt is not what it was meant to end.
        is_held = self._is_held()
        self._signal(ranks)
        self._connections.later(RELEASE_DELAY_S, partial(self.release, prompts=is_held))
        for rank in ranks:
            self._connections.later(REPEAT_INTERRUPT_DELAY_S, partial(self._interrupt_again, rank))

    def release(self, prompts: bool = False) -> list[Future[Any]]:
        """Release blocked collectives on all ranks of the run, unless all have ended; with
        `prompts`, also ranks that wait for a user's answer.

        All ranks are included, as Horovod is shut down and initialized again by the next cell on
        all ranks. Ranks that were released by a user may meet again in the same cell, and are then
        released again. Returns the ranks' replies.
        """
        with self._lock:
            again = self._may_meet_again and self._unconfirmed <= 0
            is_done = self._asked and not again
            if not self._running() or (is_done and not (prompts and self._is_held())):
                return self._asked
            # A rank that has left the cell, or is about to, joins no more collectives.
            is_whole = len(self._running()) == len(self._ranks) and not self._raised
            about: dict[str, Any] = {
                "run": self._run, "raised": sorted(self._raised), "prompts": prompts,
                "interrupted": self.interrupted, "parted": self.interrupted or not is_whole,
                "again": again,
            }  # fmt: skip
            asked: list[Future[Any]] = []
            with contextlib.suppress(RankroomError, OSError):
                asked = self._connections.request(self._ranks, do="release", **about)
            self._asked = asked or self._asked
            self._has_parted |= bool(asked and about["parted"])
            self._confirmed_by = time.monotonic() + RELEASED_S
            self._unconfirmed += len(asked)
        # The run ends when every rank has confirmed: a late release would hit the next cell.
        for future in asked:
            future.add_done_callback(self._confirm)
        self._connections.later(RELEASED_S, self._confirmed)
        return asked

    def failed(self) -> None:
        """Schedule a check of the other ranks, as one has raised or is gone."""
        self._failed_at = min(self._failed_at, time.monotonic())
        if not self.interrupted:
            self._look_soon()

    def _signal(self, ranks: Sequence[int]) -> None:
        """Interrupt ranks; the run does not end before the signals have been sent."""
        with self._lock:
            self._sending += 1
            self._signalled_by = time.monotonic() + SIGNALLED_S
        sent = self._connections.signal(ranks, "SIGINT")
        with self._lock:
            self._sending -= 1
            self._signals = [*(each for each in self._signals if not each.done()), *sent]
        for future in sent:  # the callback runs in an agent's thread
            future.add_done_callback(lambda done: self._connections.later(0.0, self._confirmed))
        self._connections.later(SIGNALLED_S, self._confirmed)

    def _confirm(self, future: Future[Any]) -> None:
        with self._lock:
            self._unconfirmed -= 1
        self._confirmed()

    def _look_soon(self) -> None:
        if not self._looks:
            self._looks = True
            self._connections.later(FAILURE_GRACE_S, self._release_if_stuck)

    def _interrupt_again(self, rank: int) -> None:
        """Interrupt a rank again if it missed the first interrupt: Python drops one that arrives in
        a destructor or during a fork, and a rank drops one that arrives before the cell."""
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
            # An interrupt that was raised in the cell has been noticed, whatever the cell does with
            # it: it may be saving its state.
            if said.get("failing") or said.get("tidying") or said.get("interrupted"):
                return
            self._signal([rank])
        elif not runs and self._has_begun(rank):
            return  # it has ended the cell that it was in when it was given up
        self._connections.later(REPEAT_INTERRUPT_DELAY_S, partial(self._interrupt_again, rank))

    def _release_if_stuck(self) -> None:
        """Release, unless every rank still running has failed as well and is about to end.

        A cell that fails alike on all ranks must not cost them their process groups: a rank that
        computes, or only waits for a processor, may be about to fail.
        """
        if self._is_held():
            self._connections.later(DEBUGGER_POLL_INTERVAL_S, self._release_if_stuck)
            return
        self._looks = False
        running = self._running()
        if not running or self._has_parted:
            return
        asked: list[Future[Any]] = []
        with contextlib.suppress(RankroomError, OSError):
            asked = self._connections.request(running, do="status")
        for future in asked:
            future.add_done_callback(self._release_unless_failing)
        # A rank that cannot even reply may be blocked until the others are released.
        self._connections.later(STATUS_TIMEOUT_S, partial(self._release_unless_answered, asked))

    def _release_unless_answered(self, asked: list[Future[Any]]) -> None:
        if not all(each.done() for each in asked):
            self.release()

    def _release_unless_failing(self, answer: Future[Any]) -> None:
        said = {} if answer.exception() else answer.result()
        if said.get("computes") and time.monotonic() - self._failed_at < COMPUTING_GRACE_S:
            self._look_soon()
        elif not said.get("failing"):
            self.release()
