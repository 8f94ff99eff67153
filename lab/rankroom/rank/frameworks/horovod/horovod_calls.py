"""Horovod's collectives on a rank: refused where they would hang, and named so that they match.

Both happen in one place: the compiled module that every function of horovod.torch and
horovod.tensorflow calls.
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

# The index of a call's process set in horovod.torch, if it is not the last argument.
_PROCESS_SET_INDEX = {"reducescatter": -3}

_WAIT_SUFFIX = "wait_and_clear"  # suffix of the functions in which horovod.torch waits for a handle

_calls: Counter[str] = Counter()  # by library, since it was started
_starts: Counter[str] = Counter()
_spoilt: set[str] = set()
_refused = False  # True once a call was refused, perhaps within an optimizer's backward pass
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
        begin(name)  # ranks that joined early have made fewer calls, and so used fewer names
        return last

    module.join = joined_or_spoilt


def spoilt(library: str) -> bool:
    """Return whether an hvd.join() has failed: Horovod still remembers the join after a shutdown,
    and the next allreduce would crash."""
    return library in _spoilt


def begin(library: str) -> None:
    """Restart the count of calls on all ranks: they have started a library together, one perhaps in
    a new process, or all have joined, after different numbers of calls."""
    _calls[library] = 0
    _starts[library] += 1


def count(library: str) -> int:
    """Return how many collectives of all ranks this rank has called: equal on ranks in step."""
    return _calls[library]


class Guarded:
    """A library's compiled module, refusing what would wait for ranks that do not run this cell.

    It also names torch's unnamed collectives. Horovod matches collectives by name, and generates
    missing names by counting calls; ranks that failed at different places, or that used a process
    set without the others, would count differently and wait for one another forever. Here, the
    count of each process set restarts with each cell and each start of the library.
    """

    def __init__(self, module: Any, library: str, world: World) -> None:
        self.__dict__.update(_module=module, _library=library, _world=world)
        self.__dict__.update(_counts=None, _named=Counter(), _begun={})

    def __getattr__(self, name: str) -> Any:
        function = getattr(self._module, name)
        if name.endswith(_WAIT_SUFFIX):
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
                # This only begins it, and returns the handle that is waited for later.
                handle = function(*args, **kwargs)
                self._begun[handle] = _words(operation, args)
                return handle
            with Waiting(_words(operation, (kwargs.get("name"),))):
                return function(*args, **kwargs)

        # Makes TensorFlow's AutoGraph call this as is, instead of converting it with a warning.
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
        # horovod.torch passes "" for a call without a name; names given by users are bytes.
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
    """Return a collective's name for users: `hvd.allreduce grad.3`, or `#2` if it is unnamed."""
    for arg in args:
        text = arg.decode("utf-8", "replace") if isinstance(arg, bytes) else arg
        if isinstance(text, str) and text:
            if text.startswith("noname."):
                return f"hvd.{operation} #{text.rpartition('.')[2]}"
            return f"hvd.{operation} {text}"
    return f"hvd.{operation}"


def _process_set(operation: str, args: tuple[Any, ...], kwargs: dict[str, Any]) -> int:
    """Return a call's process set number: TensorFlow passes it by keyword, torch by position."""
    if "process_set_id" in kwargs:
        return int(kwargs["process_set_id"])
    given = args[_PROCESS_SET_INDEX.get(operation, -1) :]
    return given[0] if given and type(given[0]) is int else 0


def track_optimizers(module: Any) -> None:
    """Track the DistributedOptimizers of horovod.torch, to reset them after a failed cell, and to
    replace one if the cell that makes it runs again."""
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
    """Make an optimizer's hooks do nothing once another one has its parameters: hooks stay on the
    model, and both would reduce the same gradients, which Horovod refuses."""

    @functools.wraps(make)
    def made(self: Any, parameter: Any) -> Any:
        hook = make(self, parameter)

        def unless_replaced(*ignored: Any) -> None:
            if not getattr(self, "_is_replaced", False):
                hook(*ignored)

        return unless_replaced

    return made


def _noted(begin: Callable[..., Any]) -> Callable[..., Any]:
    """Wrap Adasum's `_allreduce_grad_async` so that its changes can be undone after an error: it
    replaces the parameter by the step to reduce, and empties the parameter groups meanwhile."""

    @functools.wraps(begin)
    def noted(self: Any, parameter: Any) -> Any:
        self._starting_models[parameter].data.copy_(parameter)
        self._begins = parameter, [group["params"] for group in self.param_groups]
        found = begin(self, parameter)
        self._begins = None
        return found

    return noted


def _replaces(made: Any, other: Any) -> bool:
    """Return whether two optimizers reduce the same gradients in the same process set."""
    parameters, others = (getattr(each, "_parameter_names", {}) for each in (made, other))
    sets = {getattr(each, "process_set", None) for each in (made, other)}
    return len(sets) == 1 and any(each in others for each in parameters)


def _plain(optimizer: Any) -> Any:
    """Return the optimizer to distribute. For one that is distributed already, as its cell ran
    again, that is an instance of its base class: its own would become a subclass of itself."""
    if optimizer not in _optimizers:
        return optimizer
    base: Any = type(optimizer).__mro__[1]
    plain = base.__new__(base)
    plain.__dict__["param_groups"] = optimizer.param_groups
    return plain


def mend_refused() -> None:
    """Reset the optimizers of this rank before a cell, if a call was refused in an earlier one."""
    global _refused
    if _refused:
        _refused = False
        reset_optimizers()


def forget_handles(library: str) -> None:
    """Drop the tensors of operations begun before a library starts, as its own init() does."""
    module = sys.modules.get(f"horovod.{library}.mpi_ops")
    getattr(module, "_handle_map", {}).clear()


def reset_optimizers() -> None:
    """Make DistributedOptimizers forget the gradients they were reducing when a cell failed.

    Otherwise, the next step would wait for operations that no longer exist.
    """
    kept = getattr(sys.modules.get("horovod.torch.mpi_ops"), "_handle_map", {})
    for optimizer in list(_optimizers):
        handles = getattr(optimizer, "_handles", {})
        _put_back_parameters(optimizer, handles)
        for handle, _ in handles.values():
            if isinstance(handle, int):
                kept.pop(handle, None)  # holds the tensors of an abandoned operation
        handles.clear()
        delay = getattr(optimizer, "_allreduce_delay", {})
        delay.update(dict.fromkeys(delay, getattr(optimizer, "backward_passes_per_step", 1)))
        groups = getattr(optimizer, "_group_counts", {})
        groups.update(dict.fromkeys(groups, 0))
        optimizer._synchronized = False
        optimizer._should_synchronize = True


def _put_back_parameters(optimizer: Any, handles: dict[Any, tuple[Any, Any]]) -> None:
    """Restore parameters that an Adasum optimizer has replaced by steps still being reduced."""
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
