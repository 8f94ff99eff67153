"""Tell users of mpi4py that MPI does not know the ranks, as mpirun has not started them."""

from __future__ import annotations

import functools
from typing import Any

from rankroom.rank.import_hooks import when_imported
from rankroom.rank.world import World
from rankroom.reporting.spans import recorder


def install(world: World) -> None:
    """Prepare for the user's import of mpi4py; nothing is imported now."""
    when_imported("mpi4py.MPI", functools.partial(_warn_if_alone, world))


def _warn_if_alone(world: World, module: Any) -> None:
    """Add a note to the run if MPI has a single process: each rank would do the work of all."""
    if world.size > 1 and module.Is_initialized() and module.COMM_WORLD.Get_size() == 1:
        recorder.note(SINGLE_PROCESS_WORLD)


SINGLE_PROCESS_WORLD = (
    "MPI.COMM_WORLD has a single process on each rank, because mpirun did not start the ranks. To "
    "communicate between them, use torch.distributed (`dist.all_gather_object` takes any object) "
    "or Horovod; start a program that needs MPI with `!mpirun` or `!srun` in a `%%local` cell, or "
    "in a terminal"
)
