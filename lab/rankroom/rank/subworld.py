"""A smaller world for one cell: its ranks are all there are, as if the cluster had no others.

The environment has the cell's number of ranks, and what was set up for all ranks is set up for
these only; the next cell on all ranks sets it up for all again.
"""

from __future__ import annotations

import json
import os
from collections.abc import Mapping
from typing import Any

from rankroom.rank.environment import NODE_RANKS_VARIABLE, count_ranks_by_node, positions
from rankroom.rank.world import World, restore_environment

_VARIABLES = (
    "HOROVOD_SIZE", "HOROVOD_LOCAL_SIZE", "HOROVOD_CROSS_SIZE", "WORLD_SIZE", "LOCAL_WORLD_SIZE",
    "GROUP_WORLD_SIZE", "TF_CONFIG",
)  # fmt: skip


class Subworld:
    """Keeps what this rank had set up for all ranks while its world is a smaller one."""

    def __init__(self, world: World) -> None:
        self._world = world
        self._set_aside: dict[str, Any] = {}
        self._environment: dict[str, str | None] = {}

    def enter(self, adapters: Mapping[str, Any]) -> None:
        """Set aside what was set up for the whole world, and set the environment of the smaller."""
        for name, adapter in adapters.items():
            self._set_aside[name] = adapter.set_aside()
        self._environment = {name: os.environ.get(name) for name in _VARIABLES}
        os.environ.update(environment(self._world, os.environ))

    def leave(self, adapters: Mapping[str, Any]) -> None:
        """Restore what was set aside, as the world is whole again; if it always was, do nothing."""
        while self._set_aside:
            name, kept = self._set_aside.popitem()
            adapters[name].put_back(kept)
        restore_environment(self._environment)
        self._environment = {}


def environment(world: World, whole: Mapping[str, str]) -> dict[str, str]:
    """Return the variables that differ for a rank of a smaller world; `whole` is the environment in
    the whole world.

    The ranks of one host have consecutive numbers.
    """
    size = world.size
    counts = [int(count) for count in whole.get(NODE_RANKS_VARIABLE, str(world.whole)).split(",")]
    position = positions(count_ranks_by_node(size, counts))[world.rank]
    smaller = {
        "HOROVOD_SIZE": str(size),
        "HOROVOD_LOCAL_SIZE": str(position.local_size),
        "HOROVOD_CROSS_SIZE": str(position.cross_size),
        "WORLD_SIZE": str(size),
        "LOCAL_WORLD_SIZE": str(position.local_size),
        "GROUP_WORLD_SIZE": str(position.nodes),
    }
    if "TF_CONFIG" in whole:
        config = json.loads(whole["TF_CONFIG"])
        if "worker" in config.get("cluster", {}):  # it may be the user's own
            config["cluster"]["worker"] = config["cluster"]["worker"][:size]
            smaller["TF_CONFIG"] = json.dumps(config)
    return smaller
