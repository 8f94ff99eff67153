"""Horovod's collectives on a rank: refused where they would hang, and named so that they match.

Both happen in one place, the compiled module that every function of horovod.torch and
horovod.tensorflow goes through.
"""

from __future__ import annotations

import functools
import sys
import weakref
from collections import Counter
from collections.abc import Callable
from typing import Any

from rankroom.rank.frameworks.horovod import process_sets
from rankroom.rank.waiting import Waiting
from rankroom.rank.world import SubsetError, World

_REMEDY = (
    "Pass a process_set of these ranks (made with hvd.add_process_set in a cell on all ranks), "
    "or run the cell on all ranks."
)
_COLLECTIVES = (
    "allreduce",
    "allgather",
    "broadcast",
    "alltoall",
    "reducescatter",
    "join",
    "barrier",
)

# Where horovod.torch passes a call's process set, if that is not the last argument.
_PROCESS_SET_AT = {"reducescatter": -3}

_WAIT = "wait_and_clear"  # where horovod.torch waits for what it began before

_calls: Counter[str] = Counter()  # since a library was started
_starts: Counter[str] = Counter()
_spoilt: set[str] = set()
_refused = False  # True once a call was refused, perhaps in the middle of an optimizer's backward
_optimizers: weakref.WeakSet[Any] = weakref.WeakSet()


def wrap(module: Any, compiled: str, world: World) -> None:
    """Put a guard between `module` (a library's mpi_ops) and its compiled code."""
    name = module.__name__.split(".")[1]
    guarded = Guarded(getattr(module, compiled), name, world)
    setattr(module, compiled, guarded)
    if hasattr(module, "add_process_set"):
        process_sets.bind(module, name, world)
    join = module.join

    @functools.wraps(join)
    def joined_or_spoilt(*args: Any, **kwargs: Any) -> Any:
        try:
            last = join(*args, **kwargs)
        except SubsetError:
            raise
        except BaseException:
            _spoilt.add(name)
            raise
        begin(name)  # ranks that joined early have made fewer calls than others, and so fewer names
        return last

    module.join = joined_or_spoilt


def spoilt(library: str) -> bool:
    """True if an hvd.join() was ended by a failure: Horovod's own memory of it outlives a shutdown,
    and the next allreduce would crash."""
    return library in _spoilt


def begin(library: str) -> None:
    """All ranks count from here: they started a library together, and one may be a new process; or
    all have joined, one after fewer calls than another."""
    _calls[library] = 0
    _starts[library] += 1


def count(library: str) -> int:
    """Collectives of all ranks that this rank asked `library` for: the same on ranks in step."""
    return _calls[library]


class Guarded:
    """A library's compiled module, refusing what would wait for ranks that do not run this cell.

    It also names torch's nameless collectives. Horovod matches collectives by name and makes up
    names by counting calls; ranks that failed at different places, or that used a process set
    without the others, would count differently and wait for one another for ever. Here the count
    begins again with each cell and each start of the library, for each process set.
    """

    def __init__(self, module: Any, library: str, world: World) -> None:
        self.__dict__.update(_module=module, _library=library, _world=world)
        self.__dict__.update(_counts=None, _named=Counter(), _begun={})

    def __getattr__(self, name: str) -> Any:
        function = getattr(self._module, name)
        if name.endswith(_WAIT):
            self.__dict__[name] = waits = self._waits(function)
            return waits
        operation = next((word for word in _COLLECTIVES if word in name), None)
        if operation is None or not callable(function):
            self.__dict__[name] = function
            return function

        @functools.wraps(function)
        def guarded(*args: Any, **kwargs: Any) -> Any:
            number = 0 if operation == "join" else _process_set(operation, args, kwargs)
            if self._world.partial:
                self._refuse(operation, number)
            if number == 0:
                _calls[self._library] += 1
            args = self._name(args, number)
            if self._library == "torch":
                # Only begun here: what is returned is the handle that is waited for later.
                handle = function(*args, **kwargs)
                self._begun[handle] = _words(operation, args)
                return handle
            with Waiting(_words(operation, (kwargs.get("name"),))):
                return function(*args, **kwargs)

        # Tells TensorFlow's AutoGraph to call this as it is instead of rewriting it, and saying so.
        guarded.autograph_info__ = {}  # type: ignore[attr-defined]
        self.__dict__[name] = guarded
        return guarded

    def _waits(self, function: Any) -> Any:
        @functools.wraps(function)
        def wait_and_clear(handle: int) -> Any:
            with Waiting(self._begun.pop(handle, "a collective")):
                return function(handle)

        return wait_and_clear

    def _refuse(self, operation: str, number: int) -> None:
        world = self._world
        ranks = process_sets.members(self._library, number, world.size)
        if not set(ranks) <= set(world.present):
            global _refused
            _refused = True
            raise world.refuse(f"hvd.{operation}()", _REMEDY)

    def _name(self, args: tuple[Any, ...], number: int) -> tuple[Any, ...]:
        # torch's library passes "" for a call without a name; names that users gave are bytes.
        if not any(isinstance(arg, str) and not arg for arg in args):
            return args
        counts = self._world.run, _starts[self._library]
        if self._counts != counts:
            self.__dict__["_counts"] = counts
            self._named.clear()
        self._named[number] += 1
        name = f"noname.{self._world.run}.{self._named[number]}"
        return tuple(name if isinstance(arg, str) and not arg else arg for arg in args)


def _words(operation: str, args: tuple[Any, ...]) -> str:
    """A collective as people know it: `hvd.allreduce grad.3`, or by number: `hvd.allreduce #2`."""
    for arg in args:
        text = arg.decode("utf-8", "replace") if isinstance(arg, bytes) else arg
        if isinstance(text, str) and text:
            if text.startswith("noname."):
                return f"hvd.{operation} #{text.rpartition('.')[2]}"
            return f"hvd.{operation} {text}"
    return f"hvd.{operation}"


def _process_set(operation: str, args: tuple[Any, ...], kwargs: dict[str, Any]) -> int:
    """The process set of a call: by keyword for TensorFlow, by its place for torch."""
    if "process_set_id" in kwargs:
        return int(kwargs["process_set_id"])
    given = args[_PROCESS_SET_AT.get(operation, -1) :]
    return given[0] if given and type(given[0]) is int else 0


def track_optimizers(module: Any) -> None:
    """Know the DistributedOptimizers of horovod.torch, to mend them after a failed cell, and when
    the cell that makes one runs again."""
    original = module.DistributedOptimizer
    for name in ("_DistributedOptimizer", "_DistributedAdasumOptimizer"):
        if (kind := original.__globals__.get(name)) is not None:
            kind._make_hook = _made_unless_replaced(kind._make_hook)
            if name == "_DistributedAdasumOptimizer":
                kind._allreduce_grad_async = _noted(kind._allreduce_grad_async)

    @functools.wraps(original)
    def tracked(optimizer: Any, *args: Any, **kwargs: Any) -> Any:
        made = original(_plain(optimizer), *args, **kwargs)
        if optimizer in _optimizers:
            made.state.update(optimizer.state)
        for other in list(_optimizers):
            if _replaces(made, other):
                other._is_replaced = True
                other._handles.clear()
        _optimizers.add(made)
        return made

    module.DistributedOptimizer = tracked


def _made_unless_replaced(make: Callable[..., Any]) -> Callable[..., Any]:
    """Have hooks of an optimizer do nothing once another one has its parameters: they stay at the
    model, and both would average the same gradients, which Horovod refuses."""

    @functools.wraps(make)
    def made(self: Any, parameter: Any) -> Any:
        hook = make(self, parameter)

        def unless_replaced(*ignored: Any) -> None:
            if not getattr(self, "_is_replaced", False):
                hook(*ignored)

        return unless_replaced

    return made


def _noted(begin: Callable[..., Any]) -> Callable[..., Any]:
    """Adasum's puts the step that it averages in the place of the parameter, and empties the groups
    meanwhile: an error in it must not leave it at that."""

    @functools.wraps(begin)
    def noted(self: Any, parameter: Any) -> Any:
        self._starting_models[parameter].data.copy_(parameter)
        self._begins = parameter, [group["params"] for group in self.param_groups]
        found = begin(self, parameter)
        self._begins = None
        return found

    return noted


def _replaces(made: Any, other: Any) -> bool:
    """Whether an optimizer averages gradients that another one does, by whatever names."""
    parameters, others = (getattr(each, "_parameter_names", {}) for each in (made, other))
    sets = {getattr(each, "process_set", None) for each in (made, other)}
    return len(sets) == 1 and any(each in others for each in parameters)


def _plain(optimizer: Any) -> Any:
    """What is to be distributed: of one that is already, as its cell ran again, what that was made
    of, which would be made a subclass of itself otherwise."""
    if optimizer not in _optimizers:
        return optimizer
    base: Any = type(optimizer).__mro__[1]
    plain = base.__new__(base)
    plain.__dict__["param_groups"] = optimizer.param_groups
    return plain


def mend_refused() -> None:
    """Before a cell: clear what a refused call left behind in the optimizers of this rank."""
    global _refused
    if _refused:
        _refused = False
        reset_optimizers()


def forget_handles(library: str) -> None:
    """Let go of the tensors of what was begun before a library starts, as its own init() does."""
    module = sys.modules.get(f"horovod.{library}.mpi_ops")
    getattr(module, "_handle_map", {}).clear()


def reset_optimizers() -> None:
    """Have DistributedOptimizers forget the gradients they were averaging when a cell failed.

    Without this the next step would wait for operations that no longer exist.
    """
    kept = getattr(sys.modules.get("horovod.torch.mpi_ops"), "_handle_map", {})
    for optimizer in list(_optimizers):
        handles = getattr(optimizer, "_handles", {})
        _put_back_parameters(optimizer, handles)
        for handle, _ in handles.values():
            if isinstance(handle, int):
                kept.pop(handle, None)  # the tensors of operations that were given up
        handles.clear()
        delay = getattr(optimizer, "_allreduce_delay", {})
        delay.update(dict.fromkeys(delay, getattr(optimizer, "backward_passes_per_step", 1)))
        groups = getattr(optimizer, "_group_counts", {})
        groups.update(dict.fromkeys(groups, 0))
        optimizer._synchronized = False
        optimizer._should_synchronize = True


def _put_back_parameters(optimizer: Any, handles: dict[Any, tuple[Any, Any]]) -> None:
    """Undo what an Adasum optimizer had begun and not ended: its steps are where weights were."""
    starts = getattr(optimizer, "_starting_models", None)
    if starts is None:
        return
    begun = [parameter for parameter, (handle, _) in handles.items() if handle is not None]
    if begins := getattr(optimizer, "_begins", None):
        parameter, groups = begins
        begun.append(parameter)
        for group, parameters in zip(optimizer.param_groups, groups, strict=False):
            group["params"] = parameters
        optimizer._begins = None
    for parameter in begun:
        parameter.data.copy_(starts[parameter])
