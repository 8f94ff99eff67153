"""Collectives that go on behind the cell's back: when each of torch's works ends."""

from __future__ import annotations

import contextlib
import functools
import threading
import time
import weakref
from collections.abc import Iterator
from typing import Any

from rankroom.rank.frameworks.torch import torch_device
from rankroom.rank.waiting import Waiting
from rankroom.rank.world import World
from rankroom.reporting.spans import recorder
from rankroom.reporting.wake import Wake

LOOK_S = 0.002  # between two looks at works that go on, at least
LOOK_MOST_S = 0.05
LOOK_SHARE = 0.1  # of how long they have gone on: the end is as exact
BATCH = "dist.batch_isend_irecv"
WAIT = "dist.Work.wait"


class Thread(threading.local):
    inside = False  # one collective may be made of others: the outermost counts


thread = Thread()
_works: weakref.WeakKeyDictionary[Any, Begun] = weakref.WeakKeyDictionary()


class Begun:
    """A collective that goes on behind the cell's back."""

    __slots__ = ("_run", "_world", "device", "number", "result", "start", "what")

    def __init__(
        self, what: str, number: int, start: int, world: World, device: Any = None
    ) -> None:
        self.what, self.number, self.start = what, number, start
        self.device = device  # the GPU that it runs on
        self.result: Any = None  # what gives it while it is there, of one that has no work
        self._world, self._run = world, world.run

    @property
    def is_present(self) -> bool:
        """True while its run is on: names have other numbers in the next one."""
        return recorder.on and self._run == self._world.run

    def end(self) -> None:
        """It is done. Only the first call counts."""
        number, self.number = self.number, -1
        if number >= 0 and self.is_present:
            recorder.add("collective", number, self.start, time.time_ns() // 1000 - self.start)

    @contextlib.contextmanager
    def waited_for(self) -> Iterator[None]:
        """It ends when it is waited for in here: by the GPU, if that is where it runs."""
        followed = torch_device.begin(self.device) if self.is_present else None
        try:
            yield
        finally:
            if followed is None:
                self.end()
            else:
                number, self.number = self.number, -1
                torch_device.end(followed, self.what, number)


class Follower:
    """Notes when works end that no call waits for yet, in a thread that sleeps without any.

    It keeps them: code that takes a work's future, as hooks of DDP do, leaves the work itself.

    Gloo would call us when a work ends, but in its own thread: that waits for Python's lock then,
    and the thread that destroys a group holds the lock and waits for that thread.
    """

    def __init__(self) -> None:
        self._open: list[tuple[Any, Begun]] = []
        self._looking = threading.Lock()
        self._some = Wake()
        self._is_asleep = True
        self._thread: threading.Thread | None = None

    def follow(self, work: Any, begun: Begun) -> None:
        """Have `begun` end when `work` does."""
        with self._looking:
            self._open.append((work, begun))
            wakes, self._is_asleep = self._is_asleep, False
        if self._thread is None:
            self._thread = threading.Thread(target=self._run, name="rankroom-works", daemon=True)
            self._thread.start()
        if wakes:
            self._some.set()

    def _run(self) -> None:
        while True:
            self._some.wait()
            while not self._is_asleep:
                youngest = max((begun.start for _, begun in self._open[-8:]), default=0)
                age = time.time() - youngest / 1e6
                # What is waited for soon is over by then, and cost the training loop no look.
                time.sleep(min(LOOK_MOST_S, max(LOOK_S, age * LOOK_SHARE)))
                self.look()

    def look(self, final: bool = False) -> None:
        """End what has ended; `final`: the cell has, and what it leaves behind with it."""
        with self._looking:
            self._open = [each for each in self._open if not self._is_over(*each, final)]
            self._is_asleep = not self._open

    def _is_over(self, work: Any, begun: Begun, final: bool) -> bool:
        if begun.number < 0 or not begun.is_present:
            return True
        if final or work.is_completed():
            begun.end()
            return True
        return False


_follower = Follower()


def finish() -> None:
    """A cell is over: the last works of it are seen to end."""
    _follower.look()
    _follower.look(final=True)


def goes_on() -> bool:
    """Whether something that was begun on a GPU, and was not waited for, has not ended there."""
    for each in _works.keyrefs():
        work = each()
        begun = None if work is None else _works.get(work)
        if begun is None or begun.device is None or not begun.is_present:
            continue
        if not torch_device.is_over(work):
            return True
    return False


def keep(work: Any, begun: Begun, follows: bool) -> None:
    """Know a work by what it was begun as; `follows`: have that end when the work does."""
    _works[work] = begun
    if follows:
        _follower.follow(work, begun)


def keep_batch(works: Any, device: Any, world: World) -> None:
    """Know what carries a batch on a GPU: that is begun as a whole, when all of it is given."""
    for each in works:
        if each not in _works:
            keep(each, Begun(BATCH, -1, 0, world, device), False)


def watch_works(c10d: Any, world: World) -> None:
    """Know what a rank waits for in `work.wait()`, and that a work is done by then."""
    original = c10d.Work.wait

    # By this name, torch's C++ knows a call from here for one to the method it overrides.
    @functools.wraps(original)
    def wait(self: Any, *args: Any, **kwargs: Any) -> Any:
        if thread.inside or not recorder.on:
            return original(self, *args, **kwargs)
        begun = _works.pop(self, None)
        if begun is None:
            device = torch_device.current()
            if device is None:
                with Waiting(WAIT):
                    return original(self, *args, **kwargs)
            begun = Begun(WAIT, -1, 0, world, device)
        with begun.waited_for(), Waiting(begun.what):
            return original(self, *args, **kwargs)

    c10d.Work.wait = wait
