"""`hvd.elastic.run` on ranks, of which one that dies may come back.

Under horovodrun a driver tells workers of hosts that come and go, for which each opens a port and
writes its address into the driver's store. There is no such driver here, and Horovod's store is
closed once ranks have met. Ranks keep their numbers, so all are as many from beginning to end: one
that dies is started again by the cluster's supervisor, and runs the cell from its beginning, while
the others go back to their last commit and wait for it in hvd.init(). It has nothing yet, whichever
its number: so state is broadcast from the first rank that has it, and not always from rank 0.
"""

from __future__ import annotations

import functools
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

from rankroom.rank.frameworks.horovod import horovod_calls
from rankroom.rank.import_hooks import when_imported
from rankroom.rank.waiting import looks_released
from rankroom.rank.world import World
from rankroom.reporting.spans import recorder

# What broadcasts state, in horovod.<library>.functions; the second argument is the root.
BROADCASTS = {
    "torch": ("broadcast_parameters", "broadcast_optimizer_state", "broadcast_object"),
    "tensorflow": ("broadcast_variables", "broadcast_object"),
}
SHOWN = (int, float, str)  # values of a state that say how far it is

_syncing = False  # state is being made the same on all ranks


def install(world: World, let_go: Callable[[], Any]) -> None:
    """Called before the user's `import horovod.…`; `let_go()` ends what was set up with a rank that
    is gone by now."""
    when_imported("horovod.common.elastic", functools.partial(_adapt, world=world, let_go=let_go))
    for library in BROADCASTS:
        hook = functools.partial(_broadcast_from_who_has_it, library=library, world=world)
        when_imported(f"horovod.{library}.functions", hook)


def _adapt(module: Any, world: World, let_go: Callable[[], Any]) -> None:
    def init(*args: Any, **kwargs: Any) -> None:
        """Look for no driver."""

    original, failed = module.run_fn, module.HorovodInternalError

    def run_fn(func: Any, reset: Any) -> Any:
        """What `hvd.elastic.run` is made of: `func(state)` once all ranks have the same state, and
        again after a `reset()` whenever Horovod has failed."""

        @functools.wraps(func)
        def go_on(state: Any, *args: Any, **kwargs: Any) -> Any:
            _synced(state, world)
            with _failing_for_others(world, failed):
                return func(state, *args, **kwargs)

        def again() -> None:
            global _syncing
            _syncing = True
            horovod_calls.reset_optimizers()  # one of them may have failed within backward()
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
    """This rank is in an elastic run, where others that die are waited for."""
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
    """Ranks may die while others make their state the same, or do what the user registered for
    after a reset, which Horovod's own loop does not expect to fail."""
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
    """What fails as a rank has died is Horovod's failure, whichever library words it.

    TensorFlow's and Keras' own errors come from collectives, others from a Horovod that is off.
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
    """All ranks have the same state: one that was started again has what it lacked."""
    global _syncing
    _syncing = False
    if world.behind:
        # Until its first own commit it would go back to what it began with.
        state.save()
        shown = getattr(state, "_saved_state", {})
        told = [f"{name}={value}" for name, value in shown.items() if type(value) in SHOWN]
        words = WENT_ON.format(
            rank=world.rank, how=world.behind, at=f" ({', '.join(told)})" if told else ""
        )
        print(words, file=sys.stderr)
        recorder.note(words)
        world.behind = ""
        world.note_elastic(True)


def _broadcast_from_who_has_it(module: Any, library: str, world: World) -> None:
    def redirected(original: Any) -> Any:
        @functools.wraps(original)
        def broadcast(what: Any, root_rank: int = 0, *args: Any, **kwargs: Any) -> Any:
            root = world.first_with_state if _syncing and root_rank == 0 else root_rank
            return original(what, root, *args, **kwargs)

        return broadcast

    for name in BROADCASTS[library]:
        setattr(module, name, redirected(getattr(module, name)))
    if library == "torch":
        module.broadcast_optimizer_state = _stepping_nowhere(module.broadcast_optimizer_state)
    else:
        module.broadcast_variables = _by_order(module, world)


def _by_order(module: Any, world: World) -> Any:
    """TensorFlow's variables are matched by their names, in which Keras counts the models that a
    process has made: one that was started again has made fewer."""
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
    """Horovod has a new optimizer take a step without gradients, to have its state made. With
    weight decay that moves parameters, which may have been broadcast already."""

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


WENT_ON = "rank {rank} {how}; started again, it goes on from the last commit{at}"
