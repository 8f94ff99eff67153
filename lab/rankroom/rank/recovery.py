"""The frameworks of a rank taken together: released when a cell fails, in step before the next."""

from __future__ import annotations

import contextlib
import threading
import time
from collections.abc import Iterator, Sequence
from typing import Any, Protocol

from rankroom.rank.frameworks import mpi, notebook_libraries, tensorboard_writers
from rankroom.rank.frameworks.horovod import horovod_adapter, horovod_calls, horovod_spans
from rankroom.rank.frameworks.tensorflow import tensorflow_adapter
from rankroom.rank.frameworks.torch import torch_adapter
from rankroom.rank.subworld import Subworld
from rankroom.rank.world import World
from rankroom.reporting.spans import recorder

SET_UP = "Rankroom sets frameworks up again"  # the name of that time in a timeline


class Adapter(Protocol):
    """What each framework's module offers."""

    def install(self, world: World) -> None:
        """Prepare for the framework's import."""

    def release(self) -> list[str]:
        """Let go of blocked collectives, from any thread; what was released."""

    def state(self) -> dict[str, Any]:
        """What the ranks compare after a cell that failed somewhere."""

    def settle(self, states: list[dict[str, Any]]) -> None:
        """Bring this rank in step, given every rank's state; all ranks do this together."""

    def set_aside(self) -> Any:
        """The world changes for a cell: have `settle` make again what is on. Raises RuntimeError
        where that cannot be."""

    def put_back(self, kept: Any) -> None:
        """The world is whole again: have `settle` make again what was on when set aside."""


ADAPTERS: dict[str, Adapter] = {
    "horovod": horovod_adapter,
    "torch": torch_adapter,
    "tensorflow": tensorflow_adapter,
}


class Recovery:
    """Release and recovery of one rank."""

    def __init__(self, world: World) -> None:
        self._world = world
        self._lock = threading.Lock()
        self._subworld = Subworld(world)
        self._reported = False
        self._early = "", 0  # a run that has not begun here, and which meeting it has come to
        # A run that has not begun here, and in which others are let go; whether ranks have parted.
        self._early_release = "", False
        # Whether the present cell is of such a run, and something was let go as it began.
        self.began_released = self.began_let_go = False
        self._is_on = False  # within a cell
        for adapter in ADAPTERS.values():
            adapter.install(world)
        tensorboard_writers.install()
        notebook_libraries.install()
        mpi.install(world)

    def begin(
        self,
        run: str,
        ranks: Sequence[int],
        epoch: int,
        settle: bool,
        own: bool = False,
        meeting: int = 0,
        back: str = "",
    ) -> None:
        """A cell starts; with `settle`, a cell before it failed on some rank.

        All ranks of a cell get the same `settle`, so that all of them come to compare. With `own`,
        the cell's ranks are a world of their own until it ends. `back` says how this rank had ended
        in this very run, which the others go on with.
        """
        with self._lock:
            # A release that is under way ends first; one that comes later is for this cell.
            if self._early[0] == run:
                meeting = self._early[1]
            self._world.begin(run, tuple(ranks), epoch, own, meeting, back)
            self._is_on = True
            early, parted = self._early_release
            self.began_released = early == run
            self.began_let_go = self.began_released and bool(self._let_go(parted))
        self._reported = False
        horovod_calls.mend_refused()
        smaller = self._world.size < self._world.whole
        if smaller or (settle and not self._world.partial and not self._world.alone):
            with _set_up():
                self._settle(smaller)
        horovod_spans.begin()

    def _settle(self, smaller: bool) -> None:
        """Bring the frameworks in step with those of the other ranks of this cell."""
        if smaller:
            self._subworld.enter(ADAPTERS)
        mine = {name: adapter.state() for name, adapter in ADAPTERS.items()}
        states = self._world.gather("recovery", mine)
        for name, adapter in ADAPTERS.items():
            adapter.settle([each[name] for each in states])

    def end(self) -> None:
        """The cell is over: until the next one, every rank is there."""
        horovod_spans.finish()
        torch_adapter.finish()
        with self._lock:  # who is let go after this does not meet others
            self._is_on = False
            self._world.end()
        self._subworld.leave(ADAPTERS)
        self.look()

    def look(self) -> None:
        """Between two cells: have all ranks compare before the next one if something broke here."""
        if not self._reported and horovod_adapter.gave_up():
            self._reported = True
            self._world.report_out_of_step()

    def regroup(self, run: str, meeting: int) -> list[str]:
        """A rank has died in an elastic run of ours: meet the others again, it among them, from any
        thread; what was set up with it and is let go."""
        with self._lock:
            if run != self._world.run:
                self._early = run, meeting
                return []
            return horovod_adapter.regroup(self._world, meeting)

    def release(self, run: str, parted: bool) -> list[str]:
        """Let go of blocked collectives of this run, from any thread; what was released.

        `parted` says that some ranks have left the cell, so that a later set-up in it must fail. A
        run that has not begun here is released as it begins.
        """
        with self._lock:
            if run != self._world.run:
                self._early_release = run, parted
                return []
            return self._let_go(parted)

    def _let_go(self, parted: bool) -> list[str]:
        if self._is_on:
            self._world.release(parted)
        # torch before Horovod: what is shut down there waits until the GPU has nothing to do.
        return [each for adapter in reversed(ADAPTERS.values()) for each in adapter.release()]


@contextlib.contextmanager
def _set_up() -> Iterator[None]:
    """What is done meanwhile is not the cell's, and is shown as such."""
    begin = time.time_ns() // 1000
    try:
        yield
    finally:
        number = recorder.number(("setup",), lambda: {"name": SET_UP})
        recorder.add("setup", number, begin, time.time_ns() // 1000 - begin)
