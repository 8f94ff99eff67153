"""`hvd.elastic.run` on ranks, where a rank that dies is restarted and rejoins the others.

Under horovodrun, a driver notifies workers of hosts that are added or removed; to receive this,
each worker opens a port and writes its address into the driver's store. Here, there is no such
driver, and Horovod's store is closed once ranks have met. The number of ranks never changes: the
cluster's supervisor restarts a rank that dies, under the same number. It runs the cell from its
beginning, while the others return to their last commit and wait for it in hvd.init(). It has no
state yet, and may be rank 0, so state is broadcast from the first rank that has it.
"""

from __future__ import annotations

import functools
import inspect
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

from rankroom.rank.frameworks.horovod import horovod_calls
from rankroom.rank.import_hooks import when_imported
from rankroom.rank.waiting import looks_released
from rankroom.rank.world import World
from rankroom.reporting.spans import recorder

# Functions of horovod.<library>.functions that broadcast state; the second argument is the root.
STATE_BROADCASTS = {
    "torch": ("broadcast_parameters", "broadcast_optimizer_state", "broadcast_object"),
    "tensorflow": ("broadcast_variables", "broadcast_object"),
}
REPORTED_TYPES = (int, float, str)  # types of a state's values that tell its progress

_syncing = False  # True while state is synchronized between ranks


def install(world: World, let_go: Callable[[], Any]) -> None:
    """Prepare for the user's `import horovod.…`; `let_go()` releases libraries that were started
    with a rank that has died since."""
    when_imported("horovod.common.elastic", functools.partial(_adapt, world=world, let_go=let_go))
    for library in STATE_BROADCASTS:
        hook = functools.partial(_broadcast_from_who_has_it, library=library, world=world)
        when_imported(f"horovod.{library}.functions", hook)


def _adapt(module: Any, world: World, let_go: Callable[[], Any]) -> None:
    def init(*args: Any, **kwargs: Any) -> None:
        """Do not connect to a driver, as there is none."""

    original, failed = module.run_fn, module.HorovodInternalError

    def run_fn(func: Any, reset: Any) -> Any:
        """Make what `hvd.elastic.run` returns: it calls `func(state)` once all ranks have the same
        state, and again after a `reset()` whenever Horovod has failed."""

        @functools.wraps(func)
        def go_on(state: Any, *args: Any, **kwargs: Any) -> Any:
            _synced(state, world)
            with _failing_for_others(world, failed):
                return func(state, *args, **kwargs)

        def again() -> None:
            global _syncing
            _syncing = True
            horovod_calls.reset_optimizers()  # an optimizer may have failed within backward()
            reset()

        @functools.wraps(func)
        def run(state: Any, *args: Any, **kwargs: Any) -> Any:
            with _inside(world, let_go), _guarded(state, world, failed, again):
                return original(go_on, again)(state, *args, **kwargs)

        return run

    module.notification_manager.init = init
    module.run_fn = run_fn


@contextmanager
def _inside(world: World, let_go: Callable[[], Any]) -> Iterator[None]:
    """Mark this rank as within an elastic run, in which ranks that die are waited for."""
    global _syncing
    _syncing = True
    if not world.behind:
        world.note_elastic(True)
    let_go()
    try:
        yield
    finally:
        _syncing = False
        world.note_elastic(False)


@contextmanager
def _guarded(state: Any, world: World, failed: Any, again: Callable[[], Any]) -> Iterator[None]:
    """Handle deaths of ranks during `state.sync` and during the user's reset callbacks, which
    Horovod's own loop does not expect to fail."""
    sync, on_reset = state.sync, state.on_reset

    def sync_or_fail() -> None:
        with _failing_for_others(world, failed):
            sync()

    def on_reset_or_again() -> None:
        while True:
            try:
                with _failing_for_others(world, failed):
                    on_reset()
                return
            except failed:
                state.restore()
                again()

    state.sync, state.on_reset = sync_or_fail, on_reset_or_again
    try:
        yield
    finally:
        del state.sync, state.on_reset


@contextmanager
def _failing_for_others(world: World, failed: Any) -> Iterator[None]:
    """Convert an error that the death of a rank has caused to Horovod's own error, `failed`.

    TensorFlow and Keras raise their own errors in collectives; others come from calls of a Horovod
    that is shut down.
    """
    meeting = world.meeting
    try:
        yield
    except failed:
        raise
    except Exception as error:
        if world.meeting == meeting and not looks_released(type(error).__name__, str(error)):
            raise
        raise failed(str(error)) from error


def _synced(state: Any, world: World) -> None:
    """Note that all ranks have the same state; on a restarted rank, commit it and tell the user."""
    global _syncing
    _syncing = False
    if world.behind:
        # Until its own first commit, it would return to the state that it began with.
        state.save()
        shown = getattr(state, "_saved_state", {})
        told = [f"{name}={value}" for name, value in shown.items() if type(value) in REPORTED_TYPES]
        words = RESUMED.format(
            rank=world.rank, how=world.behind, at=f" ({', '.join(told)})" if told else ""
        )
        print(words, file=sys.stderr)
        recorder.note(words)
        world.behind = ""
        world.note_elastic(True)


def _broadcast_from_who_has_it(module: Any, library: str, world: World) -> None:
    def redirected(original: Any) -> Any:
        signature = inspect.signature(original)

        @functools.wraps(original)
        def broadcast(*args: Any, **kwargs: Any) -> Any:
            if not _syncing:
                return original(*args, **kwargs)
            given = signature.bind(*args, **kwargs)
            given.apply_defaults()
            if given.arguments["root_rank"] == 0:
                given.arguments["root_rank"] = world.first_with_state
            return original(*given.args, **given.kwargs)

        return broadcast

    for name in STATE_BROADCASTS[library]:
        setattr(module, name, redirected(getattr(module, name)))
    if library == "torch":
        module.broadcast_optimizer_state = _stepping_nowhere(module.broadcast_optimizer_state)
    else:
        module.broadcast_variables = _by_order(module, world)


def _by_order(module: Any, world: World) -> Any:
    """Broadcast TensorFlow's variables by order rather than by name: in names, Keras counts the
    models that a process has made, and a restarted one has made fewer."""
    original = module.broadcast_variables
    plain = getattr(module, "plain_variable", lambda variable: variable)

    @functools.wraps(original)
    def broadcast(variables: Any, root_rank: int, *args: Any, **kwargs: Any) -> Any:
        if not _syncing or root_rank or args or kwargs or not module._executing_eagerly():
            return original(variables, root_rank, *args, **kwargs)
        for variable in map(plain, variables):
            variable.assign(module.broadcast(variable, world.first_with_state))

    return broadcast


def _stepping_nowhere(original: Any) -> Any:
    """Keep parameters unchanged while a new optimizer's state is made: Horovod makes it take a step
    without gradients. With weight decay, that changes parameters, perhaps already broadcast."""

    @functools.wraps(original)
    def broadcast(optimizer: Any, *args: Any, **kwargs: Any) -> Any:
        if optimizer.state_dict()["state"]:
            return original(optimizer, *args, **kwargs)
        parameters = [each.data for group in optimizer.param_groups for each in group["params"]]
        before = [each.clone() for each in parameters]
        try:
            return original(optimizer, *args, **kwargs)
        finally:
            for parameter, value in zip(parameters, before, strict=True):
                parameter.copy_(value)

    return broadcast


RESUMED = "rank {rank} {how}; it has rejoined and continues from the last commit{at}"
