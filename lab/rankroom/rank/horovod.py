"""Horovod on a rank: initialised when the user's code asks, as often as it asks."""

from __future__ import annotations

import functools
import os
from collections.abc import Callable
from pathlib import Path
from types import ModuleType
from typing import Any

from rankroom.rank.imports import when_imported
from rankroom.rank.world import World

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

_initialised: dict[str, Any] = {}
_released: set[str] = set()


def environment(
    rank: int,
    size: int,
    local_rank: int,
    local_size: int,
    cross_rank: int,
    cross_size: int,
    host: str,
    interface: str,
) -> dict[str, str]:
    """What Horovod reads at initialisation when no launcher of its own started it."""
    return {
        "HOROVOD_RANK": str(rank),
        "HOROVOD_SIZE": str(size),
        "HOROVOD_LOCAL_RANK": str(local_rank),
        "HOROVOD_LOCAL_SIZE": str(local_size),
        "HOROVOD_CROSS_RANK": str(cross_rank),
        "HOROVOD_CROSS_SIZE": str(cross_size),
        "HOROVOD_HOSTNAME": host,
        "HOROVOD_CONTROLLER": "gloo",
        "HOROVOD_CPU_OPERATIONS": "gloo",
        "HOROVOD_GLOO_IFACE": interface,
        # Makes hvd.start_timeline() possible later; read once, at initialisation.
        "HOROVOD_TIMELINE": "DYNAMIC",
        # Lets a cell make process sets; costs nothing until one is made.
        "HOROVOD_DYNAMIC_PROCESS_SETS": "1",
    }


def install(world: World) -> None:
    """Prepare for the user's `import horovod.…`; nothing is imported now."""
    when_imported("horovod.common.basics", lambda module: _wrap_basics(module, world))
    when_imported("horovod.torch.mpi_ops", lambda m: _guard(m, "mpi_lib", world))
    when_imported("horovod.tensorflow.mpi_ops", lambda m: _guard(m, "MPI_LIB", world))


def release() -> list[str]:
    """Let go of every blocked Horovod call, from any thread; the calls raise on their own ranks.

    Returns the libraries that were shut down; each initialises again with the next `hvd.init()`.
    """
    released = []
    for library, basics in list(_initialised.items()):
        if basics.is_initialized():
            basics.shutdown()
            _released.add(library)
            released.append(library)
    return released


def recover() -> None:
    """Initialise again what `release` shut down; called on every rank before a cell on all."""
    for library in sorted(_released):
        _released.discard(library)
        _initialised[library].init()


def _library(basics: Any) -> str:
    return Path(basics.MPI_LIB_CTYPES._name).parent.name


def _wrap_basics(module: ModuleType, world: World) -> None:
    basics_class: Any = module.HorovodBasics
    original: Callable[..., Any] = basics_class.init
    add_process_set = getattr(basics_class, "_add_process_set_impl", None)

    @functools.wraps(original)
    def init(self: Any, comm: Any = None, process_sets: Any = None) -> Any:
        library = _library(self)
        if self.is_initialized():
            return None
        if not world.desk or world.size == 1:
            result = original(self, comm, process_sets)
            _initialised[library] = self
            return result
        if world.partial:
            raise world.refuse("hvd.init()", "Run hvd.init() in a cell on all ranks first.")
        key = world.meet(library)
        try:
            result = original(self, comm, process_sets)
        finally:
            world.met(key)
        _initialised[library] = self
        return result

    basics_class.init = init
    if add_process_set is not None and world.desk:

        @functools.wraps(add_process_set)
        def add(self: Any, *args: Any, **kwargs: Any) -> Any:
            key = world.meet(_library(self), again=True)
            try:
                return add_process_set(self, *args, **kwargs)
            finally:
                world.met(key)

        basics_class._add_process_set_impl = add


class _Guarded:
    """Horovod's compiled module, refusing what would wait for ranks that do not run this cell."""

    def __init__(self, module: Any, world: World) -> None:
        self.__dict__["_module"] = module
        self.__dict__["_world"] = world

    def __getattr__(self, name: str) -> Any:
        function = getattr(self._module, name)
        operation = next((word for word in _COLLECTIVES if word in name), None)
        if operation is None or not callable(function):
            self.__dict__[name] = function
            return function
        world = self._world

        @functools.wraps(function)
        def guarded(*args: Any, **kwargs: Any) -> Any:
            if world.partial and (operation == "join" or _process_set(args, kwargs) == 0):
                raise world.refuse(f"hvd.{operation}()", _REMEDY)
            return function(*args, **kwargs)

        self.__dict__[name] = guarded
        return guarded


def _process_set(args: tuple[Any, ...], kwargs: dict[str, Any]) -> int:
    """The process set of a call: by keyword for TensorFlow, the last argument for torch."""
    if "process_set_id" in kwargs:
        return int(kwargs["process_set_id"])
    last = args[-1] if args else 0
    return last if isinstance(last, int) and not isinstance(last, bool) else 0


def _guard(module: ModuleType, name: str, world: World) -> None:
    if hasattr(module, name) and world.size > 1 and "RANKROOM_NO_GUARD" not in os.environ:
        setattr(module, name, _Guarded(getattr(module, name), world))
