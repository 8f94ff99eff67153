"""Release all frameworks of a rank when a cell fails; bring them in step before the next cell."""

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

SETUP_SPAN_NAME = "Rankroom sets frameworks up again"  # the name of its span in the timeline


class Adapter(Protocol):
    """The interface of each framework's adapter module."""

    def install(self, world: World) -> None:
        """Prepare for the framework's import."""

    def release(self) -> list[str]:
        """Release blocked collectives, from any thread; return what was released."""

    def state(self) -> dict[str, Any]:
        """Return what the ranks compare after a cell that failed on some rank."""

    def settle(self, states: list[dict[str, Any]]) -> None:
        """Bring this rank in step, given every rank's state; all ranks do this together."""

    def set_aside(self) -> Any:
        """Return what is set up, as the world changes for a cell: `settle` sets it up again for
        that world. Raises RuntimeError if that is impossible."""

    def put_back(self, kept: Any) -> None:
        """Restore what `set_aside` returned, as the world is whole again; `settle` sets it up."""


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
        self._pending_regroup = "", 0  # a run that has not started here, and its current meeting
        # A run that was released before it started here, and whether ranks have left its cell.
        self._pending_release = "", False
        # Whether the current cell is of such a run, and something was released as it started.
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
        """Prepare for a cell; with `settle`, a cell before it failed on some rank.

        All ranks of a cell get the same `settle`, so that all of them compare their states. With
        `own`, the cell's ranks are a world of their own until it ends. `back` says how an earlier
        process of this rank ended in this run, which the other ranks have continued.
        """
        with self._lock:
            # A release in progress finishes first; a later one is meant for this cell.
            if self._pending_regroup[0] == run:
                meeting = self._pending_regroup[1]
            self._world.begin(run, tuple(ranks), epoch, own, meeting, back)
            self._is_on = True
            early, peers_left = self._pending_release
            self.began_released = early == run
            self.began_let_go = self.began_released and bool(self._let_go(peers_left))
        self._reported = False
        horovod_calls.mend_refused()
        smaller = self._world.size < self._world.whole
        if smaller or (settle and not self._world.partial and not self._world.alone):
            with _set_up():
                self._settle(smaller)
        horovod_spans.begin()

    def _settle(self, smaller: bool) -> None:
        """Bring the frameworks in step with those of the cell's other ranks."""
        if smaller:
            self._subworld.enter(ADAPTERS)
        mine = {name: adapter.state() for name, adapter in ADAPTERS.items()}
        states = self._world.gather("recovery", mine)
        for name, adapter in ADAPTERS.items():
            adapter.settle([each[name] for each in states])

    def end(self) -> None:
        """Finish a cell, and make the world whole again until the next one."""
        horovod_spans.finish()
        torch_adapter.finish()
        with self._lock:  # a later release must not end a `gather` of the world
            self._is_on = False
            self._world.end()
        self._subworld.leave(ADAPTERS)
        self.look()

    def look(self) -> None:
        """Between cells, make all ranks compare their states before the next if Horovod failed."""
        if not self._reported and horovod_adapter.gave_up():
            self._reported = True
            self._world.report_out_of_step()

    def regroup(self, run: str, meeting: int) -> list[str]:
        """Make this rank meet the others again, after one has died in an elastic run and is
        restarted; called from any thread. Returns what was released, as it was set up with the dead
        one."""
        with self._lock:
            if run != self._world.run:
                self._pending_regroup = run, meeting
                return []
            return horovod_adapter.regroup(self._world, meeting)

    def release(self, run: str, peers_left: bool) -> list[str]:
        """Release blocked collectives of this run, from any thread; return what was released.

        `peers_left` says that some ranks have left the cell, so that a later set-up in it must
        fail. A run that has not started here is released as it starts.
        """
        with self._lock:
            if run != self._world.run:
                self._pending_release = run, peers_left
                return []
            return self._let_go(peers_left)

    def _let_go(self, peers_left: bool) -> list[str]:
        if self._is_on:
            self._world.release(peers_left)
        # torch before Horovod, whose shutdown waits until the GPU is idle.
        return [each for adapter in reversed(ADAPTERS.values()) for each in adapter.release()]


@contextlib.contextmanager
def _set_up() -> Iterator[None]:
    """Record the block as a span of its own, as it is not the cell's work."""
    begin = time.time_ns() // 1000
    try:
        yield
    finally:
        number = recorder.number(("setup",), lambda: {"name": SETUP_SPAN_NAME})
        recorder.add("setup", number, begin, time.time_ns() // 1000 - begin)
