"""Warn about tf.distribute strategies of a single process: each rank trains a model of its own."""

from __future__ import annotations

import functools
from typing import Any

from rankroom.rank.import_hooks import when_imported
from rankroom.rank.world import World
from rankroom.reporting.spans import recorder

_DISTRIBUTE_PREFIX = "tensorflow.python.distribute."


def install(world: World) -> None:
    """Prepare for the user's import of TensorFlow; nothing is imported now."""
    for module, name in (
        ("mirrored_strategy", "MirroredStrategy"),
        ("central_storage_strategy", "CentralStorageStrategy"),
    ):
        when_imported(_DISTRIBUTE_PREFIX + module, functools.partial(_watch, name, world))
    when_imported(
        f"{_DISTRIBUTE_PREFIX}collective_all_reduce_strategy",
        functools.partial(_watch_workers, world),
    )


def _watch(name: str, world: World, module: Any) -> None:
    for each in (name, f"{name}V1"):  # the second is of tf.compat.v1
        if hasattr(module, each):
            _tell_after(getattr(module, each), name, world)


def _tell_after(kind: Any, name: str, world: World) -> None:
    original = kind.__init__

    @functools.wraps(original)
    def init(self: Any, *args: Any, **kwargs: Any) -> None:
        original(self, *args, **kwargs)
        devices = args[0] if args else kwargs.get("devices", kwargs.get("compute_devices"))
        if len(world.present) > 1 and not _are_pretended(devices):
            recorder.note(SINGLE_PROCESS_STRATEGY.format(name=name))

    kind.__init__ = init


def _are_pretended(devices: Any) -> bool:
    """Return whether all devices are (logical) CPUs, as when a strategy is tried without GPUs."""
    return bool(devices) and all("CPU" in str(each).upper() for each in devices)


def _watch_workers(world: World, module: Any) -> None:
    kind = module.CollectiveAllReduceStrategy
    original = kind.__init__

    @functools.wraps(original)
    def init(self: Any, *args: Any, **kwargs: Any) -> None:
        original(self, *args, **kwargs)
        workers = self.cluster_resolver.cluster_spec().as_dict()
        if len(world.present) > 1 and not workers:
            recorder.note(NO_WORKERS)

    kind.__init__ = init


SINGLE_PROCESS_STRATEGY = (
    "{name} is for one process with several GPUs: each rank trains its own model, on all GPUs that "
    "it sees. For one model on all ranks, use MultiWorkerMirroredStrategy or Horovod"
)
NO_WORKERS = (
    "MultiWorkerMirroredStrategy found no other worker, so each rank trains its own model: "
    "TF_CONFIG, which is set on each rank, was removed. `%cluster restart` sets it again"
)
