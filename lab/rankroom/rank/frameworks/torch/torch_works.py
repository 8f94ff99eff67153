"""Follow asynchronous collectives: note when each of torch's works ends."""

from __future__ import annotations

import contextlib
import functools
import threading
import time
import weakref
from collections.abc import Callable, Iterator
from typing import Any

from rankroom.rank.frameworks.torch import torch_device
from rankroom.rank.waiting import Waiting
from rankroom.rank.world import World
from rankroom.reporting.spans import recorder
from rankroom.reporting.wake import Wake

MIN_POLL_INTERVAL_S = 0.002  # poll interval for pending works, at least
MAX_POLL_INTERVAL_S = 0.05  # at most
POLL_INTERVAL_SHARE = 0.1  # poll interval as a share of a work's age: its end is as exact
BATCH = "dist.batch_isend_irecv"
WAIT = "dist.Work.wait"


class Thread(threading.local):
    inside = False  # collectives may be nested: only the outermost is recorded


thread = Thread()
_works: weakref.WeakKeyDictionary[Any, PendingCollective] = weakref.WeakKeyDictionary()


class PendingCollective:
    """A collective that may still be running after its call has returned."""

    __slots__ = ("_run", "_world", "device", "has_result", "number", "start", "what")

    def __init__(
        self, what: str, number: int, start: int, world: World, device: Any = None
    ) -> None:
        self.what, self.number, self.start = what, number, start
        self.device = device  # the GPU that it runs on
        # Whether the result exists, if there is no work.
        self.has_result: Callable[[], bool] = lambda: False
        self._world, self._run = world, world.run

    @property
    def is_present(self) -> bool:
        """True while its run is current: the next one numbers names differently."""
        return recorder.on and self._run == self._world.run

    def end(self) -> None:
        """Record that it ends now. Only the first call has an effect."""
        number, self.number = self.number, -1
        if number >= 0 and self.is_present:
            recorder.add("collective", number, self.start, time.time_ns() // 1000 - self.start)

    @contextlib.contextmanager
    def waited_for(self) -> Iterator[None]:
        """Record that it ends with this block, which waits for it, or when the GPU has waited."""
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
    """Polls works that no call waits for yet, to record their ends; its thread sleeps without any.

    It keeps references to them: code that takes a work's future, as DDP's hooks do, drops the work.

    Gloo could call back when a work ends, but in a thread of its own: that would wait for the GIL
    while a thread that destroys a group holds the GIL and waits for Gloo's thread.
    """

    def __init__(self) -> None:
        self._open: list[tuple[Any, PendingCollective]] = []
        self._looking = threading.Lock()
        self._some = Wake()
        self._is_asleep = True
        self._thread: threading.Thread | None = None

    def follow(self, work: Any, begun: PendingCollective) -> None:
        """End `begun` when `work` has ended."""
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
                # A work that is waited for soon is over by then, and was never polled.
                time.sleep(
                    min(MAX_POLL_INTERVAL_S, max(MIN_POLL_INTERVAL_S, age * POLL_INTERVAL_SHARE))
                )
                self.look()

    def look(self, final: bool = False) -> None:
        """Record works that have ended; with `final`, all of them, as the cell is over."""
        with self._looking:
            self._open = [each for each in self._open if not self._is_over(*each, final)]
            self._is_asleep = not self._open

    def _is_over(self, work: Any, begun: PendingCollective, final: bool) -> bool:
        if begun.number < 0 or not begun.is_present:
            return True
        if final or work.is_completed():
            begun.end()
            return True
        return False


_follower = Follower()


def finish() -> None:
    """Record the last works of a cell that is over."""
    _follower.look()
    _follower.look(final=True)


def goes_on() -> bool:
    """Return whether a work on a GPU that was not waited for is still running."""
    for each in _works.keyrefs():
        work = each()
        begun = None if work is None else _works.get(work)
        if begun is None or begun.device is None or not begun.is_present:
            continue
        if not torch_device.is_over(work):
            return True
    return False


def keep(work: Any, begun: PendingCollective, follows: bool) -> None:
    """Note the collective of a work; `follows`: end the collective when the work ends."""
    _works[work] = begun
    if follows:
        _follower.follow(work, begun)


def keep_batch(works: Any, device: Any, world: World) -> None:
    """Note the works of a batch on a GPU, which begins as a whole once all of it is submitted."""
    for each in works:
        if each not in _works:
            keep(each, PendingCollective(BATCH, -1, 0, world, device), False)


def watch_works(c10d: Any, world: World) -> None:
    """Wrap `work.wait()` to note what a rank waits for, and that the work has ended then."""
    original = c10d.Work.wait

    # By its name, `wait`, torch's C++ recognizes a call from here as one of the overridden method.
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
            begun = PendingCollective(WAIT, -1, 0, world, device)
        with begun.waited_for(), Waiting(begun.what):
            return original(self, *args, **kwargs)

    c10d.Work.wait = wait
