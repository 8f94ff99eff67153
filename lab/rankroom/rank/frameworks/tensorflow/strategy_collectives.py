"""The collectives of tf.distribute on a rank: how many have begun, and whether one may be pending.

Once aborted, TensorFlow's collectives cannot be set up again in the same process, so they are
aborted only if one may be blocking a rank. Each takes a key as it begins, eagerly and in a
tf.function alike, and the keys are counted: ranks with equal counts are in step. A collective that
must not begin is refused before it takes its key. If some begin unseen, one may be pending at any
time.
"""

from __future__ import annotations

import functools
import sys
import threading
import weakref
from collections.abc import Callable
from types import FrameType
from typing import Any

from rankroom.rank.import_hooks import when_imported
from rankroom.rank.world import ReleasedError, World

_CONTEXT = "tensorflow.python.eager.context"
_DISTRIBUTE = "tensorflow.python.distribute"
# MultiWorkerMirroredStrategy by TensorFlow's own names; the second is that of tf.compat.v1.
_STRATEGIES = ("CollectiveAllReduceStrategy", "CollectiveAllReduceStrategyV1")
_REMEDY = "Run the cell on all ranks, or call a function that needs no other rank."


class Collectives:
    """The collectives of this rank's multi-worker strategies."""

    def __init__(self) -> None:
        self.count = 0
        self._keys: weakref.WeakSet[Any] = weakref.WeakSet()  # of this rank's strategies
        self._threads: set[int] = set()  # identifiers of threads that have begun one
        self._released: str | None = None  # the run in which no more may begin
        self._are_seen: bool | None = None  # False if some may begin unseen
        self._counting = threading.Lock()

    def follow(self, strategy: Any) -> None:
        """Count the collectives of a new strategy, unless it has no other workers."""
        if not strategy.cluster_resolver.cluster_spec().as_dict():
            return
        if self._are_seen is None:
            self._are_seen = True
        try:
            self._keys.add(strategy.extended._collective_keys)
        except AttributeError:  # this release keeps them elsewhere
            self._are_seen = False

    def begin(self, keys: Any, world: World) -> None:
        """Count a collective that takes its key.

        Raises SubsetError or ReleasedError if it would block forever.
        """
        if keys not in self._keys:
            return  # a collective between devices of this rank
        if world.partial:
            raise world.refuse("a collective of tf.distribute", _REMEDY)
        context: Any = sys.modules[_CONTEXT]
        if not context.executing_eagerly() or context.is_async():
            self._are_seen = False  # it begins when its graph runs, or ends after its call
        self._threads.add(threading.get_ident())
        if self._released == world.run:
            raise ReleasedError(PEER_FAILED)
        with self._counting:
            self.count += 1

    def let_go(self, world: World) -> bool:
        """Let no more collectives begin in this run, as another rank has failed.

        Returns whether one may be pending on this rank.
        """
        # In this order: one that begins meanwhile is refused, or its thread is found below.
        self._released = world.run
        frames = sys._current_frames()
        began = self._threads & set(frames)
        return not self._are_seen or any(_is_in_tensorflow(frames[each]) for each in began)


seen = Collectives()


def install(world: World) -> None:
    """Prepare for the user's import of TensorFlow; nothing is imported now."""
    when_imported(f"{_DISTRIBUTE}.cross_device_utils", lambda module: _watch_keys(module, world))
    when_imported(f"{_DISTRIBUTE}.collective_all_reduce_strategy", _watch_strategies)


def _watch_strategies(module: Any) -> None:
    for name in _STRATEGIES:
        if hasattr(module, name):
            kind = getattr(module, name)
            kind.__init__ = _followed(kind.__init__)


def _followed(original: Callable[..., None]) -> Callable[..., None]:
    @functools.wraps(original)
    def init(self: Any, *args: Any, **kwargs: Any) -> None:
        original(self, *args, **kwargs)
        seen.follow(self)

    return init


def _watch_keys(module: Any, world: World) -> None:
    kind = module.CollectiveKeys
    original = kind.get_instance_key

    @functools.wraps(original)
    def get_instance_key(self: Any, *args: Any, **kwargs: Any) -> Any:
        seen.begin(self, world)
        return original(self, *args, **kwargs)

    kind.get_instance_key = get_instance_key


def _is_in_tensorflow(frame: FrameType | None) -> bool:
    """Return whether a thread is within a call of TensorFlow."""
    while frame is not None:
        if str(frame.f_globals.get("__name__", "")).startswith("tensorflow."):
            return True
        frame = frame.f_back
    return False


PEER_FAILED = "a collective of tf.distribute was released: another rank failed before reaching it"
