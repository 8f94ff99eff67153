"""TensorFlow on a rank: tf.distribute's environment, and refusal of collectives inside functions.

A traced tf.function runs in C++, where Horovod's guard does not see its collectives. But each call
passes through one method in Python; there, in a cell on some of the ranks, the function's graph is
searched for collectives.
"""

from __future__ import annotations

import functools
import json
import os
import sys
from collections.abc import Iterator
from typing import Any

from rankroom.rank import open_ports
from rankroom.rank.frameworks.horovod import process_sets
from rankroom.rank.frameworks.tensorflow import (
    lone_strategies,
    strategy_collectives,
    tensorflow_steps,
)
from rankroom.rank.import_hooks import when_imported
from rankroom.rank.world import World

CONTEXT_MODULE = "tensorflow.python.eager.context"
STRATEGY_TOPIC = "tf.distribute.MultiWorkerMirroredStrategy()"
_COLLECTIVE_FUNCTIONS = (
    "all_reduce", "all_reduce_v2", "all_reduce_v3", "all_gather", "all_gather_v2",
    "all_to_all_v2", "all_to_all_v3", "broadcast_send", "broadcast_send_v2", "broadcast_recv",
    "broadcast_recv_v2", "initialize_communicator",
)  # fmt: skip
_LOCAL_HOROVOD_OPS = (
    "HorovodRank", "HorovodSize", "HorovodLocalRank", "HorovodLocalSize",
    "HorovodProcessSetIncluded",
)  # fmt: skip
_REMEDY = "Run the cell on all ranks, or call a function that needs no other rank."

_strategy = False  # True once tf.distribute has connected this process with other ranks
_aborted = False  # True once its collectives can no longer be used in this process
_told = False  # True once the user was told so
_world: World | None = None


def environment(rank: int, workers: list[str]) -> dict[str, str]:
    """Return TF_CONFIG for MultiWorkerMirroredStrategy; `workers` are host:port, one per rank."""
    config = {"cluster": {"worker": workers}, "task": {"type": "worker", "index": rank}}
    return {
        "TF_CONFIG": json.dumps(config),
        # Hardware hints at import, from every rank, would bury the cell's own output.
        "TF_CPP_MIN_LOG_LEVEL": os.environ.get("TF_CPP_MIN_LOG_LEVEL", "1"),
    }


def threads(count: int) -> dict[str, str]:
    """Return the sizes of TensorFlow's own thread pools, which ignore OMP_NUM_THREADS."""
    return {
        "TF_NUM_INTRAOP_THREADS": str(count),
        "TF_NUM_INTEROP_THREADS": str(max(1, min(2, count))),
    }


def install(world: World) -> None:
    """Prepare for the user's `import tensorflow`; nothing is imported now."""
    global _world
    _world = world
    tensorflow_steps.install()
    when_imported(CONTEXT_MODULE, _explain_too_late)
    if world.size > 1:
        strategy_collectives.install(world)
        lone_strategies.install(world)
        when_imported(CONTEXT_MODULE, lambda module: _wrap_context(module, world))
        when_imported(
            "tensorflow.python.ops.collective_ops", lambda module: _guard_functions(module, world)
        )


def release() -> list[str]:
    """Abort tf.distribute's collectives in this process, if one may be pending.

    They cannot be used in it again. Horovod's collectives in TensorFlow are released with Horovod.
    """
    if not _strategy or _aborted or _world is None or not strategy_collectives.seen.let_go(_world):
        return []
    _abort()
    return ["tf.distribute"]


def _abort() -> None:
    global _aborted
    _aborted = True
    code_cancelled = 1
    sys.modules[CONTEXT_MODULE].context().abort_collective_ops(code_cancelled, ABORTED)


def state() -> dict[str, Any]:
    """Return the state that ranks compare after a cell that failed on any of them."""
    return {"aborted": _aborted, "collectives": strategy_collectives.seen.count}


def settle(states: list[dict[str, Any]]) -> None:
    """Abort tf.distribute's collectives if the ranks are out of step, and tell the user once.

    TensorFlow cannot set them up again in a process. A rank that has not aborted them, as none was
    pending, would wait for ranks that have, or that have begun more of them.
    """
    global _told
    if not _strategy or _told:
        return
    if any(each["aborted"] for each in states) or len({each["collectives"] for each in states}) > 1:
        if not _aborted:
            _abort()
        _told = True
        print(ABORTED, file=sys.stderr)


def set_aside() -> Any:
    """Raise RuntimeError if tf.distribute has connected this process with all other ranks."""
    if _strategy:
        raise RuntimeError(ALREADY_CONNECTED)


def put_back(kept: Any) -> None:
    """Do nothing, as nothing was set aside."""


def _wrap_context(module: Any, world: World) -> None:
    context = module.Context
    call, enable = context.call_function, context.enable_collective_ops
    verdicts: dict[Any, str | None] = {}

    @functools.wraps(call)
    def call_function(self: Any, name: Any, *args: Any, **kwargs: Any) -> Any:
        if world.partial:
            key = name, world.present, _strategy
            if key not in verdicts:
                verdicts[key] = next(collectives(self, name, world), None)
            if verdicts[key] is not None:
                raise world.refuse(f"{verdicts[key]} in a tf.function", _REMEDY)
        return call(self, name, *args, **kwargs)

    @functools.wraps(enable)
    def enable_collective_ops(self: Any, server_def: Any) -> Any:
        global _strategy
        if world.partial:
            raise world.refuse("a multi-worker strategy", "Make it in a cell on all ranks.")
        if not _strategy and not world.alone and _is_for_all(server_def, world):
            # TensorFlow then waits for all ranks, and nothing can end that wait.
            world.gather(STRATEGY_TOPIC, None)
        keep_to_own_gpu(self, world.device)
        _strategy = True
        open_ports.note_open_ports("tf.distribute")
        return enable(self, server_def)

    context.call_function = call_function
    context.enable_collective_ops = enable_collective_ops


def _is_for_all(server: Any, world: World) -> bool:
    """Return whether the server definition has as many tasks as this cell has ranks."""
    return sum(len(job.tasks) for job in server.cluster.job) == world.size


def _explain_too_late(module: Any) -> None:
    """Add advice to TensorFlow's refusal of a strategy: on a rank, it is not that for a script."""
    context = module.Context
    configure = context.configure_collective_ops

    @functools.wraps(configure)
    def configure_collective_ops(self: Any, *args: Any, **kwargs: Any) -> Any:
        try:
            return configure(self, *args, **kwargs)
        except RuntimeError as error:
            error.args = (f"{error}. {STRATEGY_TOO_LATE}",)
            raise

    context.configure_collective_ops = configure_collective_ops


def keep_to_own_gpu(context: Any, device: str) -> None:
    """Make a strategy use this rank's own GPU rather than all GPUs of its node.

    A choice of GPUs that the user has made is kept.
    """
    if not device.startswith("cuda"):
        return
    all_gpus = context.list_physical_devices("GPU")
    if len(all_gpus) < 2 or len(context.get_visible_devices("GPU")) < len(all_gpus):
        return
    own = int(device.partition(":")[2] or 0)
    if own >= len(all_gpus):  # the user has chosen by CUDA_VISIBLE_DEVICES
        return
    try:
        context.set_visible_devices([all_gpus[own]], "GPU")
    except RuntimeError:  # TensorFlow is already using them
        print(ALL_GPUS.format(count=len(all_gpus)), file=sys.stderr)


def collectives(context: Any, name: Any, world: World) -> Iterator[str]:
    """Yield operations in a function, or in those it calls, that would wait for absent ranks."""
    seen: set[str] = set()
    todo = [name.decode() if isinstance(name, bytes) else str(name)]
    while todo:
        function = todo.pop()
        if function in seen or not context.has_function(function):
            continue
        seen.add(function)
        for node in context.get_function_def(function).node_def:
            if node.op.startswith("Collective") and _strategy:  # others are among own devices
                yield f"tf.distribute's {node.op}"
            elif node.op.startswith("Horovod") and node.op not in _LOCAL_HOROVOD_OPS:
                number = node.attr["process_set_id"].i
                if not _within(number, world):
                    yield f"hvd.{node.op.removeprefix('Horovod').lower()}()"
            for attribute in node.attr.values():
                if attribute.HasField("func"):
                    todo.append(attribute.func.name)
                todo.extend(each.name for each in attribute.list.func)


def _within(number: int, world: World) -> bool:
    """Return whether every rank of this process set runs the current cell."""
    return set(process_sets.members("tensorflow", number, world.size)) <= set(world.present)


def _guard_functions(module: Any, world: World) -> None:
    for name in _COLLECTIVE_FUNCTIONS:
        if hasattr(module, name):
            setattr(module, name, _guarded(getattr(module, name), name, world))


def _guarded(function: Any, name: str, world: World) -> Any:
    @functools.wraps(function)
    def guarded(*args: Any, **kwargs: Any) -> Any:
        # Without a strategy that has connected the ranks, it is among this rank's own devices.
        if world.partial and _strategy:
            raise world.refuse(f"tf.distribute's {name}()", _REMEDY)
        return function(*args, **kwargs)

    return guarded


ALL_GPUS = (
    "this rank's strategy uses all {count} GPUs of the node, because TensorFlow was in use before "
    "the strategy was made: to give each rank one GPU, run `%cluster restart` and make the "
    "strategy first"
)
STRATEGY_TOO_LATE = (
    "Ranks keep TensorFlow's state between cells: run `%cluster restart`, and make the strategy "
    "before using TensorFlow for anything else"
)
ALREADY_CONNECTED = (
    "tf.distribute has connected these processes permanently: run `%cluster restart`, then this "
    "cell before any strategy is made"
)
ABORTED = (
    "tf.distribute's collectives were aborted because a cell failed or was released, and "
    "TensorFlow cannot set them up again in a running process: run `%cluster restart` to use the "
    "strategy again"
)
